#include <cstring>
#include <type_traits>

#include "bf16_storage.h"
#include "block_update.h"
#include "compact_storage.h"
#include "fp32_storage.h"
#include "kernels.h"
#include "master_vectors.h"
#include "staging.h"

namespace ademamix {
namespace ADEMAMIX_ISA {
namespace {

// The elements [first, first + count) of a tensor.
struct Block {
  int64_t index;
  int64_t first;
  int count;
  int64_t row, column;  // where it begins
};

// What the blocks of a run have in common. Without `rounds` there are no random words.
struct Context {
  const Tensor& tensor;
  VectorRates rate;
  float gradient_factor;
  bool stochastic_rounding;
  RoundingStream element_words;
  RoundingStream block_words;
  WholeRows whole;

  Context(const Run& run, bool rounds)
      : tensor(*run.tensor),
        rate(tensor),
        gradient_factor(static_cast<float>(run.options->gradient_factor)),
        stochastic_rounding(run.options->stochastic_rounding),
        whole(tensor) {
    if (!rounds) return;
    const int64_t step = static_cast<int64_t>(tensor.coefficients.step);
    element_words = RoundingStream(run.options->rounding_seed, tensor.index, step);
    block_words = element_words;
    block_words.absorb(kMomentDomain);  // keeps them apart from the words that round parameters
  }

  // The random words of a block's moments follow from this.
  uint32_t key(const Block& block) const { return block_words(whole.block(block.row, block.column)); }

  ParameterRounding rounding(const Block& block) const {
    return {stochastic_rounding, element_words, whole.element(block.row, block.column)};
  }
};

// Goes from block to block, row by row.
class Cursor {
 public:
  Cursor(int64_t row_size, int64_t index) : row_size_(row_size), index_(index) {
    const int64_t blocks_per_row = (row_size + kBlockSize - 1) / kBlockSize;
    row_ = index / blocks_per_row;
    column_ = index % blocks_per_row * kBlockSize;
    first_ = row_ * row_size + column_;
  }

  Block next() {
    const int64_t left = row_size_ - column_;
    const Block block{index_, first_, static_cast<int>(left < kBlockSize ? left : kBlockSize), row_, column_};
    row_ += left <= kBlockSize;
    column_ = left <= kBlockSize ? 0 : column_ + kBlockSize;
    first_ += block.count;
    ++index_;
    return block;
  }

 private:
  int64_t row_size_;
  int64_t index_;
  int64_t row_;
  int64_t column_;
  int64_t first_;
};

// Parameters of a dtype, without masters.
template <class Parameter>
struct Plain {
  static Parameter* at(const Tensor& tensor, int64_t first) { return static_cast<Parameter*>(tensor.parameter) + first; }
};

// bf16 parameters with masters.
struct Corrected {
  static MasterPointer at(const Tensor& tensor, int64_t first) { return masters_of(tensor, first); }
};

template <class T>
T* at(void* tensor, int64_t i) {
  return tensor == nullptr ? nullptr : static_cast<T*>(tensor) + i;
}

template <class Storage>
typename Storage::Codes codes_of(const Tensor& tensor, int64_t first) {
  return {at<typename Storage::FastCode>(tensor.fast, first), at<typename Storage::SlowCode>(tensor.slow, first),
          at<typename Storage::SquareCode>(tensor.square, first)};
}

Scales scales_of(const Tensor& tensor, const Block& block) {
  return {at<uint8_t>(tensor.fast_scale, block.index), at<uint8_t>(tensor.slow_scale, block.index),
          at<uint8_t>(tensor.square_scale, block.index)};
}

// The gradients of a whole block, times their factor, as `Gradient`. They are copied if they are not so already.
template <class Gradient>
struct Gradients {
  const Gradient* values;

  ADEMAMIX_INLINE Gradients(const Context& context, int64_t first)
      : values(static_cast<const Gradient*>(context.tensor.gradient) + first) {}
};

template <>
struct Gradients<float> {
  const float* values;
  alignas(64) float copy[kBlockSize];

