// Conversions between bf16, fp16 and fp32, and the counter-based generator of stochastic rounding.
// Written without branches, so that loops over them vectorise, and without subnormal fp32 intermediates, so that
// a caller's flush-to-zero mode does not change them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "formats.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Finite numbers above the limit become the limit: their squares would make the second moment infinite, and the
// parameter NaN a step later.
template <class T>
inline T limited(T x, T limit = static_cast<T>(kGradientLimit)) {
  const T size = std::abs(x);
  const bool exceeds = (size > limit) & (size <= std::numeric_limits<T>::max());
  return exceeds ? std::copysign(limit, x) : x;
}

template <class S>
inline S load(float x) {
  return static_cast<S>(x);
}
// Finite numbers stay finite as floats.
template <class S>
inline S load(double x) {
  if constexpr (sizeof(S) < sizeof x) x = limited(x, static_cast<double>(std::numeric_limits<S>::max()));
  return static_cast<S>(x);
}
template <class S>
inline S load(BFloat16 x) {
  return static_cast<S>(float_of(static_cast<uint32_t>(x.bits) << 16));
}
template <class S>
inline S load(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t nonfinite = (magnitude << 13) | 0x7f800000u;
  const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t bits = magnitude < 0x0400u ? subnormal : normal;
  bits = magnitude >= 0x7c00u ? nonfinite : bits;
  return static_cast<S>(float_of(bits | sign));
}

inline void store(float& to, float x) { to = x; }
inline void store(double& to, double x) { to = x; }

inline void store(BFloat16& to, float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t nearest_even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<uint16_t>(nan ? 0x7fc0u : nearest_even);
}

inline void store(Float16& to, float x) {
  const uint32_t sign = (bits_of(x) >> 16) & 0x8000u;
  const uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const uint32_t nearest_even = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // fp16's subnormals are multiples of 2^-24, the spacing of fp32 numbers just above 0.5.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32_t overflow = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t bits = magnitude < 0x38800000u ? subnormal : nearest_even;
  bits = magnitude >= 0x477ff000u ? overflow : bits;
  to.bits = static_cast<uint16_t>(bits | sign);
}

// A mixing function of 32-bit words: every bit of the result depends on every bit of x.
inline uint32_t mix(uint32_t x) {
  x = (x ^ (x >> 16)) * kFirstMixer;
  x = (x ^ (x >> 15)) * kSecondMixer;
  return x ^ (x >> 16);
}

// The random word of an element depends on (seed, parameter index, step, element index) and on nothing else.
// `rounding.py` is its twin; they are tested to agree.
struct RoundingStream {
  uint32_t key0 = kFirstKey;
  uint32_t key1 = kSecondKey;

  RoundingStream() = default;
  RoundingStream(uint64_t seed, int64_t index, int64_t step) {
    const uint64_t words[] = {seed, static_cast<uint64_t>(index), static_cast<uint64_t>(step)};
    for (uint64_t word : words) {
      absorb(static_cast<uint32_t>(word));
      absorb(static_cast<uint32_t>(word >> 32));
    }
  }

  void absorb(uint32_t word) {
    key0 = mix(key0 ^ word);
    key1 = mix(key1 + word);
  }

  uint32_t operator()(uint64_t element) const {
    const uint32_t low = static_cast<uint32_t>(element);
    const uint32_t high = static_cast<uint32_t>(element >> 32);
    return mix(mix(low ^ key0) + (key1 ^ high));
  }
};

// Rounds to one of the two neighbours, up with the probability of the distance to the lower one.
inline void store_stochastic(BFloat16& to, float x, uint32_t random) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + (random & kBF16Mask)) >> kBF16Shift;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<uint16_t>(nan ? 0x7fc0u : rounded);
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
