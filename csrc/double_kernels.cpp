// The update of fp64 parameters, element by element. All others are updated in blocks, in fp32.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels.h"
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

// `a` where the mask is all ones, `b` where it is zero. Conditionals would do, but compilers make one branch of several
// that ask the same, and a branch around stores vectorises only where there are masked stores.
inline double choose(uint64_t mask, double a, double b) {
  uint64_t x, y;
  std::memcpy(&x, &a, sizeof x);
  std::memcpy(&y, &b, sizeof y);
  y ^= (x ^ y) & mask;
  std::memcpy(&b, &y, sizeof b);
  return b;
}

// x, no larger than the bound. Where that is NaN, as infinity times 0 is, x stays.
inline double bounded(double x, double bound) {
  x = bound < x ? bound : x;
  return x < -bound ? -bound : x;
}

// An average moves towards x by a rate. From the nearer end, as in torch's lerp: at rate 1 it is x to the last digit.
struct Average {
  double factor;
  uint64_t from_x;

  explicit Average(double rate)
      : factor(rate < 0.5 ? rate : rate - 1.0), from_x(uint64_t{0} - static_cast<uint64_t>(rate >= 0.5)) {}

  double moved(double average, double x) const { return choose(from_x, x, average) + factor * (x - average); }
};

// With kSkips, elements may have to stay as they are.
template <class Gradient, bool kFast, bool kBounded, bool kSkips>
int64_t update(const Run& run) {
  const Tensor& tensor = *run.tensor;
  const Coefficients& c = tensor.coefficients;
  const Average fast_average(c.fast_rate), slow_average(c.slow_rate), square_average(c.square_rate);
  const double gradient_factor = run.options->gradient_factor;
  double* __restrict parameter = static_cast<double*>(tensor.parameter) + run.first;
  const Gradient* __restrict gradient = static_cast<const Gradient*>(tensor.gradient) + run.first;
  double* __restrict fast = kFast ? static_cast<double*>(tensor.fast) + run.first : nullptr;
  double* __restrict slow = static_cast<double*>(tensor.slow) + run.first;
  double* __restrict square = static_cast<double*>(tensor.square) + run.first;
  int64_t skipped = 0;

  ADEMAMIX_NO_OVERLAP
  for (int64_t i = 0; i < run.size; ++i) {
    const double g = load<double>(gradient[i]) * gradient_factor;
    const bool skip = kSkips && !(std::abs(g) <= std::numeric_limits<double>::max());
    const uint64_t keep = uint64_t{0} - static_cast<uint64_t>(skip);
    double new_fast = g;
    if constexpr (kFast) {
      new_fast = fast_average.moved(fast[i], g);
      fast[i] = choose(keep, fast[i], new_fast);
    }
    const double new_slow = slow_average.moved(slow[i], g);
    const double new_square = square_average.moved(square[i], g * g);
    const double root = std::sqrt(new_square) + c.eps;
    double slow_part = c.slow_gain * new_slow;
    if constexpr (kBounded) slow_part = bounded(slow_part, c.slow_limit * root);
    const double direction = (new_fast + slow_part) / root;
    const double after = parameter[i] - (c.decay * parameter[i] + c.step_size * direction);
    slow[i] = choose(keep, slow[i], new_slow);
    square[i] = choose(keep, square[i], new_square);
    parameter[i] = choose(keep, parameter[i], after);
    skipped += skip;
  }
  return skipped;
}

template <class Gradient, bool kFast>
Kernel with_care(bool bounded, bool skips) {
  if (skips) return update<Gradient, kFast, true, true>;  // a bound of infinity bounds nothing
  return bounded ? update<Gradient, kFast, true, false> : update<Gradient, kFast, false, false>;
}

template <class Gradient>
Kernel with_flags(const Tensor& tensor) {
  const bool bounded = tensor.coefficients.bounds_slow(), skips = tensor.skipped != nullptr;
  return tensor.fast != nullptr ? with_care<Gradient, true>(bounded, skips) : with_care<Gradient, false>(bounded, skips);
}

}  // namespace

Kernel double_kernel(const Tensor& tensor) {
  switch (tensor.gradient_dtype) {
    case Dtype::f32: return with_flags<float>(tensor);
    case Dtype::f64: return with_flags<double>(tensor);
    case Dtype::bf16: return with_flags<BFloat16>(tensor);
    case Dtype::f16: return with_flags<Float16>(tensor);
  }
  return nullptr;
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