  ADEMAMIX_INLINE Gradients(const Context& context, int64_t first) {
    const Tensor& tensor = context.tensor;
    if (tensor.gradient_dtype == Dtype::f32 && context.gradient_factor == 1) {
      values = static_cast<const float*>(tensor.gradient) + first;
    } else {
      read_block(copy, kBlockSize, tensor.gradient, tensor.gradient_dtype, first, kBlockSize);
      for (float& g : copy) g *= context.gradient_factor;
      values = copy;
    }
  }
};

template <class Gradient>
ADEMAMIX_NOINLINE bool are_limited(const Gradient* gradients) {
  Words peak = all(0u);
  for (int i = 0; i < kBlockSize; i += kLanes) peak = larger(peak, bits_of(load(gradients + i)) & 0x7fffffffu);
  return largest(peak) <= bits_of(static_cast<float>(kGradientLimit));
}

// Whether all gradients of a block are finite and within their limit. Most are below 2, and for those one bit of each
// tells, the one beside the sign: in fp32, bf16 and fp16 alike.
template <class Gradient>
ADEMAMIX_INLINE bool are_usual(const Gradient* gradients) {
  constexpr uint32_t kTwoOrMore = sizeof(Gradient) == 4 ? 0x40000000u : 0x40004000u;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(gradients);
  Words bits = all(0u);
  for (int i = 0; i < kBlockSize * static_cast<int>(sizeof(Gradient)) / 4; i += kLanes) bits |= load(words + i);
  return !any_set(bits, kTwoOrMore) || are_limited(gradients);
}

// Updates a whole block where it is. False, with nothing changed, if one of its gradients is not usual, which is rare:
// such a block has to be updated carefully.
template <class Storage, bool kFast, bool kBounded, class Parameters, class Gradient>
ADEMAMIX_INLINE bool update_in_place(const Context& context, const Block& block) {
  const Tensor& tensor = context.tensor;
  const Gradients<Gradient> gradients(context, block.first);
  const ParameterRounding rounding = context.rounding(block);
  if (!are_usual(gradients.values) || !rounding.has_words_for(kBlockSize)) return false;
  const auto parameter = Parameters::at(tensor, block.first);
  const BlockView<Storage, std::remove_const_t<decltype(parameter)>, Gradient> view{
      parameter, gradients.values, codes_of<Storage>(tensor, block.first), scales_of(tensor, block), kBlockSize};
  update_block<Storage, kFast, kBounded, false>(context.rate, view, context.key(block), rounding);
  return true;
}

// The codes of a block that does not fill its last group, with zeros after them.
template <class Storage, bool kFast>
struct CodesCopy {
  alignas(64) typename Storage::FastCode fast[kBlockSize];
  alignas(64) typename Storage::SlowCode slow[kBlockSize];
  alignas(64) typename Storage::SquareCode square[kBlockSize];

