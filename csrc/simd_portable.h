// Four lanes in the vector extensions of GCC and Clang, and what each operation means: simd_avx2.h and simd_avx512.h
// have the same. Beside these functions, `Floats` and `Words` have the operators of float and uint32_t.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "number_formats.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

constexpr int kLanes = 4;
using Floats = float __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));
using SignedWords = int32_t __attribute__((vector_size(16)));

inline Words bits_of(Floats x) { return (Words)x; }
inline Floats float_of(Words x) { return (Floats)x; }

inline Floats all(float x) { return Floats{x, x, x, x}; }
inline Words all(uint32_t x) { return Words{x, x, x, x}; }

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline Words load(const uint32_t* from) {
  Words x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

template <class T>
struct Narrow {
  typedef T Lanes __attribute__((vector_size(kLanes * sizeof(T))));
};

// Integers of 8 or 16 bits. Signed ones become two's complement.
template <class T>
inline Words widen(const T* from) {
  typename Narrow<T>::Lanes x;
  std::memcpy(&x, from, sizeof x);
  return __builtin_convertvector(x, Words);
}

template <class T>
inline void narrow_one(T* to, Words x) {
  const typename Narrow<T>::Lanes lanes = __builtin_convertvector(x, typename Narrow<T>::Lanes);
  std::memcpy(to, &lanes, sizeof lanes);
}

// The reverse, for four vectors that follow each other. Every value fits the narrow type.
template <class T>
inline void narrow(T* to, Words a, Words b, Words c, Words d) {
  narrow_one(to, a);
  narrow_one(to + kLanes, b);
  narrow_one(to + 2 * kLanes, c);
  narrow_one(to + 3 * kLanes, d);
}

// The same with the upper halves of the values.
inline void narrow_upper(uint16_t* to, Words a, Words b, Words c, Words d) {
  narrow(to, a >> 16, b >> 16, c >> 16, d >> 16);
}

inline Floats square_root(Floats x) {
  return Floats{std::sqrt(x[0]), std::sqrt(x[1]), std::sqrt(x[2]), std::sqrt(x[3])};
}
inline Words larger(Words a, Words b) { return a > b ? a : b; }
inline Words smaller(Words a, Words b) { return a < b ? a : b; }

// The size of a two's complement integer.
inline Words magnitude(Words x) {
  const Words negative = 0u - (x >> 31);
  return (x ^ negative) - negative;
}
// x, which is not negative, with the sign bit of `sign`.
inline Floats with_sign(Floats x, Words sign) { return float_of(bits_of(x) | (sign & 0x80000000u)); }
// The bits of x in `mask`, and those of `rest`.
inline Words masked_or(Words x, uint32_t mask, Words rest) { return (x & mask) | rest; }
// The integer x, negated where the sign bit of `sign` is set. Where `sign` is 0, x is 0.
inline Words negated_with(Words x, Floats sign) {
  const Words negative = 0u - (bits_of(sign) >> 31);
  return (x ^ negative) - negative;
}
// The larger magnitude. It may pass over NaN, or take it for the largest.
inline Floats larger_magnitude(Floats peak, Floats x) {
  return float_of(larger(bits_of(peak), bits_of(x) & 0x7fffffffu));
}
// The integer x, or a number where `number` is NaN.
inline Words unless_nan(Floats number, Words x, uint32_t nan) { return number == number ? x : all(nan); }
// NaN if one of them is. It may be NaN too if there was a value that is infinite or nearly so.
inline Floats nan_of(Floats seen, Floats x) { return seen + x; }

// x, no larger than the bound. Where that is NaN, as infinity times 0 is, x stays, and so does NaN.
inline Floats bounded(Floats x, Floats bound) {
  x = bound < x ? bound : x;
  return x < -bound ? -bound : x;
}

// Whether a lane is above `limit`.
inline bool any_above(Words x, uint32_t limit) {
  bool found = false;
  for (int i = 0; i < kLanes; ++i) found |= x[i] > limit;
  return found;
}

// Whether one of so many codes, a multiple of four vectors, is at most `last`.
inline bool any_up_to(const uint8_t* codes, int size, uint8_t last) {
  bool found = false;
  for (int i = 0; i < size; ++i) found |= codes[i] <= last;
  return found;
}

// Whether a lane has one of these bits.
inline bool any_set(Words x, uint32_t bits) {
  bool found = false;
  for (int i = 0; i < kLanes; ++i) found |= (x[i] & bits) != 0;
  return found;
}

// Whether a lane is at most `limit`.
inline bool any_up_to(Words x, uint32_t limit) {
  bool found = false;
  for (int i = 0; i < kLanes; ++i) found |= x[i] <= limit;
  return found;
}

inline uint32_t largest(Words x) {
  uint32_t result = 0;
  for (int i = 0; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
