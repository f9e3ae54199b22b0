// One optimizer step over the tensors of a group: plain pointers, no framework.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "formats.h"
#include "parallel.h"

namespace ademamix {

// The numbers of one step, from the Python side's `Coefficients`, in its order.
struct Coefficients {
  double fast_rate;    // 1 - beta1
  double slow_rate;    // 1 - beta3(t)
  double square_rate;  // 1 - beta2
  double slow_gain;    // alpha(t) times the bias correction of the fast average
  double step_size;
  double eps;
  double decay;  // lr * weight_decay
  double step;   // t, for the rounding key
  // How large the slow part of an update may be: a bound on |slow_gain m2| / (sqrt(nu) + eps).
  double slow_limit = std::numeric_limits<double>::infinity();

  bool bounds_slow() const { return slow_limit < std::numeric_limits<double>::infinity(); }
};

enum class Dtype : int { f32 = 0, f64 = 1, bf16 = 2, f16 = 3 };

// How moments are kept.
//   plain: float, or double for f64 parameters.
//   bf16: rounded stochastically.
//   compact: as FastCode, SlowCode and SquareCode, with a scale for each block.
// The last two are the coded storages. Their parameters are not f64.
enum class Storage : int { plain = 0, bf16 = 1, compact = 2 };

// Where a tensor lies in a parameter that is cut, as over several processes: random words are those of its place there.
// Its rows are pieces of rows of the whole. All zeros if it is the whole.
struct Shard {
  int64_t first_row = 0;
  int64_t first_column = 0;  // a multiple of the size of a block if the storage is coded
  int64_t whole_row_size = 0;
};

// A parameter with its gradient and state.
struct Tensor {
  void* parameter;
  const void* gradient;
  void* fast;  // null when beta1 = 0
  void* slow;
  void* square;
  uint8_t* fast_scale;  // scales are only for compact storage, one for each block
  uint8_t* slow_scale;
  uint8_t* square_scale;
  int64_t* skipped;  // count of non-finite gradient elements passed over; null: they propagate
  int64_t size;
  int64_t row_size;  // elements for each index of the first dimension; only coded storages and shards need it
  int64_t index;     // of the parameter in the optimizer, for the rounding key
  Dtype parameter_dtype;
  Dtype gradient_dtype;
  Storage storage;
  Coefficients coefficients;
  Shard shard = {};
  Correction* correction = nullptr;  // of bf16 parameters that have masters of 24 bits
};

// What a step takes for granted: that a tensor is made of whole rows, and that these are pieces of rows of its whole.
// Only tensors in plain storage that are not cut may be without rows, with a size of 0.
bool is_made_of_rows(const Tensor& tensor);
bool is_part_of_whole(const Tensor& tensor);

struct Options {
  double gradient_factor;  // -1 to maximize, divided by the gradient scale
  bool stochastic_rounding;
  uint64_t rounding_seed;
  int threads;
};

void step(const std::vector<Tensor>& tensors, const Options& options, const ParallelFor& parallel = parallel_for);

// The instruction sets that this processor can run, best first: of "avx512", "avx2" and "portable". All give the same
// bits. The best is in use, unless a test asks for another.
std::vector<const char*> instruction_sets();
const char* instruction_set();
void use_instruction_set(const char* name);

}  // namespace ademamix
