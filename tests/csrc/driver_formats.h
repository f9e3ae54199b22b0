// The number formats as the driver knows them: a table, and bf16 and fp16 written for plainness. Independent of
// number_formats.h, which is what they check.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "step.h"

namespace formats {

using ademamix::Dtype;

// `rounding` is the largest relative error of storing a parameter (to nearest), `smallest` half of the least positive
// value; `arithmetic` allows for the roundings of one step in the dtype that it is computed in.
struct Format {
  Dtype dtype;
  const char* name;
  size_t bytes;
  int fraction_bits;
  double rounding, smallest, arithmetic;
};
inline constexpr Format kF32{Dtype::f32, "f32", 4, 23, 0x1p-24, 0x1p-150, 0x1p-21};
inline constexpr Format kF64{Dtype::f64, "f64", 8, 52, 0x1p-53, 0, 0x1p-50};
inline constexpr Format kBF16{Dtype::bf16, "bf16", 2, 7, 0x1p-8, 0x1p-134, 0x1p-21};
inline constexpr Format kF16{Dtype::f16, "f16", 2, 10, 0x1p-11, 0x1p-25, 0x1p-21};
inline const Format* const kFormats[] = {&kF32, &kF64, &kBF16, &kF16};
inline const Format* const kHalves[] = {&kBF16, &kF16};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline int infinity_code(const Format& half) { return 0x7fff >> half.fraction_bits << half.fraction_bits; }

inline double magnitude(const Format& half, int code) {
  const int exponent = code >> half.fraction_bits;
  const int fraction = code & ((1 << half.fraction_bits) - 1);
  const int bias = (1 << (14 - half.fraction_bits)) - 1;
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - half.fraction_bits);
  return std::ldexp((1 << half.fraction_bits) + fraction, exponent - bias - half.fraction_bits);
}

inline double decode(const Format& half, int code) {
  const int top = code & 0x7fff;
  const double size = top > infinity_code(half) ? kNaN : top == infinity_code(half) ? kInfinity : magnitude(half, top);
  return code & 0x8000 ? -size : size;
}

// The largest code whose magnitude is at most |x|.
inline int code_below(const Format& half, double x) {
  int low = 0;
  int high = infinity_code(half);
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (magnitude(half, middle) <= std::abs(x) ? low : high) = middle;
  }
  return std::isinf(x) ? infinity_code(half) : low;
}

inline int encode(const Format& half, double x) {
  if (std::isnan(x)) return 0x7fff;
  int code = code_below(half, x);
  if (!std::isinf(x)) {
    const double below = std::abs(x) - magnitude(half, code);
    const double above = magnitude(half, code + 1) - std::abs(x);  // for the largest code: where infinity would be
    if (above < below || (above == below && code % 2 == 1)) ++code;
  }
  return std::signbit(x) ? code | 0x8000 : code;
}

// A bf16 number with a correction: so many 256ths of the way to the next one, or the one before. 0 has no correction.
inline constexpr double kMasterRounding = 0x1p-16, kMasterSmallest = 0x1p-142;
inline double master(int code, int correction) {
  const double x = decode(kBF16, code);
  if (x == 0 || std::isnan(x) || correction == 0) return x;
  const int top = code & 0x7fff;
  const double size = magnitude(kBF16, top);  // of infinity: where it would be
  const double next = magnitude(kBF16, correction > 0 ? top + 1 : top - 1);
  return std::copysign(size + (next - size) * std::abs(correction) / 256, x);
}

}  // namespace formats
