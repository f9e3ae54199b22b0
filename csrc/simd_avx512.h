// Sixteen lanes of AVX-512 (F, BW, DQ, VL). simd_portable.h says what each operation means.
#pragma once

// GCC bug 105593: its own header is said to use undefined vectors, which is what it means to do.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>

#include "number_formats.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

constexpr int kLanes = 16;
using Floats = float __attribute__((vector_size(64)));
using Words = uint32_t __attribute__((vector_size(64)));
using SignedWords = int32_t __attribute__((vector_size(64)));

inline Words bits_of(Floats x) { return (Words)x; }
inline Floats float_of(Words x) { return (Floats)x; }

inline Floats all(float x) { return (Floats)_mm512_set1_ps(x); }
inline Words all(uint32_t x) { return (Words)_mm512_set1_epi32(static_cast<int>(x)); }

inline Floats load(const float* from) { return (Floats)_mm512_loadu_ps(from); }
inline Words load(const uint32_t* from) { return (Words)_mm512_loadu_si512(from); }
inline void store(float* to, Floats x) { _mm512_storeu_ps(to, (__m512)x); }

inline __m128i load_16_bytes(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
inline __m256i load_32_bytes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline Words widen(const uint8_t* from) { return (Words)_mm512_cvtepu8_epi32(load_16_bytes(from)); }
inline Words widen(const uint16_t* from) { return (Words)_mm512_cvtepu16_epi32(load_32_bytes(from)); }
inline Words widen(const int8_t* from) { return (Words)_mm512_cvtepi8_epi32(load_16_bytes(from)); }
inline Words widen(const int16_t* from) { return (Words)_mm512_cvtepi16_epi32(load_32_bytes(from)); }

// Packing works within each quarter of a register, and leaves the pieces of its operands interleaved.
inline void store_16_bit(void* to, __m512i packed) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi64(order, packed));
}
inline void store_8_bit(void* to, __m512i packed) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, packed));
}
inline __m512i packed(Words a, Words b) { return _mm512_packs_epi32((__m512i)a, (__m512i)b); }

inline void narrow(int16_t* to, Words a, Words b, Words c, Words d) {
  store_16_bit(to, packed(a, b));
  store_16_bit(to + 2 * kLanes, packed(c, d));
}
inline void narrow(uint16_t* to, Words a, Words b, Words c, Words d) {
  store_16_bit(to, _mm512_packus_epi32((__m512i)a, (__m512i)b));
  store_16_bit(to + 2 * kLanes, _mm512_packus_epi32((__m512i)c, (__m512i)d));
}
inline void narrow(int8_t* to, Words a, Words b, Words c, Words d) {
  store_8_bit(to, _mm512_packs_epi16(packed(a, b), packed(c, d)));
}
inline void narrow(uint8_t* to, Words a, Words b, Words c, Words d) {
  store_8_bit(to, _mm512_packus_epi16(packed(a, b), packed(c, d)));
}
// The places of the upper halves in two registers.
constexpr struct UpperHalves {
  alignas(64) uint16_t places[32];

  constexpr UpperHalves() : places() {
    for (uint16_t i = 0; i < 32; ++i) places[i] = static_cast<uint16_t>(2 * i + 1);
  }
} kUpperHalves;
inline void narrow_upper(uint16_t* to, Words a, Words b, Words c, Words d) {
  const __m512i places = _mm512_load_si512(kUpperHalves.places);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16((__m512i)a, places, (__m512i)b));
  _mm512_storeu_si512(to + 2 * kLanes, _mm512_permutex2var_epi16((__m512i)c, places, (__m512i)d));
}

inline Floats square_root(Floats x) { return (Floats)_mm512_sqrt_ps((__m512)x); }
inline Words larger(Words a, Words b) { return (Words)_mm512_max_epu32((__m512i)a, (__m512i)b); }
inline Words smaller(Words a, Words b) { return (Words)_mm512_min_epu32((__m512i)a, (__m512i)b); }

inline Words magnitude(Words x) { return (Words)_mm512_abs_epi32((__m512i)x); }
inline Floats with_sign(Floats x, Words sign) {
  constexpr int kAOrBAndC = 0b11111000;
  const __m512i sign_bit = _mm512_set1_epi32(INT32_MIN);
  return (Floats)_mm512_ternarylogic_epi32((__m512i)x, (__m512i)sign, sign_bit, kAOrBAndC);
}
inline Words masked_or(Words x, uint32_t mask, Words rest) {
  constexpr int kAAndBOrC = 0b11101010;
  return (Words)_mm512_ternarylogic_epi32((__m512i)x, (__m512i)all(mask), (__m512i)rest, kAAndBOrC);
}
inline Words negated_with(Words x, Floats sign) {
  const __m512i zero = _mm512_setzero_si512();
  return (Words)_mm512_mask_sub_epi32((__m512i)x, _mm512_movepi32_mask((__m512i)sign), zero, (__m512i)x);
}
inline Floats larger_magnitude(Floats peak, Floats x) {
  constexpr int kLargerMagnitudeWithoutSign = 0b10'11;
  return (Floats)_mm512_range_ps((__m512)peak, (__m512)x, kLargerMagnitudeWithoutSign);
}
inline Words unless_nan(Floats number, Words x, uint32_t nan) {
  const __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)number, (__m512)number, _CMP_UNORD_Q);
  return (Words)_mm512_mask_mov_epi32((__m512i)x, is_nan, (__m512i)all(nan));
}
inline Floats nan_of(Floats seen, Floats x) { return seen + x; }

inline Floats bounded(Floats x, Floats bound) {
  x = (Floats)_mm512_min_ps((__m512)bound, (__m512)x);
  return (Floats)_mm512_max_ps((__m512)-bound, (__m512)x);
}

inline bool any_above(Words x, uint32_t limit) {
  return _mm512_cmpgt_epu32_mask((__m512i)x, (__m512i)all(limit)) != 0;
}

inline bool any_up_to(const uint8_t* codes, int size, uint8_t last) {
  __m512i least = _mm512_loadu_si512(codes);
  for (int i = 64; i < size; i += 64) least = _mm512_min_epu8(least, _mm512_loadu_si512(codes + i));
  return _mm512_cmple_epu8_mask(least, _mm512_set1_epi8(static_cast<char>(last))) != 0;
}

inline bool any_set(Words x, uint32_t bits) { return _mm512_test_epi32_mask((__m512i)x, (__m512i)all(bits)) != 0; }

inline bool any_up_to(Words x, uint32_t limit) {
  return _mm512_cmple_epu32_mask((__m512i)x, (__m512i)all(limit)) != 0;
}

inline uint32_t largest(Words x) { return _mm512_reduce_max_epu32((__m512i)x); }

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
