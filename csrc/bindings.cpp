// The Python face of the core: lists of addresses in, nothing out. `pytorch/step_fused.py` is its only caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>

#include "parallel.h"
#include "step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Addresses = std::vector<uintptr_t>;
using Row = std::array<double, 8>;

ademamix::Coefficients coefficients_from(const Row& row) {
  return {row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7]};
}

ademamix::Dtype dtype_from(int code) {
  if (code < 0 || code > 3) throw std::invalid_argument("unknown dtype code");
  return static_cast<ademamix::Dtype>(code);
}

ademamix::Storage storage_from(int code) {
  if (code < 0 || code > 2) throw std::invalid_argument("unknown storage code");
  return static_cast<ademamix::Storage>(code);
}

// Python mistakes in the state of a coded tensor would be writes outside of it.
void check_coded(const ademamix::Tensor& t) {
  if (t.storage == ademamix::Storage::plain) return;
  if (t.parameter_dtype == ademamix::Dtype::f64) throw std::invalid_argument("fp64 parameters have plain storage");
  if (t.size > 0 && (t.row_size <= 0 || t.size % t.row_size != 0)) throw std::invalid_argument("rows do not fit");
  const bool scaled = t.slow_scale != nullptr && t.square_scale != nullptr && (!t.fast || t.fast_scale != nullptr);
  if (t.storage == ademamix::Storage::compact && t.size > 0 && !scaled) throw std::invalid_argument("no scales");
}

template <class T>
T* pointer(const Addresses& addresses, size_t i) {
  return addresses.empty() ? nullptr : reinterpret_cast<T*>(addresses[i]);
}

void step(const Addresses& parameters, const Addresses& gradients, const Addresses& fasts, const Addresses& slows,
          const Addresses& squares, const Addresses& fast_scales, const Addresses& slow_scales,
          const Addresses& square_scales, const Addresses& skipped, const std::vector<int64_t>& sizes,
          const std::vector<int64_t>& row_sizes, const std::vector<int64_t>& indices,
          const std::vector<int>& parameter_dtypes, const std::vector<int>& gradient_dtypes,
          const std::vector<int>& storages, const std::vector<Row>& coefficients, const std::vector<int>& rows,
          double gradient_factor, bool stochastic_rounding, uint64_t rounding_seed, int threads) {
  const size_t count = parameters.size();
  const auto check = [count](size_t size, bool may_be_empty) {
    if (size != count && !(may_be_empty && size == 0)) throw std::invalid_argument("lists of different lengths");
  };
  for (size_t size : {gradients.size(), slows.size(), squares.size(), sizes.size(), row_sizes.size(), indices.size(),
                      parameter_dtypes.size(), gradient_dtypes.size(), storages.size(), rows.size()}) {
    check(size, false);
  }
  for (size_t size : {fasts.size(), fast_scales.size(), slow_scales.size(), square_scales.size(), skipped.size()}) {
    check(size, true);
  }

  std::vector<ademamix::Tensor> tensors;
  tensors.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    tensors.push_back({pointer<void>(parameters, i), pointer<void>(gradients, i), pointer<void>(fasts, i),
                       pointer<void>(slows, i), pointer<void>(squares, i), pointer<uint8_t>(fast_scales, i),
                       pointer<uint8_t>(slow_scales, i), pointer<uint8_t>(square_scales, i),
                       pointer<int64_t>(skipped, i), sizes[i], row_sizes[i], indices[i],
                       dtype_from(parameter_dtypes[i]), dtype_from(gradient_dtypes[i]), storage_from(storages[i]),
                       coefficients_from(coefficients.at(static_cast<size_t>(rows[i])))});
    check_coded(tensors.back());
  }
  nb::gil_scoped_release released;
  ademamix::step(tensors, {gradient_factor, stochastic_rounding, rounding_seed, threads});
}

// Adds one to each float32 clock and returns what it shows now.
std::vector<double> advance(const Addresses& clocks) {
  std::vector<double> values;
  values.reserve(clocks.size());
  for (uintptr_t address : clocks) {
    float& clock = *reinterpret_cast<float*>(address);
    clock += 1.0f;
    values.push_back(clock);
  }
  return values;
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Fused CPU kernels of ademamix";
  m.def("step", &step, "parameters"_a, "gradients"_a, "fasts"_a, "slows"_a, "squares"_a, "fast_scales"_a,
        "slow_scales"_a, "square_scales"_a, "skipped"_a, "sizes"_a, "row_sizes"_a, "indices"_a, "parameter_dtypes"_a,
        "gradient_dtypes"_a, "storages"_a, "coefficients"_a, "rows"_a, "gradient_factor"_a, "stochastic_rounding"_a,
        "rounding_seed"_a, "threads"_a);
  m.def("advance", &advance, "clocks"_a);
  m.def("instruction_set", &ademamix::instruction_set);
  m.def("instruction_sets", &ademamix::instruction_sets);
  m.def("use_instruction_set", &ademamix::use_instruction_set, "name"_a);
  m.def("thread_source", &ademamix::thread_source);
}