  typename Storage::Codes read(const typename Storage::Codes& from, int count, int size) {
    if constexpr (kFast) read_codes(fast, size, from.fast, count);
    read_codes(slow, size, from.slow, count);
    read_codes(square, size, from.square, count);
    return {fast, slow, square};
  }
  void write(const typename Storage::Codes& to, int count) const {
    if constexpr (kFast) write_codes(to.fast, fast, count);
    write_codes(to.slow, slow, count);
    write_codes(to.square, square, count);
  }
};

// Updates any block, in fp32 copies of its parameters and gradients, and returns how many elements were skipped.
template <class Storage, bool kFast, bool kBounded>
ADEMAMIX_NOINLINE int update_copy(const Context& context, const Block& block) {
  const Tensor& tensor = context.tensor;
  const int size = (block.count + kGroupSize - 1) / kGroupSize * kGroupSize;
  alignas(64) float parameter[kBlockSize];
  alignas(64) float gradient[kBlockSize];
  CodesCopy<Storage, kFast> copy;
  if (tensor.correction != nullptr) {
    read_masters(parameter, size, masters_of(tensor, block.first), block.count);
  } else {
    read_block(parameter, size, tensor.parameter, tensor.parameter_dtype, block.first, block.count);
  }
  read_block(gradient, size, tensor.gradient, tensor.gradient_dtype, block.first, block.count);
  for (int i = 0; i < block.count; ++i) gradient[i] *= context.gradient_factor;
  const typename Storage::Codes codes = codes_of<Storage>(tensor, block.first);
  const BlockView<Storage, float*, float> view{parameter, gradient,
                                        size == block.count ? codes : copy.read(codes, block.count, size),
                                        scales_of(tensor, block), size};
  const ParameterRounding rounding = context.rounding(block);

  update_block<Storage, kFast, kBounded, true>(context.rate, view, context.key(block), rounding);

  if (tensor.correction != nullptr) {
    write_masters(masters_of(tensor, block.first), block.count, parameter, rounding);
  } else {
    write_block(tensor.parameter, tensor.parameter_dtype, block.first, block.count, parameter,
                rounding.stochastic ? &rounding.random : nullptr, rounding.place);
  }
  if (size != block.count) copy.write(codes, block.count);
  return tensor.skipped == nullptr ? 0 : count_nonfinite(gradient, block.count);
}

template <class Storage, bool kFast, bool kBounded, class Parameters, class Gradient>
int64_t update_run(const Run& run) {
  const Context context(run, Storage::kRounds || run.options->stochastic_rounding);
  const bool forgetful = context.rate.template forgetful<kFast>();
  Cursor cursor(block_row_size(context.tensor), run.first);
  int64_t skipped = 0;
  for (int64_t i = 0; i < run.size; ++i) {
    const Block block = cursor.next();
    const bool in_place = block.count == kBlockSize && !forgetful &&
                          update_in_place<Storage, kFast, kBounded, Parameters, Gradient>(context, block);
    if (!in_place) skipped += update_copy<Storage, kFast, kBounded>(context, block);
  }
  return skipped;
}

template <class Storage, class Parameters, class Gradient, bool kBounded>
Kernel with_averages(bool fast) {
  return fast ? update_run<Storage, true, kBounded, Parameters, Gradient>
              : update_run<Storage, false, kBounded, Parameters, Gradient>;
}

// `Half` is the dtype of 16 bits that gradients of such parameters may have and be read in. Others are copied, and so
// are those of bounded steps, which spares instances.
template <class Storage, class Parameters, Dtype kHalf, class Half>
Kernel with_gradients(const Tensor& tensor, const Options& options) {
  const bool fast = tensor.fast != nullptr;
  if (tensor.coefficients.bounds_slow()) return with_averages<Storage, Parameters, float, true>(fast);
  return tensor.gradient_dtype == kHalf && options.gradient_factor == 1
             ? with_averages<Storage, Parameters, Half, false>(fast)
             : with_averages<Storage, Parameters, float, false>(fast);
}

template <class Storage>
Kernel kernel_of(const Tensor& tensor, const Options& options) {
  switch (tensor.parameter_dtype) {
    case Dtype::f32: return with_gradients<Storage, Plain<float>, Dtype::bf16, BFloat16>(tensor, options);
    case Dtype::f64: break;
    case Dtype::bf16:
      return tensor.correction != nullptr
                 ? with_gradients<Storage, Corrected, Dtype::bf16, BFloat16>(tensor, options)
                 : with_gradients<Storage, Plain<BFloat16>, Dtype::bf16, BFloat16>(tensor, options);
    case Dtype::f16: return with_gradients<Storage, Plain<Float16>, Dtype::f16, Float16>(tensor, options);
  }
  return nullptr;
}

}  // namespace

Kernel block_kernel(const Tensor& tensor, const Options& options) {
  switch (tensor.storage) {
    case Storage::plain: return kernel_of<Float32Storage>(tensor, options);
    case Storage::bf16: return kernel_of<BFloat16Storage>(tensor, options);
    case Storage::compact: return kernel_of<CompactStorage>(tensor, options);
  }
  return nullptr;
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
