#include "driver_coded.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "driver_reference.h"

namespace driver {
namespace {

constexpr Storage kStorages[] = {Storage::bf16, Storage::compact};

std::string name_of(Storage storage) { return storage == Storage::bf16 ? "bf16 moments" : "compact moments"; }

void run(std::vector<CodedExample>& examples, const Flags& flags, double factor, int threads,
         const char* instructions) {
  std::vector<ademamix::Tensor> tensors;
  for (CodedExample& e : examples) {
    const bool scaled = e.storage == Storage::compact;
    tensors.push_back({e.parameter.data(), e.gradient.data(), flags.fast ? e.fast.codes.data() : nullptr,
                       e.slow.codes.data(), e.square.codes.data(),
                       scaled && flags.fast ? e.fast.scales.data() : nullptr, scaled ? e.slow.scales.data() : nullptr,
                       scaled ? e.square.scales.data() : nullptr, flags.skip ? &e.skipped : nullptr,
                       static_cast<int64_t>(e.parameter.size), static_cast<int64_t>(e.row_size), e.index,
                       e.parameter.format->dtype, e.gradient.format->dtype, e.storage, e.coefficients, {},
                       flags.corrected ? e.correction.data() : nullptr});
  }
  ademamix::use_instruction_set(instructions);
  ademamix::step(tensors, {factor, flags.stochastic, kSeed, threads});
}

// ---- steps against the reference

struct Shape {
  size_t rows, row_size;
};
constexpr Shape kShapes[] = {{0, 5},   {1, 1},   {3, 7},    {5, 64},  {3, 100}, {2, 128},
                             {3, 129}, {2, 200}, {1, 1000}, {4, 384}, {40, 1}};
constexpr Shape kLargeShapes[] = {{64, 1024}, {300, 100}};  // enough for several threads, and for several runs

// Gradients that differ in size from block to block and now and then are not finite, or so large that moments, or
// their squares, do not fit their format.
void draw_gradients(CodedExample& e, std::mt19937& random) {
  constexpr double kSpecial[] = {kNaN, kInfinity, -kInfinity, 3e38, -3e38, 1e20, 0};
  const Normal normal;
  const size_t size = e.gradient.size;
  const bool wide = e.gradient.format == &kF32 || e.gradient.format == &kF64;
  for (size_t i = 0; i < size; ++i) {
    const int exponent = wide ? static_cast<int>(e.block_of(i) * 7 % 60) - 40 : -4;
    e.gradient.set(i, std::ldexp(normal(random), exponent));
  }
  if (size == 0) return;
  for (size_t k = 0; k < 2 + size / 700; ++k) {
    const size_t place = random() % size;  // drawn first by every compiler
    e.gradient.set(place, kSpecial[random() % 7]);
  }
}

std::vector<CodedExample> random_examples(Storage storage, const Format& p, const Format& g, bool large) {
  std::mt19937 random(23);
  const Normal normal;
  std::vector<CodedExample> examples;
  const auto add = [&](const Shape& shape) {
    CodedExample e(storage, p, g, shape.rows, shape.row_size);
    for (size_t i = 0; i < e.parameter.size; ++i) {
      e.parameter.set(i, normal(random));
      e.correction[i] = static_cast<int8_t>(random() % 256);
    }
    e.index = static_cast<int64_t>(examples.size());
    e.skipped = 5;
    examples.push_back(e);
  };
  for (const Shape& shape : kShapes) add(shape);
  if (large) {
    for (const Shape& shape : kLargeShapes) add(shape);
  }
  return examples;
}

// Three steps from moments of zero. After each, all instruction sets and numbers of threads must give the bits of the
// reference.
void check_coded_step(Storage storage, const Format& p, const Format& g, const Flags& flags, bool large) {
  const std::string name = name_of(storage) + ", " + name_of(p, g, flags);
  std::mt19937 random(29);
  const double factor = flags.skip ? kFactor : 1;  // 1 is a case of its own in the core
  std::vector<CodedExample> now = random_examples(storage, p, g, large);
  for (int t = 1; t <= 3; ++t) {
    for (CodedExample& e : now) {
      e.coefficients = {0.1, 1e-3 * t, 0.01 * t, 0.5 * t, 1e-3, 1e-8, 1e-5 * t, static_cast<double>(t)};
      if (t == 2) e.coefficients.slow_limit = 1e-3;  // of a slow part that is about as large
      draw_gradients(e, random);
    }
    const std::vector<CodedExample> start = now;
    for (CodedExample& e : now) {
      const int64_t before = e.skipped;
      step_by_reference(e, flags, factor);
      if (!flags.skip) e.skipped = before;
      e.digest();  // of the kernels as well, if they pass
    }
    for (const char* instructions : ademamix::instruction_sets()) {
      for (int threads : {1, 2, 5}) {
        if (threads > 1 && !large) continue;
        std::vector<CodedExample> other = start;
        run(other, flags, factor, threads, instructions);
        for (size_t i = 0; i < now.size(); ++i) {
          expect(other[i] == now[i], name + ": step " + std::to_string(t) + " of tensor " + std::to_string(i) + ", " +
                                         instructions + ", " + std::to_string(threads) + " threads");
        }
      }
    }
  }
}

// ---- codes

// Moments that move at rate 0 are only decoded and encoded. Blocks hold the same code throughout, so that all of them
// are tried in all lanes, and one large code that keeps the scale. The least squares but 0 are left out: their blocks
// would become wide ones.
void check_stored_again(const char* instructions, int scale) {
  CodedExample e(Storage::compact, kF32, kF32, 1 << 10, 57);
  constexpr int kTop[] = {7 << 4, 7 << 12, 15 << 4};  // the largest codes below the bound
  CodedMoment* const moments[] = {&e.fast, &e.slow, &e.square};
  std::vector<CodedExample> examples;
  for (int k = 0; k < 3; ++k) {
    CodedMoment& moment = *moments[k];
    for (size_t i = 0; i < e.parameter.size; ++i) {
      int code = static_cast<int>(i) % (kTop[k] + 1);
      if (k == 2 && code <= 4) code = 0;
      moment.put(i, i % e.row_size == 0 ? kTop[k] : moment.format.is_signed && i % 2 ? -code : code);
    }
    std::fill(moment.scales.begin(), moment.scales.end(), static_cast<uint8_t>(scale));
  }
  examples.push_back(e);
  for (int t = 1; t <= 20; ++t) {
    examples[0].coefficients = {0, 0, 0, 0, 0, 1, 0, static_cast<double>(t)};
    run(examples, {true, false, false}, 1, 1, instructions);
  }
  expect(examples[0] == e, "codes at scale " + std::to_string(scale) + " survive, " + instructions);
}

// Moments that move at rate 1 become the gradient and its square. The surplus of rounding up over what would be due
// must vanish in the mean; the variance of one rounding is at most 1/4 of a place.
void check_unbiased(Storage storage, const char* instructions) {
  std::mt19937 random(31);
  std::uniform_real_distribution<double> exponent(-9, 0);
  std::vector<CodedExample> examples{CodedExample(storage, kF32, kF32, 100, 1280)};
  CodedExample& e = examples[0];
  for (size_t i = 0; i < e.parameter.size; ++i) e.gradient.set(i, (i % 2 ? -1 : 1) * std::exp2(exponent(random)));
  e.coefficients = {1, 1, 1, 0, 0, 1, 0, 1};
  run(examples, {true, false, false}, 1, 1, instructions);
  const CodedMoment* const moments[] = {&e.fast, &e.slow, &e.square};
  for (int k = 0; k < 3; ++k) {
    const CodedMoment& moment = *moments[k];
    double surplus = 0;
    int count = 0;
    for (size_t i = 0; i < e.parameter.size; ++i) {
      const float g = static_cast<float>(e.gradient[i]);
      const double exact = k == 2 ? g * g : g;
      CodedMoment neighbour = CodedMoment(moment.format, 1, 1);
      neighbour.scales[0] = moment.scales[e.block_of(i)];
      const double value = moment.value(i, e.block_of(i));
      const int code = moment.code(i);
      if (k == 2 && code <= 1) continue;  // squares are kept from vanishing
      const bool away = std::abs(value) > std::abs(exact);
      const int step = (code < 0 ? -1 : 1) * (away ? -1 : 1);
      neighbour.put(0, code + step);
      const double other = neighbour.value(0, 0);
      const double part = std::abs((exact - value) / (other - value));
      surplus += away ? part : -part;
      if (part > 1) surplus = kInfinity;
      ++count;
    }
    expect(count > 1000 && std::abs(surplus) < 6 * 0.5 * std::sqrt(static_cast<double>(count)),
           name_of(storage) + ", moment " + std::to_string(k) + ": unbiased, " + instructions);
  }
}

// A gradient that is not finite leaves the block's other elements as a gradient of 0 would, where the moments are 0.
void check_neighbours(Storage storage, bool skip, const char* instructions) {
  std::mt19937 random(37);
  const Normal normal;
  const size_t spot = 200;
  std::vector<CodedExample> start{CodedExample(storage, kF32, kF32, 2, 300)};
  for (size_t i = 0; i < start[0].parameter.size; ++i) {
    start[0].parameter.set(i, normal(random));
    start[0].gradient.set(i, i == spot ? 0 : normal(random));
  }
  start[0].coefficients = {0.1, 0.001, 0.01, 2, 0.01, 1e-8, 0.1, 1};
  std::vector<CodedExample> expected = start;
  run(expected, {true, skip, false}, 1, 1, instructions);
  for (double g : {kNaN, kInfinity, -kInfinity}) {
    std::vector<CodedExample> actual = start;
    actual[0].gradient.set(spot, g);
    run(actual, {true, skip, false}, 1, 1, instructions);
    CodedExample& e = actual[0];
    const double after = e.parameter[spot];
    bool good = skip ? after == start[0].parameter[spot] && e.skipped == 1 : std::isnan(after) && e.skipped == 0;
    if (storage == Storage::compact) good = good && e.slow.code(spot) == 0 && e.square.code(spot) == 0;
    e.parameter.put(spot, expected[0].parameter.at<float>(spot));
    for (CodedMoment* moment : {&e.fast, &e.slow, &e.square}) {
      if (storage == Storage::bf16 && !skip) {
        good = good && !std::isfinite(moment->value(spot, 0));
        moment->put(spot, 0);
      }
    }
    e.skipped = 0;
    expect(good && e == expected[0],
           name_of(storage) + (skip ? ", skip" : "") + ": neighbours of " + std::to_string(g) + ", " + instructions);
  }
}

// The largest gradients of fp32 are limited to 2^62, and so are their moments.
void check_largest(const char* instructions) {
  std::vector<CodedExample> examples{CodedExample(Storage::compact, kF32, kF32, 1, 130)};
  CodedExample& e = examples[0];
  e.gradient.set(3, 3e38);
  e.gradient.set(4, -3e38);
  e.gradient.set(5, 0x1p62);
  e.gradient.set(129, 1e-30);
  e.coefficients = {1, 1, 1, 0, 0, 1, 0, 1};
  run(examples, {true, false, false}, 1, 1, instructions);
  bool good = e.fast.scales[0] == 189 && e.slow.scales[0] == 189 && e.square.scales[0] == 251;
  good = good && e.slow.scales[1] == 28 && e.square.scales[1] == 27;
  good = good && agree(e.slow.value(3, 0), 0x1p62, 0x1p48) && agree(e.slow.value(4, 0), -0x1p62, 0x1p48);
  good = good && e.slow.code(5) == e.slow.code(3) && e.square.code(5) == e.square.code(4) && e.slow.code(6) == 0;
  expect(good, std::string("the largest gradients, ") + instructions);
}

// One gradient that is a million times as large as the others makes its block wide, and none of its squares vanishes or
// is off by more than a code's step.
void check_wide(const char* instructions) {
  std::vector<CodedExample> examples{CodedExample(Storage::compact, kF32, kF32, 1, 200)};
  CodedExample& e = examples[0];
  for (size_t i = 0; i < e.gradient.size; ++i) e.gradient.set(i, 1 + i % 10);
  e.gradient.set(7, 1e6);
  e.coefficients = {1, 1, 1, 0, 0, 1, 0, 1};
  run(examples, {true, false, false}, 1, 1, instructions);
  bool good = e.square.scales[0] <= 26 && e.square.scales[1] > 26;
  for (size_t i = 0; i < 128; ++i) {
    const double exact = e.gradient[i] * e.gradient[i];
    good = good && agree(e.square.value(i, 0), exact, 0.25 * exact);
  }
  expect(good, std::string("a wide block, ") + instructions);
}

}  // namespace

void check_coded_steps(const Format& parameter) {
  for (Storage storage : kStorages) {
    for (const Format* gradient : kFormats) {
      for (bool fast : {false, true}) {
        for (bool skip : {false, true}) {
          const bool large = &parameter == &kF32 && gradient == &kF32;
          check_coded_step(storage, parameter, *gradient, {fast, skip, false}, large);
          if (&parameter != &kBF16) continue;
          check_coded_step(storage, parameter, *gradient, {fast, skip, true}, false);
          const bool in_threads = gradient == &kBF16;
          check_coded_step(storage, parameter, *gradient, {fast, skip, true, true}, in_threads);
          check_coded_step(storage, parameter, *gradient, {fast, skip, false, true}, false);
        }
      }
    }
  }
}

void check_codes() {
  for (const char* instructions : ademamix::instruction_sets()) {
    for (int scale : {27, 28, 100, 127, 200, 253}) check_stored_again(instructions, scale);
    for (Storage storage : kStorages) {
      check_unbiased(storage, instructions);
      for (bool skip : {false, true}) check_neighbours(storage, skip, instructions);
    }
    check_largest(instructions);
    check_wide(instructions);
  }
}

}  // namespace driver
