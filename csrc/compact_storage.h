// Moments in 8 and 16 bits. Each block has a power of two that bounds its values, and a code counts the numbers of a
// short floating-point format, from a small offset to the offset plus the value: floating-point where the value is
// above the offset, fixed-point below. Codes are rounded up or down at random, so that averages do not stall.
#pragma once

#include "block.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

// The codes of a format in a block. The bound is a power of two and part of the offset: nothing is multiplied by it.
template <const BlockCode& kFormat>
struct Grid {
  static constexpr uint32_t kShift = kFormat.shift();
  Words offset_bits;

  // A scale is the biased exponent of the block's bound. It is 0 for moments that were never written, and the offset
  // is then 0, as are the codes.
  explicit Grid(uint32_t scale) : offset_bits(all(scale == 0 ? 0 : (scale - kFormat.octaves) << 23)) {}

  Floats decode(Words code) const { return float_of((code << kShift) + offset_bits) - float_of(offset_bits); }

  Floats decode_signed(Words code) const { return with_sign(decode(magnitude(code)), code); }

  Words encode(Floats magnitude, Words random_word) const {
    return (bits_of(magnitude + float_of(offset_bits)) + noise(random_word)) >> kShift;
  }

  Words encode_signed(Floats x, Words random_word) const {
    return negated_with(encode(float_of(bits_of(x) & 0x7fffffffu), random_word), x);
  }

 private:
  // What is added to the bits before they are cut: the bits of a random word that are this format's, as the upper ones
  // of those that a code drops, and the rest, which has none of these bits.
  Words noise(Words word) const {
    const Words rest = kFormat.random_rest() - offset_bits;
    constexpr int kLeft = kFormat.random_left();
    if constexpr (kLeft > 0) word = word << kLeft;
    if constexpr (kLeft < 0) word = word >> -kLeft;
    constexpr bool kIsTop = kFormat.first_random_bit + kFormat.random_bits == 32;
    if constexpr (kIsTop) return word | rest;
    return masked_or(word, kFormat.random_mask(), rest);
  }
};

using FastGrid = Grid<kFastFormat>;
using SlowGrid = Grid<kSlowFormat>;
using SquareGrid = Grid<kSquareFormat>;
using WideSquareGrid = Grid<kWideSquareFormat>;

// The biased exponent that bounds a wide block, and the least wide scale whose bound is not below an exponent.
constexpr uint32_t wide_exponent(uint32_t scale) { return kWideBase + (scale << kWideShift); }
constexpr uint32_t wide_scale(uint32_t exponent) {
  const uint32_t scale = exponent <= kWideBase ? 0 : (exponent - kWideBase + (1u << kWideShift) - 1) >> kWideShift;
  return scale < kFirstWideScale ? kFirstWideScale : scale;
}

// Reads the squares of a block of either kind.
class SquareDecoder {
 public:
  explicit SquareDecoder(uint32_t scale)
      : SquareDecoder(scale, kFirstWideScale <= scale && scale <= kLastWideScale) {}

  Floats operator()(Words code) const { return float_of((code << shift_) + offset_bits_) - float_of(offset_bits_); }

 private:
  SquareDecoder(uint32_t scale, bool wide)
      : offset_bits_(wide ? WideSquareGrid(wide_exponent(scale)).offset_bits : SquareGrid(scale).offset_bits),
        shift_(all(wide ? WideSquareGrid::kShift : SquareGrid::kShift)) {}

  Words offset_bits_;
  Words shift_;
};

struct CompactStorage {
  using FastCode = ademamix::FastCode;
  using SlowCode = ademamix::SlowCode;
  using SquareCode = ademamix::SquareCode;
  using Codes = CodesOf<FastCode, SlowCode, SquareCode>;
  static constexpr bool kRounds = true;
  static constexpr bool kKeepsMoments = true;

  // The largest magnitudes of the moments of a block, as bits.
  struct Peaks {
    uint32_t fast, slow, square;
  };

  // A bound is at least 2^-100, where offsets are normal, and at most 2^126, where sums with offsets are finite.
  static constexpr uint32_t kLargestBits = kGreatestExponent << 23;

  // The scale of the least power of two that is not below the value of these bits.
  static uint32_t scale_above(uint32_t bits) {
    const uint32_t scale = (bits + 0x7fffffu) >> 23;
    return scale < kLeastExponent ? kLeastExponent : scale;
  }

