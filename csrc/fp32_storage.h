// Moments in fp32, which are written as they are.
#pragma once

#include "block.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

struct Float32Storage {
  using FastCode = float;
  using SlowCode = float;
  using SquareCode = float;
  using Codes = CodesOf<FastCode, SlowCode, SquareCode>;
  static constexpr bool kRounds = false;
  static constexpr bool kKeepsMoments = false;

  template <bool kFast, bool kCareful>
  class Coder {
   public:
    ADEMAMIX_INLINE Coder(const Codes& codes, const Scales&, uint32_t, const Moments&) : codes_(codes) {}

    ADEMAMIX_INLINE Floats fast(int i) const { return load(codes_.fast + i); }
    ADEMAMIX_INLINE Floats slow(int i) const { return load(codes_.slow + i); }
    ADEMAMIX_INLINE Floats square(int i) const { return load(codes_.square + i); }

    ADEMAMIX_INLINE void write(int i, const Group& fast, const Group& slow, const Group& square) {
      if constexpr (kFast) store_group(codes_.fast + i, fast);
      store_group(codes_.slow + i, slow);
      store_group(codes_.square + i, square);
    }

    void look_at(const Group&) const {}
    void find_scales() const {}
    void finish(int) const {}

   private:
    Codes codes_;
  };
};

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
