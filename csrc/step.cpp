#include "step.h"

#include <algorithm>
#include <atomic>

#include "instruction_sets.h"

namespace ademamix {
namespace {

// Below this many elements a second thread costs more than it saves.
constexpr int64_t kElementsPerThread = 1 << 15;

// Small tensors are handed out together, up to a run's worth of elements.
struct Task {
  int64_t first_run;
  int64_t last_run;
};

// How a tensor is cut: `count` blocks, or elements of fp64 parameters, of which a run has `per_run`.
struct Cut {
  int64_t count;
  int64_t per_run;
};

Cut cut_for(const Tensor& tensor, int64_t run_size) {
  if (tensor.parameter_dtype == Dtype::f64 || tensor.size == 0) return {tensor.size, run_size};
  const int64_t row_size = block_row_size(tensor);
  const int64_t blocks_per_row = (row_size + kBlockSize - 1) / kBlockSize;
  const int64_t per_run = std::max<int64_t>(run_size * blocks_per_row / row_size, 1);
  return {tensor.size / row_size * blocks_per_row, per_run};
}

}  // namespace

bool is_made_of_rows(const Tensor& tensor) {
  const bool needs_rows = tensor.storage != Storage::plain || tensor.shard.whole_row_size != 0;
  if (tensor.row_size <= 0) return tensor.row_size == 0 && (tensor.size == 0 || !needs_rows);
  return tensor.size % tensor.row_size == 0;
}

bool is_part_of_whole(const Tensor& tensor) {
  const auto [first_row, first_column, whole_size] = tensor.shard;
  const int64_t size = tensor.row_size;
  // Sizes that are not negative have a difference.
  const bool inside = first_row >= 0 && first_column >= 0 && size >= 0 && size <= whole_size &&
                      first_column <= whole_size - size;
  if (tensor.storage == Storage::plain || tensor.size == 0) return inside;
  const bool in_blocks = first_column % kBlockSize == 0 && (size % kBlockSize == 0 || first_column + size == whole_size);
  return inside && in_blocks;
}

void step(const std::vector<Tensor>& tensors, const Options& options, const ParallelFor& parallel) {
  std::vector<Run> runs;
  std::vector<Kernel> kernels;
  std::vector<Task> tasks;
  int64_t elements = 0;
  for (const Tensor& tensor : tensors) elements += tensor.size;
  const int64_t longest = run_size(elements, options.threads);
  int64_t in_task = longest;
  for (const Tensor& tensor : tensors) {
    const Kernel kernel = kernel_for(tensor, options);
    const Cut cut = cut_for(tensor, longest);
    for (int64_t first = 0; first < cut.count; first += cut.per_run) {
      const int64_t size = std::min(cut.per_run, cut.count - first);
      const int64_t share = tensor.size * size / cut.count;
      if (in_task + share > longest) {
        tasks.push_back({static_cast<int64_t>(runs.size()), 0});
        in_task = 0;
      }
      in_task += share;
      runs.push_back({&tensor, &options, first, size});
      kernels.push_back(kernel);
      tasks.back().last_run = static_cast<int64_t>(runs.size());
    }
  }

  std::vector<std::atomic<int64_t>> skipped(tensors.size());
  const int useful = static_cast<int>(std::min<int64_t>(elements / kElementsPerThread, options.threads));
  parallel(static_cast<int64_t>(tasks.size()), useful, options.threads, [&](int64_t i) {
    for (int64_t r = tasks[i].first_run; r < tasks[i].last_run; ++r) {
      const int64_t count = kernels[r](runs[r]);
      if (count != 0) skipped[runs[r].tensor - tensors.data()] += count;
    }
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].skipped != nullptr) *tensors[i].skipped += skipped[i];
  }
}

}  // namespace ademamix
