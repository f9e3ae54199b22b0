// Moments in 8 and 16 bits. Each block has a power of two that bounds its values, and a code counts the numbers of a
// short floating-point format, from a small offset to the offset plus the value: floating-point where the value is
// above the offset, fixed-point below. Codes are rounded up or down at random, so that averages do not stall.
#pragma once

#include "coded_block.h"

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
    const Words noise = random_part(random_word);
    return (bits_of(magnitude + float_of(offset_bits)) + noise + (kFormat.random_rest() - offset_bits)) >> kShift;
  }

  Words encode_signed(Floats x, Words random_word) const {
    return negated_with(encode(float_of(bits_of(x) & 0x7fffffffu), random_word), x);
  }

 private:
  // The bits of a random word that are this format's, as the upper ones of those that a code drops.
  static Words random_part(Words word) {
    constexpr int kLeft = kFormat.random_left();
    if constexpr (kLeft > 0) word = word << kLeft;
    if constexpr (kLeft < 0) word = word >> -kLeft;
    constexpr bool kIsTop = kFormat.first_random_bit + kFormat.random_bits == 32;
    if constexpr (kIsTop) return word;
    return word & kFormat.random_mask();
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
        shift_(wide ? WideSquareGrid::kShift : SquareGrid::kShift) {}

  Words offset_bits_;
  uint32_t shift_;
};

struct CompactStorage {
  using FastCode = ademamix::FastCode;
  using SlowCode = ademamix::SlowCode;
  using SquareCode = ademamix::SquareCode;
  using Codes = CodesOf<FastCode, SlowCode, SquareCode>;

  struct Grids {
    FastGrid fast;
    SlowGrid slow;
    SquareGrid square;

    Grids(uint32_t fast_scale, uint32_t slow_scale, uint32_t square_scale)
        : fast(fast_scale), slow(slow_scale), square(square_scale) {}
  };

  template <bool kFast>
  class Decoder {
   public:
    Decoder(const Codes& codes, const Scales& scales)
        : codes_(codes), fast_(kFast ? *scales.fast : 0u), slow_(*scales.slow), square_(*scales.square) {}

    Floats fast(int i) const { return fast_.decode_signed(widen(codes_.fast + i)); }
    Floats slow(int i) const { return slow_.decode_signed(widen(codes_.slow + i)); }
    Floats square(int i) const { return square_(widen(codes_.square + i)); }

   private:
    Codes codes_;
    FastGrid fast_;
    SlowGrid slow_;
    SquareDecoder square_;
  };

  // The largest magnitudes, and the smallest square. Those of averages may pass over NaN: stored moments are finite, so
  // only a gradient makes them NaN, and it does the same to the average of its squares.
  struct Watch {
    Floats fast = all(0.0f);
    Floats slow = all(0.0f);
    Words square = all(0u);
    Words smallest_square = all(~0u);  // less 1, so that 0 is not the smallest

    void see(Floats new_fast, Floats new_slow, Floats new_square) {
      fast = larger_magnitude(fast, new_fast);
      slow = larger_magnitude(slow, new_slow);
      square = larger(square, bits_of(new_square));
      smallest_square = smaller(smallest_square, bits_of(new_square) - 1u);
    }

    uint32_t largest_square() const { return largest(square); }
  };

  template <bool kFast>
  class Encoder {
   public:
    ADEMAMIX_INLINE Encoder(const Moments& moments, const Watch& watch, uint32_t block_key, int size,
                            const Scales& scales)
        : moments_(&moments),
          key_(block_key),
          block_key_(all(block_key)),
          grids_(choose_grids(watch, size, scales)),
          wide_(any_up_to(watch.smallest_square, ((*scales.square - kWellResolved) << 23) - 1)) {}

    ADEMAMIX_INLINE void write(const Codes& codes, int i) {
      const GroupWords random(block_key_, i);
      if constexpr (kFast) {
        write_group(codes.fast + i, moments_->fast + i, random,
                    [this](Floats x, Words word) { return grids_.fast.encode_signed(x, word); });
      }
      write_group(codes.slow + i, moments_->slow + i, random,
                  [this](Floats x, Words word) { return grids_.slow.encode_signed(x, word); });
      if (wide_) return;
      write_group(codes.square + i, moments_->square + i, random,
                  [this](Floats x, Words word) { return not_zero(grids_.square.encode(x, word), x); });
    }

    // Writes the squares of a wide block.
    ADEMAMIX_INLINE void finish(const Codes& codes, int size, const Scales& scales) const {
      if (wide_) write_wide(codes.square, moments_->square, key_, size, scales.square);
    }

   private:
    // A bound is at least 2^-100, where offsets are normal, and at most 2^126, where sums with offsets are finite.
    static constexpr uint32_t kLargestBits = kGreatestExponent << 23;

    // A positive square never becomes 0: the division by its root would be one by eps alone.
    static Words not_zero(Words code, Floats square) { return larger(code, smaller(bits_of(square), all(1u))); }

    // Not a member: an encoder that is known elsewhere could not stay in registers.
    ADEMAMIX_NOINLINE static void write_wide(SquareCode* codes, const float* squares, uint32_t block_key, int size,
                                             uint8_t* scale) {
      *scale = static_cast<uint8_t>(wide_scale(*scale));
      const WideSquareGrid grid(wide_exponent(*scale));
      for (int i = 0; i < size; i += kGroupSize) {
        write_group(codes + i, squares + i, GroupWords(all(block_key), i),
                    [&grid](Floats x, Words word) { return not_zero(grid.encode(x, word), x); });
      }
    }

    ADEMAMIX_INLINE Grids choose_grids(const Watch& watch, int size, const Scales& scales) {
      uint32_t fast = largest(bits_of(watch.fast));
      uint32_t slow = largest(bits_of(watch.slow));
      uint32_t square = largest(watch.square);
      if (fast > kLargestBits || slow > kLargestBits || square > kLargestBits) {
        if constexpr (kFast) fast = tame(tamed_.fast, moments_->fast, size);
        slow = tame(tamed_.slow, moments_->slow, size);
        square = tame(tamed_.square, moments_->square, size);
        moments_ = &tamed_;
      }
      const uint32_t fast_scale = scale_above(fast);
      const uint32_t slow_scale = scale_above(slow);
      const uint32_t square_scale = scale_above(square);
      if constexpr (kFast) *scales.fast = static_cast<uint8_t>(fast_scale);
      *scales.slow = static_cast<uint8_t>(slow_scale);
      *scales.square = static_cast<uint8_t>(square_scale);
      return {fast_scale, slow_scale, square_scale};
    }

    // The scale of the least power of two that is not below the value of these bits.
    static uint32_t scale_above(uint32_t bits) {
      const uint32_t scale = (bits + 0x7fffffu) >> 23;
      return scale < kLeastExponent ? kLeastExponent : scale;
    }

    // Copies values with 0 for those that are not finite and 2^126 for larger ones. Returns the largest magnitude.
    ADEMAMIX_NOINLINE static uint32_t tame(float* to, const float* from, int size) {
      uint32_t peak = 0;
      for (int i = 0; i < size; ++i) {
        const uint32_t bits = bits_of(from[i]) & 0x7fffffffu;
        const uint32_t tamed = bits >= 0x7f800000u ? 0 : bits > kLargestBits ? kLargestBits : bits;
        to[i] = from[i] < 0 ? -float_of(tamed) : float_of(tamed);
        peak = tamed > peak ? tamed : peak;
      }
      return peak;
    }

    const Moments* moments_;
    uint32_t key_;
    Words block_key_;
    Moments tamed_;
    Grids grids_;
    bool wide_;
  };
};

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
