// The bound of a step: its arrays are read and written as a step does, with no arithmetic. `ademamix bench` compares
// the two.
#pragma once

#include <cstdint>
#include <vector>

namespace ademamix {

struct Stream {
  unsigned char* data;
  int64_t width;  // bytes for each element
};

// The arrays of a tensor. The first is only read, as a gradient is; the others are also written, with what they hold.
struct Streams {
  std::vector<Stream> arrays;
  int64_t size;  // elements
};

// Passes once over all of them, on the threads that a step would have, and returns the seconds that it took.
double stream(const std::vector<Streams>& tensors, int threads);

// Passes over some elements of a tensor; compiled once per instruction set. `nothing` is 0, and the compiler must not
// know: what is written is what was read, changed by nothing. The result depends on all that is read.
using StreamKernel = uint32_t (*)(const Streams& tensor, int64_t first, int64_t last, uint32_t nothing);

namespace portable {
uint32_t stream_kernel(const Streams& tensor, int64_t first, int64_t last, uint32_t nothing);
}  // namespace portable
namespace avx2 {
uint32_t stream_kernel(const Streams& tensor, int64_t first, int64_t last, uint32_t nothing);
}  // namespace avx2
namespace avx512 {
uint32_t stream_kernel(const Streams& tensor, int64_t first, int64_t last, uint32_t nothing);
}  // namespace avx512

}  // namespace ademamix
