// The numbers of the formats that moments are stored in and values are rounded by: those of `src/ademamix/formats.py`,
// which explains them. A test compares them one by one, through `FORMATS` of the bindings.
#pragma once

#include <cstdint>

namespace ademamix {

constexpr int kBlockSize = 128;
constexpr int64_t kLeastRow = 64;
constexpr int64_t kLeastSize = 4096;
constexpr int64_t kLeastVector = 1 << 17;
constexpr uint32_t kLeastExponent = 27;
constexpr uint32_t kGreatestExponent = 253;

constexpr double kGradientLimit = 0x1p62;

constexpr uint32_t kFirstMixer = 0x7feb352du;
constexpr uint32_t kSecondMixer = 0x846ca68bu;
constexpr uint32_t kFirstKey = 0x243f6a88u;
constexpr uint32_t kSecondKey = 0x85a308d3u;
constexpr uint32_t kMomentDomain = 1;
constexpr uint32_t kLaneStep = 0x9e3779b9u;

constexpr int kBF16Shift = 16;
constexpr uint32_t kBF16Mask = (1u << kBF16Shift) - 1;

using Correction = int8_t;
constexpr int kMasterShift = 8;
constexpr uint32_t kMasterMask = (1u << kMasterShift) - 1;

using FastCode = int8_t;
using SlowCode = int16_t;
using SquareCode = uint8_t;

// An offset float, and which bits of a random word it is rounded by.
struct BlockCode {
  int mantissa_bits;
  int octaves;
  int first_random_bit;
  int random_bits;

  constexpr int shift() const { return 23 - mantissa_bits; }
  constexpr int random_left() const { return shift() - random_bits - first_random_bit; }
  constexpr uint32_t random_mask() const { return ((1u << random_bits) - 1) << (shift() - random_bits); }
  constexpr uint32_t random_rest() const { return 1u << (shift() - random_bits) >> 1; }
};

inline constexpr BlockCode kFastFormat{4, 7, 9, 10};
inline constexpr BlockCode kSlowFormat{12, 7, 21, 11};
inline constexpr BlockCode kSquareFormat{4, 15, 0, 9};
inline constexpr BlockCode kWideSquareFormat{2, 60, 0, 9};

constexpr uint32_t kFirstWideScale = 2;
constexpr uint32_t kLastWideScale = 26;
constexpr uint32_t kWideBase = 45;
constexpr uint32_t kWideShift = 3;
constexpr uint32_t kWellResolved = 17;

}  // namespace ademamix
