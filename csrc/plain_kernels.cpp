#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "master_format.h"
#include "number_formats.h"

// Before a loop over tensors, which never overlap. Compilers would check each pair, and give up where there are many.
#if defined(__clang__)
#define ADEMAMIX_NO_OVERLAP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define ADEMAMIX_NO_OVERLAP _Pragma("GCC ivdep")
#else
#define ADEMAMIX_NO_OVERLAP
#endif

namespace ademamix {
namespace ADEMAMIX_ISA {
namespace {

template <class S>
using Bits = std::conditional_t<sizeof(S) == 8, uint64_t, uint32_t>;

// `a` where the mask is all ones, `b` where it is zero. Conditionals would do, but compilers make one branch of several
// that ask the same, and a branch around stores vectorises only where there are masked stores.
template <class S>
inline S choose(Bits<S> mask, S a, S b) {
  Bits<S> x, y;
  std::memcpy(&x, &a, sizeof x);
  std::memcpy(&y, &b, sizeof y);
  y ^= (x ^ y) & mask;
  std::memcpy(&b, &y, sizeof b);
  return b;
}

// x, no larger than the bound. Where that is NaN, as infinity times 0 is, x stays.
template <class S>
inline S bounded(S x, S bound) {
  x = bound < x ? bound : x;
  return x < -bound ? -bound : x;
}

// An average moves towards x by a rate. From the nearer end, as in torch's lerp: at rate 1 it is x to the last digit.
template <class S>
struct Average {
  S factor;
  Bits<S> from_x;

  explicit Average(double rate)
      : factor(static_cast<S>(rate < 0.5 ? rate : rate - 1.0)), from_x(Bits<S>{0} - static_cast<Bits<S>>(rate >= 0.5)) {}

  S moved(S average, S x) const { return choose(from_x, x, average) + factor * (x - average); }
};

template <class S>
struct Rates {
  Average<S> fast, slow, square;
  S slow_gain, slow_limit, step_size, eps, decay, gradient_factor;

