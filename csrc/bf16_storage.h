// Moments in bf16, rounded up or down at random, so that averages do not stall.
#pragma once

#include "coded_block.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

struct BFloat16Storage {
  using FastCode = uint16_t;
  using SlowCode = uint16_t;
  using SquareCode = uint16_t;
  using Codes = CodesOf<FastCode, SlowCode, SquareCode>;

  template <bool kFast>
  class Decoder {
   public:
    Decoder(const Codes& codes, const Scales&) : codes_(codes) {}

    Floats fast(int i) const { return float_of(widen(codes_.fast + i) << kBF16Shift); }
    Floats slow(int i) const { return float_of(widen(codes_.slow + i) << kBF16Shift); }
    Floats square(int i) const { return float_of(widen(codes_.square + i) << kBF16Shift); }

   private:
    Codes codes_;
  };

  struct Watch {
    Floats fast = all(0.0f);
    Floats slow = all(0.0f);
    Floats square = all(0.0f);

    void see(Floats new_fast, Floats new_slow, Floats new_square) {
      fast = nan_of(fast, new_fast);
      slow = nan_of(slow, new_slow);
      square = nan_of(square, new_square);
    }

    // At least as large as each: their sum.
    uint32_t largest_square() const { return largest(bits_of(square) & 0x7fffffffu); }
  };

  template <bool kFast>
  class Encoder {
   public:
    ADEMAMIX_INLINE Encoder(const Moments& moments, const Watch& watch, uint32_t block_key, int size, const Scales&)
        : moments_(&moments), block_key_(all(block_key)) {
      const Floats seen = nan_of(nan_of(watch.fast, watch.slow), watch.square);
      if (largest(bits_of(seen) & 0x7fffffffu) > 0x7f800000u) {
        if constexpr (kFast) simplify_nans(simple_.fast, moments.fast, size);
        simplify_nans(simple_.slow, moments.slow, size);
        simplify_nans(simple_.square, moments.square, size);
        moments_ = &simple_;
      }
    }

    ADEMAMIX_INLINE void write(const Codes& codes, int i) const {
      const GroupWords random(block_key_, i);
      if constexpr (kFast) {
        write_group(codes.fast + i, moments_->fast + i, random,
                    [](Floats x, Words word) { return (bits_of(x) + (word & kBF16Mask)) >> kBF16Shift; });
      }
      write_group(codes.slow + i, moments_->slow + i, random,
                  [](Floats x, Words word) { return (bits_of(x) + (word >> kBF16Shift)) >> kBF16Shift; });
      write_group(codes.square + i, moments_->square + i, random,
                  [](Floats x, Words word) {
                    return (bits_of(x) + (more_random_words(word) >> kBF16Shift)) >> kBF16Shift;
                  });
    }

    ADEMAMIX_INLINE void finish(const Codes&, int, const Scales&) const {}

   private:
    // Copies values, without the bits of a NaN that rounding could carry into its exponent or sign.
    ADEMAMIX_NOINLINE static void simplify_nans(float* to, const float* from, int size) {
      for (int i = 0; i < size; ++i) to[i] = from[i] != from[i] ? float_of(0x7fc00000u) : from[i];
    }

    const Moments* moments_;
    Words block_key_;
    Moments simple_;
  };
};

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
