// A fuzzer of the core, for clang's libFuzzer: `make fuzz`. Tensors of all formats and sizes are made of its bytes,
// each allocated to the byte, so that AddressSanitizer sees what is read or written beside them. Where state and
// settings are such as training makes them, all instruction sets must give the same bits as well.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "step.h"

namespace {

using ademamix::Dtype;
using ademamix::Storage;
using Bytes = std::vector<unsigned char>;

size_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

struct Buffers {
  Bytes parameter, gradient, fast, slow, square, fast_scale, slow_scale, square_scale, correction;
  int64_t skipped = 0;
  ademamix::Tensor description{};

  Bytes* state(int i) { return std::array{&fast, &slow, &square, &fast_scale, &slow_scale, &square_scale}[i]; }
};

// Bits of every kind: a few that the fuzzer chooses, repeated with changes.
void fill(Bytes& bytes, FuzzedDataProvider& data) {
  const Bytes chosen = data.ConsumeBytes<unsigned char>(data.ConsumeIntegralInRange(0, 24));
  const auto change = data.ConsumeIntegral<uint8_t>();
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = chosen.empty() ? 0 : static_cast<unsigned char>(chosen[i % chosen.size()] + i / 29 * change);
  }
}

double rate(FuzzedDataProvider& data) { return data.ConsumeFloatingPointInRange(0.0, 1.0); }

ademamix::Coefficients coefficients(FuzzedDataProvider& data, bool ordinary) {
  const auto any = [&] {
    return ordinary ? data.ConsumeFloatingPointInRange(0.0, 1e3) : data.ConsumeFloatingPoint<double>();
  };
  ademamix::Coefficients c{rate(data), rate(data), rate(data), any(), any(), any(), any(), 0};
  if (data.ConsumeBool()) c.slow_limit = any();
  c.step = static_cast<double>(data.ConsumeIntegralInRange<int64_t>(0, int64_t{1} << 53));
  return c;
}

// Puts a tensor anywhere, into rows of any size; where the core refuses such a place, the tensor is a whole.
void place(ademamix::Tensor& t, FuzzedDataProvider& data) {
  const ademamix::Tensor whole = t;
  if (data.ConsumeBool()) t.row_size = data.ConsumeIntegral<int8_t>();
  t.shard = {data.ConsumeIntegral<int64_t>(), data.ConsumeIntegral<int64_t>(), data.ConsumeIntegral<int64_t>()};
  if (data.ConsumeBool()) t.shard.first_column = t.shard.first_column / ademamix::kBlockSize * ademamix::kBlockSize;
  if (is_made_of_rows(t) && is_part_of_whole(t)) return;
  t = whole;
  t.shard.whole_row_size = t.row_size;
}

Buffers buffers(FuzzedDataProvider& data, bool ordinary) {
  Buffers b;
  ademamix::Tensor& t = b.description;
  t.storage = data.PickValueInArray({Storage::plain, Storage::bf16, Storage::compact});
  t.parameter_dtype = data.PickValueInArray({Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f64});
  if (t.storage != Storage::plain && t.parameter_dtype == Dtype::f64) t.parameter_dtype = Dtype::f32;
  t.gradient_dtype = data.PickValueInArray({Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16});
  const int64_t rows = data.ConsumeIntegralInRange<int64_t>(0, 3);
  t.row_size = data.ConsumeIntegralInRange<int64_t>(1, 160);
  t.size = rows * t.row_size;
  t.index = data.ConsumeIntegral<int64_t>();
  place(t, data);
  t.coefficients = coefficients(data, ordinary);

  const auto size = static_cast<size_t>(t.size);
  const int64_t in_row = (t.row_size + ademamix::kBlockSize - 1) / ademamix::kBlockSize;
  const auto blocks = static_cast<size_t>(t.row_size == 0 ? 0 : t.size / t.row_size * in_row);
  const bool compact = t.storage == Storage::compact;
  const size_t moment = t.storage == Storage::plain ? (t.parameter_dtype == Dtype::f64 ? 8 : 4) : 2;
  b.parameter.resize(size * size_of(t.parameter_dtype));
  b.gradient.resize(size * size_of(t.gradient_dtype));
  b.fast.resize(size * (compact ? 1 : moment));
  b.slow.resize(size * (compact ? 2 : moment));
  b.square.resize(size * (compact ? 1 : moment));
  for (int i = 3; i < 6; ++i) b.state(i)->resize(compact ? blocks : 0);
  b.correction.resize(t.parameter_dtype == Dtype::bf16 && data.ConsumeBool() ? size : 0);
  fill(b.parameter, data);
  fill(b.correction, data);
  if (!ordinary) {
    for (int i = 0; i < 6; ++i) fill(*b.state(i), data);
  }
  return b;
}

