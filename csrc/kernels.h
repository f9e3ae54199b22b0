// The update over a contiguous run of a tensor. Compiled once per instruction set.
#pragma once

#include "step.h"

namespace ademamix {

// A part of a tensor. `first` and `size` count elements, or blocks if the tensor's storage is coded.
struct Run {
  const Tensor* tensor;
  const Options* options;
  int64_t first;
  int64_t size;
};

// Updates the run and returns how many elements were skipped.
using Kernel = int64_t (*)(const Run&);

namespace portable {
Kernel plain_kernel(const Tensor& tensor, const Options& options);
Kernel coded_kernel(const Tensor& tensor);
}  // namespace portable
namespace avx2 {
Kernel plain_kernel(const Tensor& tensor, const Options& options);
Kernel coded_kernel(const Tensor& tensor);
}  // namespace avx2
namespace avx512 {
Kernel plain_kernel(const Tensor& tensor, const Options& options);
Kernel coded_kernel(const Tensor& tensor);
}  // namespace avx512

}  // namespace ademamix
