#include "driver_reference.h"

#include <algorithm>
#include <cmath>

#define ADEMAMIX_ISA reference
#include "number_formats.h"

namespace driver {
namespace {

using ademamix::kBlockSize;
using ademamix::reference::RoundingStream;

constexpr double kLargest = 0x1p126;

uint32_t bits(float x) {
  uint32_t result;
  std::memcpy(&result, &x, sizeof result);
  return result;
}

// The code of a value in a block that is bounded by 2^(scale - 127), where `random` decides in which direction the
// value is rounded.
int encode_offset(const CodeFormat& format, double x, int scale, uint32_t random) {
  const double offset = std::ldexp(1, -format.depth);
  const float shifted = static_cast<float>(std::ldexp(std::abs(x), 127 - scale)) + static_cast<float>(offset);
  const int exponent = std::ilogb(shifted);
  const double fraction = std::ldexp(static_cast<double>(shifted), -exponent) - 1;
  const double place = std::ldexp(exponent + format.depth + fraction, format.fraction);
  const int code = static_cast<int>(std::floor(place + std::ldexp(random, format.fraction - 23)));
  return x < 0 ? -code : code;
}

double decode_offset(const CodeFormat& format, int code, int scale) {
  if (scale == 0) return 0;
  const int places = 1 << format.fraction;
  const int size = std::abs(code);
  const double shifted = std::ldexp(1 + size % places / static_cast<double>(places), size / places - format.depth);
  const double value = std::ldexp(shifted - std::ldexp(1, -format.depth), scale - 127);
  return code < 0 ? -value : value;
}

int scale_for(const std::vector<float>& values) {
  double peak = 0;
  for (float x : values) {
    if (std::isfinite(x)) peak = std::max(peak, std::min(std::abs(static_cast<double>(x)), kLargest));
  }
  if (peak == 0) return 27;
  int exponent;
  const double fraction = std::frexp(peak, &exponent);  // in [0.5, 1)
  return std::clamp(127 + (fraction > 0.5 ? exponent : exponent - 1), 27, 253);
}

struct Words {
  uint32_t first, second;
};

Words words_of(uint32_t block_key, uint32_t lane) {
  uint32_t w = block_key + lane * 0x9e3779b9u;
  w ^= w >> 16;
  w *= 0x7feb352du;
  w ^= w >> 15;
  uint32_t v = w * 0x846ca68bu;
  v ^= v >> 16;
  return {w, v};
}

int encode_bf16(float x, uint32_t random) {
  return std::isnan(x) ? 0x7fc0 : static_cast<int>((bits(x) + random) >> 16 & 0xffff);
}

// Whether a block of squares that is bounded by 2^(scale - 127) has some of at most 2^-17 of that, but for 0.
bool needs_wide_codes(const std::vector<float>& squares, int scale) {
  return std::any_of(squares.begin(), squares.end(),
                     [scale](float x) { return x > 0 && x <= std::ldexp(1.0, scale - 127 - 17); });
}

bool is_wide(int scale) { return scale >= 2 && scale <= 26; }

// Wide scales stand for the bounds 2^-66, 2^-58, ..., 2^126.
int exponent_of_wide(int scale) { return -66 + 8 * (scale - 2); }

void write_compact(CodedMoment& moment, const std::vector<float>& values, size_t first, size_t block,
                   const std::vector<uint32_t>& random) {
  int scale = scale_for(values);
  CodeFormat format = moment.format;
  int random_places = 0;
  moment.scales[block] = static_cast<uint8_t>(scale);
  if (!format.is_signed && needs_wide_codes(values, scale)) {
    int wide = 2;
    while (exponent_of_wide(wide) < scale - 127) ++wide;
    moment.scales[block] = static_cast<uint8_t>(wide);
    scale = exponent_of_wide(wide) + 127;
    format = kWideSquareCode;
    random_places = 2;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = std::isfinite(values[i]) ? std::clamp<double>(values[i], -kLargest, kLargest) : 0;
    const int code = encode_offset(format, x, scale, random[i] << random_places);
    moment.put(first + i, !format.is_signed && x > 0 ? std::max(code, 1) : code);
  }
}

void write_bf16(CodedMoment& moment, const std::vector<float>& values, size_t first,
                const std::vector<uint32_t>& random) {
  for (size_t i = 0; i < values.size(); ++i) moment.put(first + i, encode_bf16(values[i], random[i]));
}

// The three upper bytes of x, rounded up or down by random bits, or to nearest. Of NaN, those of one NaN.
uint32_t upper_bytes(float x, bool stochastic, uint32_t random) {
  const uint32_t bytes = std::isnan(x) ? 0x7fc00000u : bits(x);
  const uint32_t below = bytes & 0xffu, above = bytes >> 8;
  if (stochastic) return above + (below + (random & 0xffu) >= 0x100u);
  return above + (below > 0x80u || (below == 0x80u && above % 2 == 1));
}

void write_parameter(CodedExample& e, size_t i, float x, const Flags& flags, const RoundingStream& random) {
  Array& parameter = e.parameter;
  if (flags.corrected) {
    const uint32_t bytes = upper_bytes(x, flags.stochastic, random(i));
    e.correction[i] = static_cast<int8_t>(bytes & 0xffu);
    parameter.put(i, static_cast<uint16_t>((bytes >> 8) + (e.correction[i] < 0)));
  } else if (flags.stochastic && parameter.format == &kBF16) {
    parameter.put(i, static_cast<uint16_t>(encode_bf16(x, random(i) & 0xffffu)));
  } else {
    parameter.set(i, static_cast<double>(x));
  }
}

struct Rates {
  double fast, slow, square;
  float slow_gain, slow_limit, step_size, eps, decay;

