// Copies of blocks: parameters and gradients as fp32, whatever their dtype, and zeros up to a whole size.
#pragma once

#include <cstring>

#include "number_formats.h"
#include "step.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

template <class T>
void widen_block(float* __restrict to, const void* tensor, int64_t first, int count) {
  const T* __restrict from = static_cast<const T*>(tensor) + first;
  for (int i = 0; i < count; ++i) to[i] = load<float>(from[i]);
}

inline void read_block(float* to, int size, const void* tensor, Dtype dtype, int64_t first, int count) {
  switch (dtype) {
    case Dtype::f32: widen_block<float>(to, tensor, first, count); break;
    case Dtype::f64: widen_block<double>(to, tensor, first, count); break;
    case Dtype::bf16: widen_block<BFloat16>(to, tensor, first, count); break;
    case Dtype::f16: widen_block<Float16>(to, tensor, first, count); break;
  }
  for (int i = count; i < size; ++i) to[i] = 0;
}

template <class T>
void round_block(void* tensor, int64_t first, int count, const float* __restrict from) {
  T* __restrict to = static_cast<T*>(tensor) + first;
  for (int i = 0; i < count; ++i) store(to[i], from[i]);
}

inline void round_block_stochastically(void* tensor, int64_t first, int count, const float* __restrict from,
                                       const RoundingStream random, uint64_t place) {
  BFloat16* __restrict to = static_cast<BFloat16*>(tensor) + first;
  for (int i = 0; i < count; ++i) store_stochastic(to[i], from[i], random(place + static_cast<uint64_t>(i)));
}

// `random` is null where bf16 is rounded to nearest; its words are those from `place` on. fp64 parameters do not come
// here.
inline void write_block(void* tensor, Dtype dtype, int64_t first, int count, const float* from,
                        const RoundingStream* random, uint64_t place) {
  switch (dtype) {
    case Dtype::f32: return round_block<float>(tensor, first, count, from);
    case Dtype::f64: return;
    case Dtype::f16: return round_block<Float16>(tensor, first, count, from);
    case Dtype::bf16:
      if (random == nullptr) return round_block<BFloat16>(tensor, first, count, from);
      return round_block_stochastically(tensor, first, count, from, *random, place);
  }
}

template <class Code>
void read_codes(Code* to, int size, const Code* from, int count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(Code));
  std::memset(to + count, 0, static_cast<size_t>(size - count) * sizeof(Code));
}

template <class Code>
void write_codes(Code* to, const Code* from, int count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(Code));
}

inline int count_nonfinite(const float* x, int count) {
  uint32_t found = 0;
  for (int i = 0; i < count; ++i) found += ((bits_of(x[i]) & 0x7fffffffu) + 0x00800000u) >> 31;
  return static_cast<int>(found);
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
