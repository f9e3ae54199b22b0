// Vectors of parameters: read as fp32, and rounded to their dtype when they are written. number_formats.h has the same
// conversions of single numbers.
#pragma once

#include "block.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

// How parameters of a block are rounded. The random words are those of the elements from `place` on.
struct ParameterRounding {
  bool stochastic;
  RoundingStream random;
  uint64_t place;

  // Whether the numbers of so many elements have the same upper half, as `words` takes for granted.
  bool has_words_for(uint32_t count) const { return static_cast<uint32_t>(place) <= ~count; }

  ADEMAMIX_INLINE Words words(int i) const {
    const Words low = all(static_cast<uint32_t>(place)) + load(kLaneNumbers.words + i);
    return mixed(mixed(low ^ random.key0) + (random.key1 ^ static_cast<uint32_t>(place >> 32)));
  }

 private:
  static Words mixed(Words x) {
    x = (x ^ (x >> 16)) * kFirstMixer;
    x = (x ^ (x >> 15)) * kSecondMixer;
    return x ^ (x >> 16);
  }
};

inline Words is_nan(Words bits) { return (Words)((bits & 0x7fffffffu) > 0x7f800000u); }

inline Words choose(Words mask, Words a, Words b) { return b ^ ((a ^ b) & mask); }

ADEMAMIX_INLINE Floats load(const BFloat16* from) {
  return float_of(widen(reinterpret_cast<const uint16_t*>(from)) << kBF16Shift);
}

ADEMAMIX_INLINE Floats load(const Float16* from) {
  const Words bits = widen(reinterpret_cast<const uint16_t*>(from));
  const Words sign = (bits & 0x8000u) << 16;
  const Words magnitude = bits & 0x7fffu;
  const Words normal = (magnitude << 13) + (112u << 23);
  const Words subnormal = bits_of(__builtin_convertvector((SignedWords)magnitude, Floats) * 0x1p-24f);
  Words found = magnitude < 0x0400u ? subnormal : normal;
  found = magnitude >= 0x7c00u ? (magnitude << 13) | 0x7f800000u : found;
  return float_of(found | sign);
}

ADEMAMIX_INLINE void store_parameters(float* to, int i, const Group& x, const ParameterRounding&) {
  store_group(to + i, x);
}

// The bits of x plus noise(bits, the place of a vector), which rounds the upper part of them; NaN is the usual one.
struct RoundedGroup {
  Words of[4];

  template <class Noise>
  ADEMAMIX_INLINE RoundedGroup(int i, const Group& x, const Noise& noise) {
    for (int k = 0; k < 4; ++k) {
      const Words bits = bits_of(x.of[k]);
      of[k] = unless_nan(x.of[k], bits + noise(bits, i + k * kLanes), 0x7fc00000u);
    }
  }
};

// Rounds to numbers that lack so many of the lower bits.
template <int kDropped>
ADEMAMIX_INLINE RoundedGroup rounded(int i, const Group& x, const ParameterRounding& rounding) {
  constexpr uint32_t kMask = (1u << kDropped) - 1;
  if (rounding.stochastic) return RoundedGroup(i, x, [&](Words, int at) { return rounding.words(at) & kMask; });
  return RoundedGroup(i, x, [](Words bits, int) { return ((bits >> kDropped) & 1u) + (kMask >> 1); });
}

ADEMAMIX_INLINE void store_parameters(BFloat16* to, int i, const Group& x, const ParameterRounding& rounding) {
  const RoundedGroup bits = rounded<kBF16Shift>(i, x, rounding);
  narrow_upper(reinterpret_cast<uint16_t*>(to) + i, bits.of[0], bits.of[1], bits.of[2], bits.of[3]);
}

ADEMAMIX_INLINE void store_parameters(Float16* to, int i, const Group& x, const ParameterRounding&) {
  Words codes[4];
  for (int k = 0; k < 4; ++k) {
    const Words bits = bits_of(x.of[k]);
    const Words sign = (bits >> 16) & 0x8000u;
    const Words magnitude = bits & 0x7fffffffu;
    const Words nearest_even = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    // fp16's subnormals are multiples of 2^-24, the spacing of fp32 numbers just above 0.5.
    const Words subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(all(0.5f));
    Words found = magnitude < 0x38800000u ? subnormal : nearest_even;
    found = magnitude >= 0x477ff000u ? choose(is_nan(bits), all(0x7e00u), all(0x7c00u)) : found;
    codes[k] = found | sign;
  }
  narrow(reinterpret_cast<uint16_t*>(to) + i, codes[0], codes[1], codes[2], codes[3]);
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