  explicit Rates(const ademamix::Coefficients& c)
      : fast(c.fast_rate),
        slow(c.slow_rate),
        square(c.square_rate),
        slow_gain(static_cast<float>(c.slow_gain)),
        slow_limit(static_cast<float>(c.slow_limit)),
        step_size(static_cast<float>(c.step_size)),
        eps(static_cast<float>(c.eps)),
        decay(static_cast<float>(c.decay)) {}
};

float moved(float average, float x, double rate) {
  return rate < 0.5 ? average + static_cast<float>(rate) * (x - average)
                    : x - static_cast<float>(1.0 - rate) * (x - average);
}

void step_block(CodedExample& e, const Flags& flags, float factor, size_t first, size_t count, size_t block,
                const RoundingStream& element_words, uint32_t block_key) {
  const Rates rate(e.coefficients);
  std::vector<float> new_fast(count), new_slow(count), new_square(count);
  std::vector<uint32_t> random_fast(count), random_slow(count), random_square(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = first + i;
    const float g = gradient_in_fp32(e.gradient[at], factor);
    const float fast = static_cast<float>(e.fast.value(at, block));
    const float slow = static_cast<float>(e.slow.value(at, block));
    const float square = static_cast<float>(e.square.value(at, block));
    const double value = flags.corrected ? master(e.parameter.at<uint16_t>(at), e.correction[at]) : e.parameter[at];
    const float before = static_cast<float>(value);
    const bool skip = flags.skip && !std::isfinite(g);
    new_fast[i] = flags.fast ? moved(fast, g, rate.fast) : g;
    new_slow[i] = moved(slow, g, rate.slow);
    new_square[i] = moved(square, g * g, rate.square);
    const float root = std::sqrt(new_square[i]) + rate.eps;
    const float slow_part = rate.slow_gain * new_slow[i], bound = rate.slow_limit * root;
    const float direction = (new_fast[i] + (slow_part > bound ? bound : slow_part < -bound ? -bound : slow_part)) / root;
    const float after = before - (rate.decay * before + rate.step_size * direction);
    write_parameter(e, at, skip ? before : after, flags, element_words);
    if (skip) new_fast[i] = fast, new_slow[i] = slow, new_square[i] = square;
    e.skipped += skip;

    const Words w = words_of(block_key, static_cast<uint32_t>(i));
    const bool compact = e.storage == Storage::compact;
    random_fast[i] = compact ? (w.first & 0x7fe00u) | 0x100u : w.first & 0xffffu;
    random_slow[i] = compact ? w.first >> 21 : w.first >> 16;
    random_square[i] = compact ? ((w.first << 10) & 0x7fc00u) | 0x200u : w.second >> 16;
  }
  if (e.storage == Storage::compact) {
    if (flags.fast) write_compact(e.fast, new_fast, first, block, random_fast);
    write_compact(e.slow, new_slow, first, block, random_slow);
    write_compact(e.square, new_square, first, block, random_square);
  } else {
    if (flags.fast) write_bf16(e.fast, new_fast, first, random_fast);
    write_bf16(e.slow, new_slow, first, random_slow);
    write_bf16(e.square, new_square, first, random_square);
  }
}

}  // namespace

int CodedMoment::code(size_t i) const {
  const int low = codes[i * format.bytes];
  const int value = format.bytes == 1 ? low : low | codes[2 * i + 1] << 8;
  const int sign = 1 << (8 * format.bytes - 1);
  return format.is_signed && value >= sign ? value - 2 * sign : value;
}

void CodedMoment::put(size_t i, int code) {
  codes[i * format.bytes] = static_cast<unsigned char>(code & 0xff);
  if (format.bytes == 2) codes[2 * i + 1] = static_cast<unsigned char>(code >> 8 & 0xff);
}

double CodedMoment::value(size_t i, size_t block) const {
  if (format.fraction == 0) return decode(kBF16, code(i));
  const int scale = scales[block];
  if (!format.is_signed && is_wide(scale)) {
    return decode_offset(kWideSquareCode, code(i), exponent_of_wide(scale) + 127);
  }
  return decode_offset(format, code(i), scale);
}

CodedExample::CodedExample(Storage s, const Format& p, const Format& g, size_t rows, size_t row)
    : storage(s),
      row_size(row),
      blocks_per_row((row + kBlockSize - 1) / kBlockSize),
      parameter(p, 0, rows * row),
      gradient(g, 0, rows * row),
      fast(s == Storage::compact ? kFastCode : kBF16Code, rows * row, rows * blocks_per_row),
      slow(s == Storage::compact ? kSlowCode : kBF16Code, rows * row, rows * blocks_per_row),
      square(s == Storage::compact ? kSquareCode : kBF16Code, rows * row, rows * blocks_per_row),
      correction(rows * row) {}

void step_by_reference(CodedExample& e, const Flags& flags, double factor) {
  const RoundingStream element_words(kSeed, e.index, static_cast<int64_t>(e.coefficients.step));
  RoundingStream block_words = element_words;
  block_words.absorb(1);
  for (size_t first = 0; first < e.parameter.size;) {
    const size_t block = e.block_of(first);
    const size_t count = std::min<size_t>(kBlockSize, e.row_size - first % e.row_size);
    step_block(e, flags, static_cast<float>(factor), first, count, block, element_words, block_words(block));
    first += count;
  }
}

}  // namespace driver
