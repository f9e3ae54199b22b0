// One step on a block whose moments are coded. The arithmetic is that of plain_kernels.cpp, in fp32.
#pragma once

#include "coded_block.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

inline Floats choose(Words mask, Floats a, Floats b) {
  return float_of(bits_of(b) ^ ((bits_of(a) ^ bits_of(b)) & mask));
}

// x, no larger than the bound, as in plain_kernels.cpp.
inline Floats bounded(Floats x, Floats bound) {
  x = bound < x ? bound : x;
  return x < -bound ? -bound : x;
}

// An average moves from its nearer end, as in plain_kernels.cpp; only with kCareful may that be x.
struct VectorAverage {
  Floats factor;
  bool from_x;

  explicit VectorAverage(double rate)
      : factor(all(static_cast<float>(rate < 0.5 ? rate : rate - 1.0))), from_x(rate >= 0.5) {}

  template <bool kCareful>
  Floats moved(Floats average, Floats x) const {
    return (kCareful && from_x ? x : average) + factor * (x - average);
  }
};

struct VectorRates {
  VectorAverage fast, slow, square;
  Floats slow_gain, slow_limit, step_size, eps, decay;
  Words skip;  // all ones: elements without a finite gradient stay
  uint32_t suspect_square;  // the bits of half of what a gradient at the limit adds to a second moment

  explicit VectorRates(const Tensor& tensor) : VectorRates(tensor.coefficients, tensor.skipped != nullptr) {}
  VectorRates(const Coefficients& c, bool skips)
      : fast(c.fast_rate),
        slow(c.slow_rate),
        square(c.square_rate),
        slow_gain(all(static_cast<float>(c.slow_gain))),
        slow_limit(all(static_cast<float>(c.slow_limit))),
        step_size(all(static_cast<float>(c.step_size))),
        eps(all(static_cast<float>(c.eps))),
        decay(all(static_cast<float>(c.decay))),
        skip(all(skips ? ~0u : 0u)),
        suspect_square(bits_of(static_cast<float>(c.square_rate * kGradientLimit * kGradientLimit / 2))) {}

  // An average that forgets more than half of itself in a step.
  template <bool kFast>
  bool forgetful() const {
    return (kFast && fast.from_x) || slow.from_x || square.from_x;
  }
};

// A block in memory, as whole groups of vectors.
template <class Storage>
struct BlockView {
  float* parameter;
  const float* gradient;  // times the gradient factor
  typename Storage::Codes codes;
  Scales scales;
  int size;
};

// All ones where x is not finite.
inline Words nonfinite(Floats x) { return 0u - (((bits_of(x) & 0x7fffffffu) + 0x00800000u) >> 31); }

// The gradients from `i` on. Only with kCareful may some be beyond their limit.
template <class Storage, bool kCareful>
ADEMAMIX_INLINE Floats gradients(const BlockView<Storage>& block, int i) {
  const Floats g = load(block.gradient + i);
  if constexpr (!kCareful) return g;
  const Words sign = bits_of(g) & 0x80000000u;
  const Floats bounded = float_of(smaller(bits_of(g) ^ sign, bits_of(all(static_cast<float>(kGradientLimit)))) | sign);
  return choose(nonfinite(g), g, bounded);
}

// Writes the new moments of a block to `moments`. With kCareful, elements may have to stay as they are.
template <class Storage, bool kFast, bool kCareful>
ADEMAMIX_INLINE typename Storage::Watch update_moments(const VectorRates& rate, const BlockView<Storage>& block,
                                                       Moments& moments) {
  const typename Storage::template Decoder<kFast> old(block.codes, block.scales);
  typename Storage::Watch watch;
  for (int i = 0; i < block.size; i += kLanes) {
    const Floats g = gradients<Storage, kCareful>(block, i);
    const auto unless_kept = [&](Floats before, Floats after) {
      return kCareful ? choose(nonfinite(g) & rate.skip, before, after) : after;
    };
    Floats new_fast = all(0.0f);
    if constexpr (kFast) {
      const Floats fast = old.fast(i);
      new_fast = unless_kept(fast, rate.fast.template moved<kCareful>(fast, g));
      store(moments.fast + i, new_fast);
    }
    const Floats slow = old.slow(i);
    const Floats new_slow = unless_kept(slow, rate.slow.template moved<kCareful>(slow, g));
    store(moments.slow + i, new_slow);
    const Floats square = old.square(i);
    const Floats new_square = unless_kept(square, rate.square.template moved<kCareful>(square, g * g));
    store(moments.square + i, new_square);
    watch.see(new_fast, new_slow, new_square);
  }
  return watch;
}

// Updates the vector of parameters that starts at i, from the new moments. With kBounded, slow parts may be bounded.
template <class Storage, bool kFast, bool kBounded, bool kCareful>
ADEMAMIX_INLINE void update_parameters(const VectorRates& rate, const BlockView<Storage>& block, const Moments& moments,
                                       int i) {
  const Floats fast = kFast ? load(moments.fast + i) : gradients<Storage, kCareful>(block, i);
  const Floats slow = load(moments.slow + i);
  const Floats square = load(moments.square + i);
  const Floats root = square_root(square) + rate.eps;
  Floats slow_part = rate.slow_gain * slow;
  if constexpr (kBounded) slow_part = bounded(slow_part, rate.slow_limit * root);
  const Floats direction = (fast + slow_part) / root;
  const Floats before = load(block.parameter + i);
  const Floats after = before - (rate.decay * before + rate.step_size * direction);
  const Words stays = nonfinite(load(block.gradient + i)) & rate.skip;
  store(block.parameter + i, kCareful ? choose(stays, before, after) : after);
}

// Two passes, because a block's scales have to be known before its moments can be encoded. The parameters are left to
// the second: divisions and square roots take long, and the encoding is work to do meanwhile.
//
// False, with nothing written, if a gradient may be beyond its limit: then the block has to be updated carefully.
template <class Storage, bool kFast, bool kBounded, bool kCareful>
ADEMAMIX_INLINE bool update_block(const VectorRates& rate, const BlockView<Storage>& block, uint32_t block_key) {
  Moments moments;
  const typename Storage::Watch watch = update_moments<Storage, kFast, kCareful>(rate, block, moments);
  if (!kCareful && watch.largest_square() >= rate.suspect_square) return false;
  typename Storage::template Encoder<kFast> encoder(moments, watch, block_key, block.size, block.scales);
  for (int i = 0; i < block.size; i += kGroupSize) {
    for (int k = 0; k < kGroupSize; k += kLanes) {
      update_parameters<Storage, kFast, kBounded, kCareful>(rate, block, moments, i + k);
    }
    encoder.write(block.codes, i);
  }
  encoder.finish(block.codes, block.size, block.scales);
  return true;
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
