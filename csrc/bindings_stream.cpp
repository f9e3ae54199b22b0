// `_core.stream`, which only `ademamix bench` calls.
#include "bindings_stream.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "stream.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ademamix {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The arrays of each tensor as bytes, the gradient first, and its number of elements.
double stream_arrays(const std::vector<std::vector<Bytes>>& tensors, const std::vector<int64_t>& sizes, int threads) {
  if (tensors.size() != sizes.size()) throw nb::value_error("lists of different lengths");
  std::vector<Streams> all(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    all[i].size = sizes[i];
    if (tensors[i].empty() || sizes[i] < 1) throw nb::value_error("a tensor without arrays or elements");
    for (const Bytes& array : tensors[i]) {
      const auto bytes = static_cast<int64_t>(array.size());
      if (bytes % sizes[i] != 0) throw nb::value_error("an array of another number of elements");
      all[i].arrays.push_back({array.data(), bytes / sizes[i]});
    }
  }
  nb::gil_scoped_release released;
  return stream(all, threads);
}

}  // namespace

void bind_stream(nb::module_& m) { m.def("stream", &stream_arrays, "tensors"_a, "sizes"_a, "threads"_a); }

}  // namespace ademamix
