#include "step.h"

#include <algorithm>
#include <atomic>

#include "kernels.h"
#include "parallel.h"

namespace ademamix {
namespace {

// Runs start at multiples of this in every tensor, however many threads there are. A loop's vectorised body and its
// scalar tail then always meet at the same element, and the bits do not depend on the number of threads.
constexpr int64_t kRunSize = 1 << 14;

// Below this many elements a second thread costs more than it saves.
constexpr int64_t kElementsPerThread = 1 << 15;

// Small tensors are handed out together, up to a run's worth of elements.
struct Task {
  int64_t first_run;
  int64_t last_run;
};

bool has_avx2() {
#if defined(ADEMAMIX_HAVE_AVX2)
  return __builtin_cpu_supports("avx2");
#else
  return false;
#endif
}

std::atomic<bool> portable_only{false};

Kernel kernel_for(const Tensor& tensor, const Options& options) {
#if defined(ADEMAMIX_HAVE_AVX2)
  if (has_avx2() && !portable_only) return avx2::kernel_for(tensor, options);
#endif
  return portable::kernel_for(tensor, options);
}

}  // namespace

void step(const std::vector<Tensor>& tensors, const Options& options) {
  std::vector<Run> runs;
  std::vector<Kernel> kernels;
  std::vector<Task> tasks;
  int64_t elements = 0;
  int64_t in_task = kRunSize;
  for (const Tensor& tensor : tensors) {
    const Kernel kernel = kernel_for(tensor, options);
    for (int64_t first = 0; first < tensor.size; first += kRunSize) {
      const int64_t size = std::min(kRunSize, tensor.size - first);
      if (in_task + size > kRunSize) {
        tasks.push_back({static_cast<int64_t>(runs.size()), 0});
        in_task = 0;
      }
      in_task += size;
      elements += size;
      runs.push_back({&tensor, &options, first, size});
      kernels.push_back(kernel);
      tasks.back().last_run = static_cast<int64_t>(runs.size());
    }
  }

  std::vector<std::atomic<int64_t>> skipped(tensors.size());
  const int useful = static_cast<int>(std::min<int64_t>(elements / kElementsPerThread, options.threads));
  parallel_for(static_cast<int64_t>(tasks.size()), useful, options.threads, [&](int64_t i) {
    for (int64_t r = tasks[i].first_run; r < tasks[i].last_run; ++r) {
      const int64_t count = kernels[r](runs[r]);
      if (count != 0) skipped[runs[r].tensor - tensors.data()] += count;
    }
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].skipped != nullptr) *tensors[i].skipped += skipped[i];
  }
}

const char* instruction_set() { return has_avx2() && !portable_only ? "avx2" : "portable"; }

void use_portable(bool portable) { portable_only = portable; }

}  // namespace ademamix