  Rates(const Coefficients& c, double gradient_factor)
      : fast(c.fast_rate),
        slow(c.slow_rate),
        square(c.square_rate),
        slow_gain(static_cast<S>(c.slow_gain)),
        slow_limit(static_cast<S>(c.slow_limit)),
        step_size(static_cast<S>(c.step_size)),
        eps(static_cast<S>(c.eps)),
        decay(static_cast<S>(c.decay)),
        gradient_factor(static_cast<S>(gradient_factor)) {}
};

// What a loop has to look out for. Skipping elements takes as long as a third of the rest.
enum class Care {
  none,
  bounds,  // slow parts may be bounded
  skips,   // elements may have to stay as they are, and slow parts may be bounded
};

// What varies at compile time: P and G, dtypes of parameter and gradient; S, of moments and arithmetic. With kCorrected,
// parameters have masters. The random word of the first element is that of `place`, and those of the others follow it.
template <class P, class G, class S, bool kFast, Care kCare, bool kStochastic, bool kCorrected>
int64_t update_in_a_row(const Run& run, uint64_t place) {
  const Tensor& tensor = *run.tensor;
  const Rates<S> rate(tensor.coefficients, run.options->gradient_factor);
  const RoundingStream random(run.options->rounding_seed, tensor.index,
                              static_cast<int64_t>(tensor.coefficients.step));
  P* __restrict parameter = static_cast<P*>(tensor.parameter) + run.first;
  const G* __restrict gradient = static_cast<const G*>(tensor.gradient) + run.first;
  Correction* __restrict correction = kCorrected ? tensor.correction + run.first : nullptr;
  S* __restrict fast = kFast ? static_cast<S*>(tensor.fast) + run.first : nullptr;
  S* __restrict slow = static_cast<S*>(tensor.slow) + run.first;
  S* __restrict square = static_cast<S*>(tensor.square) + run.first;
  const int64_t size = run.size;  // for all that a compiler knows, a correction, being a char, may overwrite it
  uint32_t skipped = 0;           // a run is short

  ADEMAMIX_NO_OVERLAP
  for (int64_t i = 0; i < size; ++i) {
    S g = load<S>(gradient[i]) * rate.gradient_factor;
    if constexpr (std::is_same_v<S, float>) g = limited(g);
    const bool skip = kCare == Care::skips && !(std::abs(g) <= std::numeric_limits<S>::max());
    const Bits<S> keep = Bits<S>{0} - static_cast<Bits<S>>(skip);
    S new_fast = g;
    if constexpr (kFast) {
      new_fast = rate.fast.moved(fast[i], g);
      fast[i] = choose(keep, fast[i], new_fast);
    }
    const S new_slow = rate.slow.moved(slow[i], g);
    const S new_square = rate.square.moved(square[i], g * g);
    const S root = std::sqrt(new_square) + rate.eps;
    S slow_part = rate.slow_gain * new_slow;
    if constexpr (kCare != Care::none) slow_part = bounded(slow_part, rate.slow_limit * root);
    const S direction = (new_fast + slow_part) / root;
    S before;
    if constexpr (kCorrected) {
      before = load_master(parameter[i], correction[i]);
    } else {
      before = load<S>(parameter[i]);
    }
    const S after = before - (rate.decay * before + rate.step_size * direction);
    slow[i] = choose(keep, slow[i], new_slow);
    square[i] = choose(keep, square[i], new_square);
    const S written = choose(keep, before, after);
    if constexpr (kCorrected && kStochastic) {
      store_master_stochastic(parameter[i], correction[i], written, random(place + static_cast<uint64_t>(i)));
    } else if constexpr (kCorrected) {
      store_master(parameter[i], correction[i], written);
    } else if constexpr (kStochastic) {
      store_stochastic(parameter[i], written, random(place + static_cast<uint64_t>(i)));
    } else {
      store(parameter[i], written);
    }
    skipped += skip;
  }
  return skipped;
}

// Goes from row to row only where a row of the tensor is not a row of the whole.
template <class P, class G, class S, bool kFast, Care kCare, bool kStochastic, bool kCorrected>
int64_t update(const Run& run) {
  constexpr auto part = update_in_a_row<P, G, S, kFast, kCare, kStochastic, kCorrected>;
  const Tensor& tensor = *run.tensor;
  if (!kStochastic || tensor.shard.whole_row_size == 0) return part(run, static_cast<uint64_t>(run.first));
  const WholeRows whole(tensor);
  if (tensor.shard.whole_row_size == tensor.row_size) return part(run, whole.element(0, run.first));
  int64_t skipped = 0;
  for (int64_t first = run.first, last = run.first + run.size; first < last;) {
    const int64_t column = first % tensor.row_size;
    const int64_t size = std::min(tensor.row_size - column, last - first);
    skipped += part({run.tensor, run.options, first, size}, whole.element(first / tensor.row_size, column));
    first += size;
  }
  return skipped;
}

template <class P, class G, class S, bool kFast, bool kStochastic, bool kCorrected>
Kernel with_care(Care care) {
  switch (care) {
    case Care::none: return update<P, G, S, kFast, Care::none, kStochastic, kCorrected>;
    case Care::bounds: return update<P, G, S, kFast, Care::bounds, kStochastic, kCorrected>;
    case Care::skips: return update<P, G, S, kFast, Care::skips, kStochastic, kCorrected>;
  }
  return nullptr;
}

template <class P, class G, class S, bool kStochastic, bool kCorrected>
Kernel with_flags(bool fast, Care care) {
  return fast ? with_care<P, G, S, true, kStochastic, kCorrected>(care)
              : with_care<P, G, S, false, kStochastic, kCorrected>(care);
}

template <class P, class S, bool kStochastic = false, bool kCorrected = false>
Kernel with_gradient(Dtype gradient, bool fast, Care care) {
  switch (gradient) {
    case Dtype::f32: return with_flags<P, float, S, kStochastic, kCorrected>(fast, care);
    case Dtype::f64: return with_flags<P, double, S, kStochastic, kCorrected>(fast, care);
    case Dtype::bf16: return with_flags<P, BFloat16, S, kStochastic, kCorrected>(fast, care);
    case Dtype::f16: return with_flags<P, Float16, S, kStochastic, kCorrected>(fast, care);
  }
  return nullptr;
}

template <bool kCorrected>
Kernel of_bf16(Dtype gradient, bool fast, Care care, bool stochastic) {
  return stochastic ? with_gradient<BFloat16, float, true, kCorrected>(gradient, fast, care)
                    : with_gradient<BFloat16, float, false, kCorrected>(gradient, fast, care);
}

}  // namespace

Kernel plain_kernel(const Tensor& tensor, const Options& options) {
  const bool fast = tensor.fast != nullptr;
  const Care care = tensor.skipped != nullptr              ? Care::skips
                    : tensor.coefficients.bounds_slow() ? Care::bounds
                                                        : Care::none;
  const Dtype gradient = tensor.gradient_dtype;
  switch (tensor.parameter_dtype) {
    case Dtype::f32: return with_gradient<float, float>(gradient, fast, care);
    case Dtype::f64: return with_gradient<double, double>(gradient, fast, care);
    case Dtype::f16: return with_gradient<Float16, float>(gradient, fast, care);
    case Dtype::bf16:
      return tensor.correction != nullptr ? of_bf16<true>(gradient, fast, care, options.stochastic_rounding)
                                          : of_bf16<false>(gradient, fast, care, options.stochastic_rounding);
  }
  return nullptr;
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
