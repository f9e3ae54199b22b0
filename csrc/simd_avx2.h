// Eight lanes of AVX2. simd_portable.h says what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "number_formats.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

constexpr int kLanes = 8;
using Floats = float __attribute__((vector_size(32)));
using Words = uint32_t __attribute__((vector_size(32)));
using SignedWords = int32_t __attribute__((vector_size(32)));

inline Words bits_of(Floats x) { return (Words)x; }
inline Floats float_of(Words x) { return (Floats)x; }

inline Floats all(float x) { return (Floats)_mm256_set1_ps(x); }
inline Words all(uint32_t x) { return (Words)_mm256_set1_epi32(static_cast<int>(x)); }

inline Floats load(const float* from) { return (Floats)_mm256_loadu_ps(from); }
inline Words load(const uint32_t* from) { return (Words)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void store(float* to, Floats x) { _mm256_storeu_ps(to, (__m256)x); }

inline __m128i load_8_bytes(const void* from) { return _mm_loadl_epi64(static_cast<const __m128i*>(from)); }
inline __m128i load_16_bytes(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline Words widen(const uint8_t* from) { return (Words)_mm256_cvtepu8_epi32(load_8_bytes(from)); }
inline Words widen(const uint16_t* from) { return (Words)_mm256_cvtepu16_epi32(load_16_bytes(from)); }
inline Words widen(const int8_t* from) { return (Words)_mm256_cvtepi8_epi32(load_8_bytes(from)); }
inline Words widen(const int16_t* from) { return (Words)_mm256_cvtepi16_epi32(load_16_bytes(from)); }

// Packing works within each half of a register, and leaves the pieces of its operands interleaved.
inline void store_16_bit(void* to, __m256i packed) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0b11'01'10'00));
}
inline void store_8_bit(void* to, __m256i packed) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(packed, order));
}
inline __m256i packed(Words a, Words b) { return _mm256_packs_epi32((__m256i)a, (__m256i)b); }

inline void narrow(int16_t* to, Words a, Words b, Words c, Words d) {
  store_16_bit(to, packed(a, b));
  store_16_bit(to + 2 * kLanes, packed(c, d));
}
inline void narrow(uint16_t* to, Words a, Words b, Words c, Words d) {
  store_16_bit(to, _mm256_packus_epi32((__m256i)a, (__m256i)b));
  store_16_bit(to + 2 * kLanes, _mm256_packus_epi32((__m256i)c, (__m256i)d));
}
inline void narrow(int8_t* to, Words a, Words b, Words c, Words d) {
  store_8_bit(to, _mm256_packs_epi16(packed(a, b), packed(c, d)));
}
inline void narrow(uint8_t* to, Words a, Words b, Words c, Words d) {
  store_8_bit(to, _mm256_packus_epi16(packed(a, b), packed(c, d)));
}
inline void narrow_upper(uint16_t* to, Words a, Words b, Words c, Words d) {
  narrow(to, a >> 16, b >> 16, c >> 16, d >> 16);
}

inline Floats square_root(Floats x) { return (Floats)_mm256_sqrt_ps((__m256)x); }
inline Words larger(Words a, Words b) { return (Words)_mm256_max_epu32((__m256i)a, (__m256i)b); }
inline Words smaller(Words a, Words b) { return (Words)_mm256_min_epu32((__m256i)a, (__m256i)b); }

inline Words magnitude(Words x) { return (Words)_mm256_abs_epi32((__m256i)x); }
inline Floats with_sign(Floats x, Words sign) { return float_of(bits_of(x) | (sign & 0x80000000u)); }
inline Words masked_or(Words x, uint32_t mask, Words rest) { return (x & mask) | rest; }
inline Words negated_with(Words x, Floats sign) { return (Words)_mm256_sign_epi32((__m256i)x, (__m256i)sign); }
inline Floats larger_magnitude(Floats peak, Floats x) {
  return float_of(larger(bits_of(peak), bits_of(x) & 0x7fffffffu));
}
inline Words unless_nan(Floats number, Words x, uint32_t nan) {
  const __m256 is_nan = _mm256_cmp_ps((__m256)number, (__m256)number, _CMP_UNORD_Q);
  return (Words)_mm256_blendv_ps((__m256)x, (__m256)all(nan), is_nan);
}
inline Floats nan_of(Floats seen, Floats x) { return seen + x; }

inline Floats bounded(Floats x, Floats bound) {
  x = bound < x ? bound : x;
  return x < -bound ? -bound : x;
}

inline bool any_above(Words x, uint32_t limit) {
  const __m256i v = (__m256i)x;
  const __m256i within = _mm256_cmpeq_epi32(_mm256_max_epu32(v, (__m256i)all(limit)), (__m256i)all(limit));
  return _mm256_movemask_epi8(within) != -1;
}

inline bool any_up_to(const uint8_t* codes, int size, uint8_t last) {
  __m256i found = _mm256_setzero_si256();
  const __m256i limit = _mm256_set1_epi8(static_cast<char>(last));
  for (int i = 0; i < size; i += 32) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_min_epu8(code, limit), code));
  }
  return _mm256_movemask_epi8(found) != 0;
}

inline bool any_set(Words x, uint32_t bits) { return !_mm256_testz_si256((__m256i)x, (__m256i)all(bits)); }

inline bool any_up_to(Words x, uint32_t limit) {
  const __m256i v = (__m256i)x;
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_min_epu32(v, (__m256i)all(limit)), v)) != 0;
}

inline uint32_t largest(Words x) {
  const __m256i v = (__m256i)x;
  __m128i rest = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  rest = _mm_max_epu32(rest, _mm_shuffle_epi32(rest, 0b01'00'11'10));
  rest = _mm_max_epu32(rest, _mm_shuffle_epi32(rest, 0b10'11'00'01));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(rest));
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
