#include <algorithm>
#include <cstring>

#include "formats.h"
#include "stream.h"

namespace ademamix {
namespace ADEMAMIX_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int64_t kVectorBytes = 32;
#else
constexpr int64_t kVectorBytes = 16;
#endif
constexpr int64_t kWords = kVectorBytes / sizeof(uint32_t);
using Vector = uint32_t __attribute__((vector_size(kVectorBytes)));

Vector vector_at(const unsigned char* from) {
  Vector x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

uint32_t read(const unsigned char* data, int64_t bytes) {
  Vector seen{};
  int64_t i = 0;
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) seen ^= vector_at(data + i);
  uint32_t result = 0;
  for (; i < bytes; ++i) result ^= data[i];
  for (int64_t k = 0; k < kWords; ++k) result ^= seen[k];
  return result;
}

void read_and_write(unsigned char* data, int64_t bytes, uint32_t nothing) {
  int64_t i = 0;
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) {
    const Vector x = vector_at(data + i) ^ nothing;
    std::memcpy(data + i, &x, sizeof x);
  }
  for (; i < bytes; ++i) data[i] = static_cast<unsigned char>(data[i] ^ nothing);
}

}  // namespace

// As many elements of one array at a time as a kernel takes.
uint32_t stream_kernel(const Streams& tensor, int64_t first, int64_t last, uint32_t nothing) {
  uint32_t seen = 0;
  for (int64_t i = first; i < last; i += kBlockSize) {
    const int64_t size = std::min<int64_t>(kBlockSize, last - i);
    const Stream& gradient = tensor.arrays.front();
    seen ^= read(gradient.data + i * gradient.width, size * gradient.width);
    for (auto array = tensor.arrays.begin() + 1; array != tensor.arrays.end(); ++array) {
      read_and_write(array->data + i * array->width, size * array->width, nothing);
    }
  }
  return seen;
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
