#include <cstring>

#include "bf16_storage.h"
#include "coded_update.h"
#include "compact_storage.h"
#include "kernels.h"
#include "staging.h"

namespace ademamix {
namespace ADEMAMIX_ISA {
namespace {

// What the blocks of a run have in common.
struct Context {
  const Tensor& tensor;
  VectorRates rate;
  float gradient_factor;
  bool stochastic_rounding;
  RoundingStream element_words;
  RoundingStream block_words;
  WholeRows whole;

  explicit Context(const Run& run)
      : tensor(*run.tensor),
        rate(tensor),
        gradient_factor(static_cast<float>(run.options->gradient_factor)),
        stochastic_rounding(run.options->stochastic_rounding),
        element_words(run.options->rounding_seed, tensor.index, static_cast<int64_t>(tensor.coefficients.step)),
        block_words(element_words),
        whole(tensor) {
    block_words.absorb(kMomentDomain);  // keeps them apart from the words that round parameters
  }

  bool in_place() const {
    return tensor.parameter_dtype == Dtype::f32 && tensor.gradient_dtype == Dtype::f32 && gradient_factor == 1;
  }
};

// The elements [first, first + count) of a tensor.
struct Block {
  int64_t index;
  int64_t first;
  int count;
  int64_t row, column;  // where it begins
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

template <class Storage, bool kFast, bool kBounded>
ADEMAMIX_NOINLINE void update_block_carefully(const VectorRates& rate, const BlockView<Storage>& view, uint32_t key) {
  update_block<Storage, kFast, kBounded, true>(rate, view, key);
}

// Gradients that are not finite, or larger than their limit, are rare, and so are averages that forget at once. Only
// blocks that have them are updated carefully.
template <class Storage, bool kFast, bool kBounded>
ADEMAMIX_INLINE int update(const Context& context, const Block& block, const BlockView<Storage>& view) {
  const uint32_t key = context.block_words(context.whole.block(block.row, block.column));
  const int skipped = context.tensor.skipped == nullptr ? 0 : count_nonfinite(view.gradient, block.count);
  const bool plain = skipped == 0 && !context.rate.template forgetful<kFast>();
  if (!plain || !update_block<Storage, kFast, kBounded, false>(context.rate, view, key)) {
    update_block_carefully<Storage, kFast, kBounded>(context.rate, view, key);
  }
  return skipped;
}

// Asks for memory ahead of its use. The processor's own prefetching ends with each page of each tensor.
template <class T>
inline void prefetch(const void* tensor, int64_t first) {
  const char* from = reinterpret_cast<const char*>(static_cast<const T*>(tensor) + first);
  for (size_t i = 0; i < kBlockSize * sizeof(T); i += 64) __builtin_prefetch(from + i);
}

template <class Storage, bool kFast, bool kBounded>
ADEMAMIX_INLINE int update_in_place(const Context& context, const Block& block) {
  const Tensor& tensor = context.tensor;
  const int64_t ahead = block.first + 4 * kBlockSize;
  if (ahead + kBlockSize <= tensor.size) {
    prefetch<float>(tensor.parameter, ahead);
    prefetch<float>(tensor.gradient, ahead);
    if constexpr (kFast) prefetch<typename Storage::FastCode>(tensor.fast, ahead);
    prefetch<typename Storage::SlowCode>(tensor.slow, ahead);
    prefetch<typename Storage::SquareCode>(tensor.square, ahead);
  }
  const BlockView<Storage> view{static_cast<float*>(tensor.parameter) + block.first,
                                static_cast<const float*>(tensor.gradient) + block.first,
                                codes_of<Storage>(tensor, block.first), scales_of(tensor, block), kBlockSize};
  return update<Storage, kFast, kBounded>(context, block, view);
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

// For all blocks that are not already fp32 and in whole groups.
template <class Storage, bool kFast, bool kBounded>
ADEMAMIX_NOINLINE int update_copy(const Context& context, const Block& block) {
  const Tensor& tensor = context.tensor;
  const int size = (block.count + kGroupSize - 1) / kGroupSize * kGroupSize;
  alignas(64) float parameter[kBlockSize];
  alignas(64) float gradient[kBlockSize];
  CodesCopy<Storage, kFast> copy;
  read_block(parameter, size, tensor.parameter, tensor.parameter_dtype, block.first, block.count);
  read_block(gradient, size, tensor.gradient, tensor.gradient_dtype, block.first, block.count);
  for (int i = 0; i < block.count; ++i) gradient[i] *= context.gradient_factor;
  const typename Storage::Codes codes = codes_of<Storage>(tensor, block.first);
  const BlockView<Storage> view{parameter, gradient, size == block.count ? codes : copy.read(codes, block.count, size),
                                scales_of(tensor, block), size};

  const int skipped = update<Storage, kFast, kBounded>(context, block, view);

  write_block(tensor.parameter, tensor.parameter_dtype, block.first, block.count, parameter,
              context.stochastic_rounding ? &context.element_words : nullptr,
              context.whole.element(block.row, block.column));
  if (size != block.count) copy.write(codes, block.count);
  return skipped;
}

template <class Storage, bool kFast, bool kBounded>
int64_t update_run(const Run& run) {
  const Context context(run);
  const bool in_place = context.in_place();
  Cursor cursor(context.tensor.row_size, run.first);
  int64_t skipped = 0;
  for (int64_t i = 0; i < run.size; ++i) {
    const Block block = cursor.next();
    skipped += in_place && block.count == kBlockSize ? update_in_place<Storage, kFast, kBounded>(context, block)
                                                     : update_copy<Storage, kFast, kBounded>(context, block);
  }
  return skipped;
}

template <class Storage>
Kernel kernel_of(const Tensor& tensor) {
  const bool bounded = tensor.coefficients.bounds_slow();
  if (tensor.fast != nullptr) return bounded ? update_run<Storage, true, true> : update_run<Storage, true, false>;
  return bounded ? update_run<Storage, false, true> : update_run<Storage, false, false>;
}

}  // namespace

Kernel coded_kernel(const Tensor& tensor) {
  switch (tensor.storage) {
    case Storage::plain: break;
    case Storage::bf16: return kernel_of<BFloat16Storage>(tensor);
    case Storage::compact: return kernel_of<CompactStorage>(tensor);
  }
  return nullptr;
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
