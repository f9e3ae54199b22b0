// Moments in bf16, rounded up or down at random, so that averages do not stall.
#pragma once

#include "block.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

struct BFloat16Storage {
  using FastCode = uint16_t;
  using SlowCode = uint16_t;
  using SquareCode = uint16_t;
  using Codes = CodesOf<FastCode, SlowCode, SquareCode>;
  static constexpr bool kRounds = true;
  static constexpr bool kKeepsMoments = false;

  template <bool kFast, bool kCareful>
  class Coder {
   public:
    ADEMAMIX_INLINE Coder(const Codes& codes, const Scales&, uint32_t block_key, const Moments&)
        : codes_(codes), block_key_(all(block_key)) {}

    ADEMAMIX_INLINE Floats fast(int i) const { return float_of(widen(codes_.fast + i) << kBF16Shift); }
    ADEMAMIX_INLINE Floats slow(int i) const { return float_of(widen(codes_.slow + i) << kBF16Shift); }
    ADEMAMIX_INLINE Floats square(int i) const { return float_of(widen(codes_.square + i) << kBF16Shift); }

    ADEMAMIX_INLINE void write(int i, const Group& fast, const Group& slow, const Group& square) {
      const GroupWords random(block_key_, i);
      if constexpr (kFast) {
        write_upper_group(codes_.fast + i, fast, random,
                          [](Floats x, Words word) { return rounded(x, word & kBF16Mask); });
      }
      write_upper_group(codes_.slow + i, slow, random,
                        [](Floats x, Words word) { return rounded(x, word >> kBF16Shift); });
      write_upper_group(codes_.square + i, square, random,
                        [](Floats x, Words word) { return rounded(x, more_random_words(word) >> kBF16Shift); });
    }

    // A moment that is NaN makes its parameter NaN.
    ADEMAMIX_INLINE void look_at(const Group& parameter) {
      for (int k = 0; k < 4; ++k) seen_ = nan_of(seen_, parameter.of[k]);
    }

    void find_scales() const {}

    // NaN has one code.
    ADEMAMIX_INLINE void finish(int size) const {
      if (kCareful || largest(bits_of(seen_) & 0x7fffffffu) <= 0x7f800000u) return;
      if constexpr (kFast) simplify_nans(codes_.fast, size);
      simplify_nans(codes_.slow, size);
      simplify_nans(codes_.square, size);
    }

   private:
    // The upper half of this is the code. A NaN that was stored has no lower bits that noise could carry into its
    // exponent or sign. One that comes from a gradient may have, and those are updated carefully.
    static Words rounded(Floats x, Words noise) {
      if constexpr (kCareful) x = x == x ? x : float_of(all(0x7fc00000u));
      return bits_of(x) + noise;
    }

    ADEMAMIX_NOINLINE static void simplify_nans(uint16_t* codes, int size) {
      for (int i = 0; i < size; ++i) codes[i] = (codes[i] & 0x7fffu) > 0x7f80u ? 0x7fc0u : codes[i];
    }

    Codes codes_;
    Words block_key_;
    Floats seen_ = all(0.0f);
  };
};

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
