#include "stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "instruction_sets.h"
#include "parallel.h"

namespace ademamix {
namespace {

struct Piece {
  const Streams* tensor;
  int64_t first, last;
};

}  // namespace

double stream(const std::vector<Streams>& tensors, int threads) {
  std::vector<Piece> pieces;
  int64_t elements = 0;
  for (const Streams& tensor : tensors) elements += tensor.size;
  const int64_t longest = run_size(elements, threads);  // as in a step
  for (const Streams& tensor : tensors) {
    for (int64_t first = 0; first < tensor.size; first += longest) {
      pieces.push_back({&tensor, first, std::min(first + longest, tensor.size)});
    }
  }
  const StreamKernel kernel = stream_kernel();
  volatile uint32_t nothing = 0;
  std::atomic<uint32_t> seen{0};
  const auto start = std::chrono::steady_clock::now();
  parallel_for(static_cast<int64_t>(pieces.size()), threads, threads, [&, zero = uint32_t{nothing}](int64_t i) {
    seen ^= kernel(*pieces[i].tensor, pieces[i].first, pieces[i].last, zero);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace ademamix
