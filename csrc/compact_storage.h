// Moments in 8 and 16 bits. Each block has a power of two that bounds its values, and a code counts the numbers of a
// short floating-point format, from a small offset to the offset plus the value: floating-point where the value is
// above the offset, fixed-point below. Codes are rounded up or down at random, so that averages do not stall.
#pragma once

#include "coded_block.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

// Codes with `kFraction` bits after the leading one, and the offset 2^-kDepth times the block's bound. The bound is a
// power of two and part of the offset: nothing is multiplied by it.
template <uint32_t kFraction, uint32_t kDepth>
struct Grid {
  static constexpr uint32_t kShift = 23 - kFraction;
  Words offset_bits;

  // A scale is the biased exponent of the block's bound. It is 0 for moments that were never written, and the offset
  // is then 0, as are the codes.
  explicit Grid(uint32_t scale) : offset_bits(all(scale == 0 ? 0 : (scale - kDepth) << 23)) {}

  Floats decode(Words code) const { return float_of((code << kShift) + offset_bits) - float_of(offset_bits); }

  Floats decode_signed(Words code) const { return with_sign(decode(magnitude(code)), code); }

  // `random` + `kLow` is below 1 << kShift.
  template <uint32_t kLow>
  Words encode(Floats magnitude, Words random) const {
    return (bits_of(magnitude + float_of(offset_bits)) + random + (kLow - offset_bits)) >> kShift;
  }

  template <uint32_t kLow>
  Words encode_signed(Floats x, Words random) const {
    return negated_with(encode<kLow>(float_of(bits_of(x) & 0x7fffffffu), random), x);
  }
};

struct CompactStorage {
  using FastCode = int8_t;
  using SlowCode = int16_t;
  using SquareCode = uint8_t;
  using Codes = CodesOf<FastCode, SlowCode, SquareCode>;

  struct Grids {
    Grid<4, 7> fast;
    Grid<12, 7> slow;
    Grid<4, 15> square;

    Grids(uint32_t fast_scale, uint32_t slow_scale, uint32_t square_scale)
        : fast(fast_scale), slow(slow_scale), square(square_scale) {}
  };

  template <bool kFast>
  class Decoder {
   public:
    Decoder(const Codes& codes, const Scales& scales)
        : codes_(codes), grids_(kFast ? *scales.fast : 0u, *scales.slow, *scales.square) {}

    Floats fast(int i) const { return grids_.fast.decode_signed(widen(codes_.fast + i)); }
    Floats slow(int i) const { return grids_.slow.decode_signed(widen(codes_.slow + i)); }
    Floats square(int i) const { return grids_.square.decode(widen(codes_.square + i)); }

   private:
    Codes codes_;
    Grids grids_;
  };

  // The largest magnitudes. Those of m1 and m2 may pass over NaN: stored moments are finite, so what makes them NaN is
  // the gradient, and it does the same to the average of its squares.
  struct Watch {
    Floats fast = all(0.0f);
    Floats slow = all(0.0f);
    Words square = all(0u);

    void see(Floats m1, Floats m2, Floats nu) {
      fast = larger_magnitude(fast, m1);
      slow = larger_magnitude(slow, m2);
      square = larger(square, bits_of(nu));
    }
  };

  template <bool kFast>
  class Encoder {
   public:
    ADEMAMIX_INLINE Encoder(const Moments& moments, const Watch& watch, uint32_t block_key, int size,
                            const Scales& scales)
        : moments_(&moments), block_key_(all(block_key)), grids_(choose_grids(watch, size, scales)) {}

    ADEMAMIX_INLINE void write(const Codes& codes, int i) const {
      const GroupWords random(block_key_, i);
      write_group(codes.slow + i, moments_->slow + i, random,
                  [this](Floats x, Words word) { return grids_.slow.template encode_signed<0>(x, word >> 21); });
      if constexpr (kFast) {
        write_group(codes.fast + i, moments_->fast + i, random, [this](Floats x, Words word) {
          return grids_.fast.template encode_signed<0x100>(x, word & 0x7fe00u);
        });
      }
      // A positive square never becomes 0: the division by its root would be one by eps alone.
      write_group(codes.square + i, moments_->square + i, random, [this](Floats x, Words word) {
        const Words code = grids_.square.template encode<0x200>(x, (word << 10) & 0x7fc00u);
        return larger(code, smaller(bits_of(x), all(1u)));
      });
    }

   private:
    // A bound is at least 2^-100, where offsets are normal, and at most 2^126, where sums with offsets are finite.
    static constexpr uint32_t kSmallestScale = 27;
    static constexpr uint32_t kLargestBits = 253u << 23;

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
      return scale < kSmallestScale ? kSmallestScale : scale;
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
    Words block_key_;
    Moments tamed_;
    Grids grids_;
  };
};

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
