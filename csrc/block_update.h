// One step on a block. The arithmetic is that of double_kernels.cpp, in fp32.
#pragma once

#include "block.h"
#include "parameter_vectors.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

inline Floats choose(Words mask, Floats a, Floats b) {
  return float_of(bits_of(b) ^ ((bits_of(a) ^ bits_of(b)) & mask));
}

// An average moves from its nearer end, as in double_kernels.cpp; only with kCareful may that be x.
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
        skip(all(skips ? ~0u : 0u)) {}

  // An average that forgets more than half of itself in a step.
  template <bool kFast>
  bool forgetful() const {
    return (kFast && fast.from_x) || slow.from_x || square.from_x;
  }
};

// A block in memory, as whole groups of vectors.
template <class Storage, class Parameters, class Gradient>
struct BlockView {
  Parameters parameter;  // a pointer, or one to masters
  const Gradient* gradient;  // times the gradient factor
  typename Storage::Codes codes;
  Scales scales;
  int size;
};

// All ones where x is not finite.
inline Words nonfinite(Floats x) { return 0u - (((bits_of(x) & 0x7fffffffu) + 0x00800000u) >> 31); }

// Finite gradients within their limit.
inline Floats limited(Floats g) {
  const Words sign = bits_of(g) & 0x80000000u;
  const Floats bounded = float_of(smaller(bits_of(g) ^ sign, bits_of(all(static_cast<float>(kGradientLimit)))) | sign);
  return choose(nonfinite(g), g, bounded);
}

// The parameters after a step with these averages. With kBounded, slow parts may be bounded.
template <bool kBounded>
ADEMAMIX_INLINE Floats updated(const VectorRates& rate, Floats parameter, Floats fast, Floats slow, Floats root) {
  Floats slow_part = rate.slow_gain * slow;
  if constexpr (kBounded) slow_part = bounded(slow_part, rate.slow_limit * root);
  const Floats direction = (fast + slow_part) / root;
  return parameter - (rate.decay * parameter + rate.step_size * direction);
}

// Updates the parameters of a group, and returns them as they were before they were rounded.
template <class Storage, bool kBounded, bool kCareful, class Parameters, class Gradient>
ADEMAMIX_INLINE Group update_parameters(const VectorRates& rate, const BlockView<Storage, Parameters, Gradient>& block,
                                        int i, const Group& fast, const Group& slow, const Group& root,
                                        const ParameterRounding& rounding) {
  Group parameter;
  for (int k = 0; k < 4; ++k) {
    const int at = i + k * kLanes;
    const Floats before = load(block.parameter + at);
    const Floats after = updated<kBounded>(rate, before, fast.of[k], slow.of[k], root.of[k]);
    parameter.of[k] =
        kCareful ? choose(nonfinite(load(block.gradient + at)) & rate.skip, before, after) : after;
  }
  store_parameters(block.parameter, i, parameter, rounding);
  return parameter;
}

// Updates a block. With kCareful, gradients may be beyond their limit or not finite, and elements may have to stay as
// they are. `rounding` is for parameters that are not fp32.
//
// Where much has to be done between a root and the division by it, or before fast averages can be encoded, parameters
// are left to a second pass. In one pass, processors run out of room for the instructions that wait.
template <class Storage, bool kFast, bool kBounded, bool kCareful, class Parameters, class Gradient>
ADEMAMIX_INLINE void update_block(const VectorRates& rate, const BlockView<Storage, Parameters, Gradient>& block,
                                  uint32_t block_key, const ParameterRounding& rounding) {
  constexpr bool kTwoPasses = kBounded || (kFast && Storage::kKeepsMoments);
  constexpr auto update_group = update_parameters<Storage, kBounded, kCareful, Parameters, Gradient>;
  Moments moments;
  alignas(64) float roots[kBlockSize];  // not among the moments: what looks at those again needs none of these
  typename Storage::template Coder<kFast, kCareful> coder(block.codes, block.scales, block_key, moments);
#pragma GCC unroll 2  // of AVX-512, a whole block: its constants need not be loaded before each
  for (int i = 0; i < block.size; i += kGroupSize) {
    Group fast, slow, square, root;
    for (int k = 0; k < 4; ++k) {
      const int at = i + k * kLanes;
      const Floats gradient = load(block.gradient + at);
      const Floats g = kCareful ? limited(gradient) : gradient;
      const auto unless_kept = [&](Floats before, Floats after) {
        return kCareful ? choose(nonfinite(g) & rate.skip, before, after) : after;
      };
      fast.of[k] = g;
      if constexpr (kFast) {
        const Floats old_fast = coder.fast(at);
        fast.of[k] = unless_kept(old_fast, rate.fast.template moved<kCareful>(old_fast, g));
      }
      const Floats old_slow = coder.slow(at), old_square = coder.square(at);
      slow.of[k] = unless_kept(old_slow, rate.slow.template moved<kCareful>(old_slow, g));
      square.of[k] = unless_kept(old_square, rate.square.template moved<kCareful>(old_square, g * g));
      root.of[k] = square_root(square.of[k]) + rate.eps;
    }
    if constexpr (kTwoPasses || Storage::kKeepsMoments) store_group(moments.slow + i, slow);
    if constexpr (kTwoPasses) {
      store_group(moments.fast + i, fast);
      store_group(roots + i, root);
    } else {
      coder.look_at(update_group(rate, block, i, fast, slow, root, rounding));
    }
    coder.write(i, fast, slow, square);
  }
  coder.find_scales();
#pragma GCC unroll 2
  for (int i = 0; kTwoPasses && i < block.size; i += kGroupSize) {
    coder.look_at(update_group(rate, block, i, load_group(moments.fast + i), load_group(moments.slow + i),
                               load_group(roots + i), rounding));
  }
  coder.finish(block.size);
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
