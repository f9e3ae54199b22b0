// One optimizer step over the tensors of a group: plain pointers, no framework.
#pragma once

#include <cstdint>
#include <vector>

namespace ademamix {

// The numbers of one step, from the Python side's `Coefficients`, in its order.
struct Coefficients {
  double fast_rate;    // 1 - beta1
  double square_rate;  // 1 - beta2
  double slow_rate;    // 1 - beta3(t)
  double slow_gain;    // alpha(t) times the bias correction of m1
  double step_size;
  double eps;
  double decay;  // lr * weight_decay
  double step;   // t, for the rounding key
};

enum class Dtype : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

// A parameter with its gradient and state. Moments are float, or double for f64 parameters.
struct Tensor {
  void* parameter;
  const void* gradient;
  void* fast;  // m1; null when beta1 = 0
  void* slow;  // m2
  void* square;
  int64_t* skipped;  // count of non-finite gradient elements passed over; null: they propagate
  int64_t size;
  int64_t index;  // of the parameter in the optimizer, for the rounding key
  Dtype parameter_dtype;
  Dtype gradient_dtype;
  Coefficients coefficients;
};

struct Options {
  double gradient_factor;  // -1 to maximize, divided by the gradient scale
  bool stochastic_rounding;
  uint64_t rounding_seed;
  int threads;
};

void step(const std::vector<Tensor>& tensors, const Options& options);

// Instruction sets: "avx2" where the processor has it, else "portable". Both give the same bits.
const char* instruction_set();
void use_portable(bool portable);

}  // namespace ademamix
