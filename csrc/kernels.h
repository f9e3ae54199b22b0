// The update over a contiguous run of a tensor. Compiled once per instruction set.
#pragma once

#include "step.h"

namespace ademamix {

// A part of a tensor. `first` and `size` count blocks, or elements of fp64 parameters.
struct Run {
  const Tensor* tensor;
  const Options* options;
  int64_t first;
  int64_t size;
};

// The size of the rows that blocks lie in. Scales of blocks, and random words in a tensor that is cut, belong to the rows
// of the tensor. Everything else is one row.
inline int64_t block_row_size(const Tensor& tensor) {
  const bool is_cut = tensor.shard.whole_row_size != 0 && tensor.shard.whole_row_size != tensor.row_size;
  return tensor.storage != Storage::plain || is_cut ? tensor.row_size : tensor.size;
}

// Counts the rows, elements and blocks of the whole parameter that a tensor is a part of.
struct WholeRows {
  uint64_t first_row, first_column, size;

  explicit WholeRows(const Tensor& tensor)
      : first_row(static_cast<uint64_t>(tensor.shard.first_row)),
        first_column(static_cast<uint64_t>(tensor.shard.first_column)),
        size(static_cast<uint64_t>(tensor.shard.whole_row_size != 0 ? tensor.shard.whole_row_size : tensor.row_size)) {}

  // The element at a row and a column of the tensor.
  uint64_t element(int64_t row, int64_t column) const {
    return (first_row + static_cast<uint64_t>(row)) * size + first_column + static_cast<uint64_t>(column);
  }

  // The block that begins there.
  uint64_t block(int64_t row, int64_t column) const {
    const uint64_t in_row = (size + kBlockSize - 1) / kBlockSize;
    return (first_row + static_cast<uint64_t>(row)) * in_row + (first_column + static_cast<uint64_t>(column)) / kBlockSize;
  }
};

// Updates the run and returns how many elements were skipped.
using Kernel = int64_t (*)(const Run&);

namespace portable {
Kernel double_kernel(const Tensor& tensor);
Kernel block_kernel(const Tensor& tensor, const Options& options);
}  // namespace portable
namespace avx2 {
Kernel double_kernel(const Tensor& tensor);
Kernel block_kernel(const Tensor& tensor, const Options& options);
}  // namespace avx2
namespace avx512 {
Kernel double_kernel(const Tensor& tensor);
Kernel block_kernel(const Tensor& tensor, const Options& options);
}  // namespace avx512

}  // namespace ademamix