  // A positive square never becomes 0: the division by its root would be one by eps alone.
  static Words not_zero(Words code, Floats square) { return larger(code, smaller(bits_of(square), all(1u))); }

  // Reads moments by the scales of a block, and writes slow averages and squares by the same ones: most blocks keep
  // them from one step to the next. What no longer fits is encoded once more at the end, as is a positive square whose
  // code is 0 by then: it is not well resolved. So no step waits for the largest of a block. The scales of fast averages
  // change in every sixth block, too often to predict: these are written last, by their new scale, which is known by then.
  template <bool kFast, bool kCareful>
  class Coder {
   public:
    ADEMAMIX_INLINE Coder(const Codes& codes, const Scales& scales, uint32_t block_key, Moments& moments)
        : moments_(moments),
          codes_(codes),
          scales_(scales),
          key_(block_key),
          block_key_(all(block_key)),
          fast_(kFast ? *scales.fast : 0u),
          slow_(*scales.slow),
          square_(*scales.square),
          old_square_(*scales.square) {}

    ADEMAMIX_INLINE Floats fast(int i) const { return fast_.decode_signed(widen(codes_.fast + i)); }
    ADEMAMIX_INLINE Floats slow(int i) const { return slow_.decode_signed(widen(codes_.slow + i)); }
    ADEMAMIX_INLINE Floats square(int i) const { return old_square_(widen(codes_.square + i)); }

    ADEMAMIX_INLINE void write(int i, const Group& fast, const Group& slow, const Group& square) {
      const GroupWords random(block_key_, i);
      write_group(codes_.slow + i, slow, random, [this](Floats x, Words word) { return slow_.encode_signed(x, word); });
      write_group(codes_.square + i, square, random, [this](Floats x, Words word) { return square_.encode(x, word); });
      store_group(moments_.square + i, square);
      for (int k = 0; k < 4; ++k) {
        if constexpr (kFast) fast_peak_ = larger_magnitude(fast_peak_, fast.of[k]);
        slow_peak_ = larger_magnitude(slow_peak_, slow.of[k]);
        square_peak_ = larger(square_peak_, bits_of(square.of[k]));
      }
    }

    void look_at(const Group&) const {}

    ADEMAMIX_INLINE void find_scales() {
      if constexpr (kFast) fast_scale_ = scale_above(largest(bits_of(fast_peak_)));
    }

    ADEMAMIX_INLINE void finish(int size) {
      if constexpr (kFast) {
        *scales_.fast = static_cast<uint8_t>(fast_scale_);
        encode_fast(FastGrid(fast_scale_), codes_.fast, moments_.fast, key_, size);
      }
      const bool fits = (!kFast || !any_above(bits_of(fast_peak_), kLargestBits)) &&
                        is_scale_of(*scales_.slow, bits_of(slow_peak_)) && is_scale_of(*scales_.square, square_peak_);
      if (fits && !has_badly_resolved(size)) return;
      encode_again<kFast>(moments_, peaks(size), codes_, scales_, key_, size);
    }

   private:
    // Squares that are not well resolved have no larger code.
    static constexpr uint8_t kBadlyResolvedCode =
        (1 << kSquareFormat.mantissa_bits >> (kWellResolved - kSquareFormat.octaves)) + 1;

    // Whether this is the scale for the largest of these values.
    static bool is_scale_of(uint32_t scale, Words values) {
      const uint32_t least = scale == kLeastExponent ? 0 : ((scale - 1) << 23) + 1;
      return scale >= kLeastExponent && !any_above(values, scale << 23) && (least == 0 || any_above(values, least - 1));
    }

    // Those that were found on the way may have passed over NaN, which there is only with kCareful.
    ADEMAMIX_INLINE Peaks peaks(int size) const {
      if constexpr (kCareful) {
        return {kFast ? largest_magnitude(moments_.fast, size) : 0, largest_magnitude(moments_.slow, size),
                largest_magnitude(moments_.square, size)};
      }
      return {kFast ? largest(bits_of(fast_peak_)) : 0, largest(bits_of(slow_peak_)), largest(square_peak_)};
    }

    // Whether a positive square is too small for the scale, which fits. Codes tell that mostly; elements that never had
    // a gradient have small ones too.
    ADEMAMIX_INLINE bool has_badly_resolved(int size) const {
      return any_up_to(codes_.square, size, kBadlyResolvedCode) &&
             CompactStorage::has_badly_resolved(moments_.square, size, *scales_.square);
    }

