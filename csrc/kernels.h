// The elementwise update over a contiguous run, one entry per pair of dtypes. Compiled once per instruction set.
#pragma once

#include "step.h"

namespace ademamix {

// A run of elements of one tensor. `first` is the index of the run's first element in the tensor.
struct Run {
  const Tensor* tensor;
  const Options* options;
  int64_t first;
  int64_t size;
};

// Updates the run and returns how many elements were skipped.
using Kernel = int64_t (*)(const Run&);

namespace portable {
Kernel kernel_for(const Tensor& tensor, const Options& options);
}
namespace avx2 {
Kernel kernel_for(const Tensor& tensor, const Options& options);
}

}  // namespace ademamix
