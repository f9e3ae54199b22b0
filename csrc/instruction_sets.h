// Chooses between the builds of the kernels at run time.
#pragma once

#include "kernels.h"
#include "stream.h"

namespace ademamix {

Kernel kernel_for(const Tensor& tensor, const Options& options);
StreamKernel stream_kernel();

}  // namespace ademamix