    Moments& moments_;
    Codes codes_;
    Scales scales_;
    uint32_t key_;
    Words block_key_;
    FastGrid fast_;
    SlowGrid slow_;
    SquareGrid square_;
    SquareDecoder old_square_;
    uint32_t fast_scale_ = 0;
    Floats fast_peak_ = all(0.0f);
    Floats slow_peak_ = all(0.0f);
    Words square_peak_ = all(0u);
  };

 private:
  // Encodes what the scales of before do not fit. It takes copies, and nothing of the coder itself, which could
  // otherwise not stay in registers.
  template <bool kFast>
  ADEMAMIX_NOINLINE static void encode_again(Moments& moments, Peaks peaks, Codes codes, Scales scales,
                                             uint32_t key, int size) {
    auto [fast, slow, square] = peaks;
    const bool tames = fast > kLargestBits || slow > kLargestBits || square > kLargestBits;
    if (tames) {
      if constexpr (kFast) fast = tame(moments.fast, size);
      slow = tame(moments.slow, size);
      square = tame(moments.square, size);
    }
    if constexpr (kFast) {
      if (tames || scale_above(fast) != *scales.fast) {
        *scales.fast = static_cast<uint8_t>(scale_above(fast));
        encode_fast(FastGrid(*scales.fast), codes.fast, moments.fast, key, size);
      }
    }
    if (tames || scale_above(slow) != *scales.slow) {
      *scales.slow = static_cast<uint8_t>(scale_above(slow));
      const SlowGrid grid(*scales.slow);
      encode(codes.slow, moments.slow, key, size, [&](Floats x, Words word) { return grid.encode_signed(x, word); });
    }
    if (has_badly_resolved(moments.square, size, scale_above(square))) {
      *scales.square = static_cast<uint8_t>(wide_scale(scale_above(square)));
      encode_squares(WideSquareGrid(wide_exponent(*scales.square)), codes.square, moments.square, key, size);
    } else if (tames || scale_above(square) != *scales.square) {
      *scales.square = static_cast<uint8_t>(scale_above(square));
      encode_squares(SquareGrid(*scales.square), codes.square, moments.square, key, size);
    }
  }

  ADEMAMIX_INLINE static void encode_fast(const FastGrid& grid, FastCode* codes, const float* fast, uint32_t key,
                                          int size) {
    encode(codes, fast, key, size, [&](Floats x, Words word) { return grid.encode_signed(x, word); });
  }

  template <class Grid>
  static void encode_squares(const Grid& grid, SquareCode* codes, const float* squares, uint32_t key, int size) {
    encode(codes, squares, key, size, [&](Floats x, Words word) { return not_zero(grid.encode(x, word), x); });
  }

  // Whether a positive square is too small for the codes of a scale.
  static bool has_badly_resolved(const float* squares, int size, uint32_t scale) {
    Words smallest = all(~0u);  // less 1, so that 0 is not the smallest
    for (int i = 0; i < size; i += kLanes) smallest = smaller(smallest, bits_of(load(squares + i)) - 1u);
    return any_up_to(smallest, ((scale - kWellResolved) << 23) - 1);
  }

  template <class Code, class Encode>
  ADEMAMIX_INLINE static void encode(Code* codes, const float* moments, uint32_t key, int size, const Encode& code) {
    for (int i = 0; i < size; i += kGroupSize) {
      write_group(codes + i, load_group(moments + i), GroupWords(all(key), i), code);
    }
  }

  static uint32_t largest_magnitude(const float* x, int size) {
    Words peak = all(0u);
    for (int i = 0; i < size; i += kLanes) peak = larger(peak, bits_of(load(x + i)) & 0x7fffffffu);
    return largest(peak);
  }

  // Replaces values that are not finite by 0 and larger ones by 2^126. Returns the largest magnitude.
  static uint32_t tame(float* x, int size) {
    uint32_t peak = 0;
    for (int i = 0; i < size; ++i) {
      const uint32_t bits = bits_of(x[i]) & 0x7fffffffu;
      const uint32_t tamed = bits >= 0x7f800000u ? 0 : bits > kLargestBits ? kLargestBits : bits;
      x[i] = x[i] < 0 ? -float_of(tamed) : float_of(tamed);
      peak = tamed > peak ? tamed : peak;
    }
    return peak;
  }
};

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