void step(std::vector<Buffers>& all, const ademamix::Options& options, bool fast, bool skip) {
  std::vector<ademamix::Tensor> tensors;
  for (Buffers& b : all) {
    ademamix::Tensor t = b.description;
    const bool compact = t.storage == Storage::compact;
    t.parameter = b.parameter.data();
    t.gradient = b.gradient.data();
    t.fast = fast ? b.fast.data() : nullptr;
    t.slow = b.slow.data();
    t.square = b.square.data();
    t.fast_scale = compact && fast ? b.fast_scale.data() : nullptr;
    t.slow_scale = compact ? b.slow_scale.data() : nullptr;
    t.square_scale = compact ? b.square_scale.data() : nullptr;
    t.correction = b.correction.empty() ? nullptr : reinterpret_cast<int8_t*>(b.correction.data());
    t.skipped = skip ? &b.skipped : nullptr;
    tensors.push_back(t);
  }
  ademamix::step(tensors, options);
}

// The bits within a NaN are free.
template <class T>
bool same_numbers(const Bytes& a, const Bytes& b) {
  for (size_t i = 0; i + sizeof(T) <= a.size(); i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, &a[i], sizeof x);
    std::memcpy(&y, &b[i], sizeof y);
    if (std::memcmp(&x, &y, sizeof x) != 0 && !(x != x && y != y)) return false;
  }
  return true;
}

bool is_nan_16(uint16_t x, int fraction_bits) { return (x & 0x7fff) > (0x7fff >> fraction_bits << fraction_bits); }

bool same(const Bytes& a, const Bytes& b, Dtype dtype) {
  if (dtype == Dtype::f32) return same_numbers<float>(a, b);
  if (dtype == Dtype::f64) return same_numbers<double>(a, b);
  for (size_t i = 0; i < a.size(); i += 2) {
    uint16_t x, y;
    std::memcpy(&x, &a[i], 2);
    std::memcpy(&y, &b[i], 2);
    const int fraction = dtype == Dtype::bf16 ? 7 : 10;
    if (x != y && !(is_nan_16(x, fraction) && is_nan_16(y, fraction))) return false;
  }
  return true;
}

bool same(Buffers& a, Buffers& b) {
  const Dtype parameter = a.description.parameter_dtype;
  if (!same(a.parameter, b.parameter, parameter) || a.skipped != b.skipped) return false;
  if (a.correction != b.correction) return false;
  if (a.description.storage == Storage::compact) {
    for (int i = 0; i < 6; ++i) {
      if (*a.state(i) != *b.state(i)) return false;
    }
    return true;
  }
  const Dtype moment = a.description.storage == Storage::bf16 ? Dtype::bf16
                       : parameter == Dtype::f64              ? Dtype::f64
                                                              : Dtype::f32;
  return same(a.fast, b.fast, moment) && same(a.slow, b.slow, moment) && same(a.square, b.square, moment);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  FuzzedDataProvider data(bytes, count);
  const bool ordinary = data.ConsumeBool();
  const bool fast = data.ConsumeBool();
  const bool skip = data.ConsumeBool();
  const double factor = ordinary ? data.PickValueInArray({1.0, -1.0, 0.25}) : data.ConsumeFloatingPoint<double>();
  ademamix::Options options{factor, data.ConsumeBool(), data.ConsumeIntegral<uint64_t>(), 1};
  std::vector<Buffers> tensors;
  for (int i = data.ConsumeIntegralInRange(1, 2); i > 0; --i) tensors.push_back(buffers(data, ordinary));
  for (int steps = data.ConsumeIntegralInRange(1, 2); steps > 0; --steps) {
    for (Buffers& b : tensors) {
      fill(b.gradient, data);
      b.description.coefficients.step += 1;
    }
    const std::vector<Buffers> before = tensors;
    ademamix::use_instruction_set("portable");
    step(tensors, options, fast, skip);
    for (const char* instructions : ademamix::instruction_sets()) {
      std::vector<Buffers> other = before;
      ademamix::use_instruction_set(instructions);
      step(other, options, fast, skip);
      for (size_t i = 0; ordinary && i < tensors.size(); ++i) {
        if (!same(tensors[i], other[i])) {
          std::fprintf(stderr, "tensor %zu has other bits with %s\n", i, instructions);
          std::abort();
        }
      }
    }
  }
  return 0;
}
