// A check of the core without Python, to run under sanitizers and on other processors:
//   cmake -S tests/csrc -B build/driver -DADEMAMIX_SANITIZE=address,undefined
//   cmake --build build/driver && build/driver/driver
// `driver bf16` checks steps of bf16 parameters alone, which is quicker. Memory is allocated to the byte, so that
// AddressSanitizer sees any access outside of a tensor.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "driver_coded.h"
#include "driver_stream.h"
#include "driver_tensors.h"
#include "driver_xla.h"
#include "parallel.h"
#include "step.h"

namespace {

using namespace driver;

constexpr int kCodes = 1 << 16;

// ---- tensors

struct Example {
  Array parameter, gradient, fast, slow, square;
  std::vector<int8_t> correction;
  ademamix::Coefficients coefficients;
  int64_t skipped = 0;

  Example(const Format& p, const Format& g, size_t lead, size_t size, const ademamix::Coefficients& c)
      : parameter(p, lead, size), gradient(g, lead, size), fast(moment(p), lead, size), slow(moment(p), lead, size),
        square(moment(p), lead, size), correction(size), coefficients(c) {}

  static const Format& moment(const Format& p) { return &p == &kF64 ? kF64 : kF32; }

  void digest() const {
    for (const Array* array : {&parameter, &fast, &slow, &square}) add_to_digest(*array);
  }

  double value(size_t i, const Flags& flags) const {
    return flags.corrected ? master(parameter.at<uint16_t>(i), correction[i]) : parameter[i];
  }

  bool same_bits(const Example& other) const {
    return parameter.bytes == other.parameter.bytes && gradient.bytes == other.gradient.bytes &&
           fast.bytes == other.fast.bytes && slow.bytes == other.slow.bytes && square.bytes == other.square.bytes &&
           correction == other.correction && skipped == other.skipped;
  }
};

void run(std::vector<Example>& examples, const Flags& flags, double factor, int threads, const char* instructions) {
  std::vector<ademamix::Tensor> tensors;
  for (Example& e : examples) {
    ademamix::Tensor tensor{};
    tensor.parameter = e.parameter.data();
    tensor.gradient = e.gradient.data();
    tensor.fast = flags.fast ? e.fast.data() : nullptr;
    tensor.slow = e.slow.data();
    tensor.square = e.square.data();
    tensor.correction = flags.corrected ? e.correction.data() : nullptr;
    tensor.skipped = flags.skip ? &e.skipped : nullptr;
    tensor.size = static_cast<int64_t>(e.parameter.size);
    tensor.index = static_cast<int64_t>(tensors.size());
    tensor.parameter_dtype = e.parameter.format->dtype;
    tensor.gradient_dtype = e.gradient.format->dtype;
    tensor.coefficients = e.coefficients;
    tensors.push_back(tensor);
  }
  ademamix::use_instruction_set(instructions);
  ademamix::step(tensors, {factor, flags.stochastic, kSeed, threads});
}

// ---- one step on tensors of many sizes, against the paper's formulas in double

constexpr size_t kSizes[] = {0, 1, 3, 31, 1000, 16383, 16384, 16385, 50001};

std::vector<Example> random_examples(const Format& p, const Format& g) {
  std::mt19937 random(17);
  const Normal normal;
  std::vector<Example> examples;
  for (size_t lead : {0, 1}) {
    for (size_t size : kSizes) {
      const double t = static_cast<double>(examples.size() + 1);
      Example e(p, g, lead, size, {0.1, 1e-4 * t, 0.001 * t, 0.5 * t, 1e-3 * t, 1e-8, 1e-5 * t, t});
      if (lead == 1) e.coefficients.slow_limit = 0.05 * t;  // a tenth of slow_gain: it bounds many elements
      for (size_t i = 0; i < size; ++i) {
        e.parameter.set(i, normal(random));
        e.gradient.set(i, normal(random));
        e.fast.set(i, 0.1 * normal(random));
        e.slow.set(i, 0.1 * normal(random));
        e.square.set(i, std::abs(normal(random)));
        e.correction[i] = static_cast<int8_t>(random() % 256);
      }
      constexpr double kSpecial[] = {kNaN, kInfinity, -kInfinity, 1e300, 3e38, -1e20, 2e19};
      for (size_t i = size % 7; i < size; i += 41) e.gradient.set(i, kSpecial[i % 7]);
      e.skipped = 5;
      examples.push_back(e);
    }
  }
  return examples;
}

bool follows_the_paper(const Example& start, const Example& end, const Flags& flags) {
  const Format& p = *start.parameter.format;
  const ademamix::Coefficients& c = start.coefficients;
  int64_t skipped = 0;
  const double rounding = flags.corrected ? kMasterRounding : p.rounding;
  const double smallest = flags.corrected ? kMasterSmallest : p.smallest;
  bool good = start.gradient.bytes == end.gradient.bytes && (flags.fast || start.fast.bytes == end.fast.bytes) &&
              (flags.corrected || start.correction == end.correction);
  for (size_t i = 0; i < start.parameter.size; ++i) {
    const double raw = start.gradient[i];
    const double g = &p == &kF64 ? kFactor * raw : gradient_in_fp32(raw, kFactor);
    const double before = start.value(i, flags);
    double new_fast = flags.fast ? (1 - c.fast_rate) * start.fast[i] + c.fast_rate * g : g;
    double new_slow = (1 - c.slow_rate) * start.slow[i] + c.slow_rate * g;
    double new_square = (1 - c.square_rate) * start.square[i] + c.square_rate * g * g;
    const double root = std::sqrt(new_square) + c.eps;
    const double slow_part = std::clamp(c.slow_gain * new_slow, -c.slow_limit * root, c.slow_limit * root);
    double after = before - c.decay * before - c.step_size * (new_fast + slow_part) / root;
    double scale = std::abs(before) + c.step_size * (std::abs(new_fast) + c.slow_gain * std::abs(new_slow)) / root;
    double moment_scale = std::abs(start.fast[i]) + std::abs(start.slow[i]) + std::abs(g);
    double square_scale = std::abs(start.square[i]) + g * g;
    double parameter_tolerance =
        (flags.stochastic ? 2 : 1) * (rounding * std::abs(after) + smallest) + p.arithmetic * scale;
    if (flags.skip && !std::isfinite(g)) {
      ++skipped;
      new_fast = start.fast[i], new_slow = start.slow[i], new_square = start.square[i], after = before;
      moment_scale = square_scale = parameter_tolerance = 0;
    }
    good = good && (!flags.fast || agree(end.fast[i], new_fast, p.arithmetic * moment_scale)) &&
           agree(end.slow[i], new_slow, p.arithmetic * moment_scale) &&
           agree(end.square[i], new_square, p.arithmetic * square_scale) &&
           agree(end.value(i, flags), after, parameter_tolerance);
    if (flags.corrected && std::isfinite(after)) {  // the parameter is the nearest to its master
      good = good && std::abs(end.parameter[i] - end.value(i, flags)) <= p.rounding * std::abs(end.parameter[i]);
    }
  }
  return good && end.skipped == start.skipped + skipped;
}

void check_step(const std::vector<Example>& start, const Flags& flags) {
  const std::string name = name_of(*start[0].parameter.format, *start[0].gradient.format, flags);
  std::vector<Example> end = start;
  run(end, flags, kFactor, 1, "portable");
  for (size_t i = 0; i < start.size(); ++i) {
    end[i].digest();
    expect(follows_the_paper(start[i], end[i], flags), name + ": against double, tensor " + std::to_string(i));
  }
  for (const char* instructions : ademamix::instruction_sets()) {
    for (int threads : {1, 2, 5}) {
      std::vector<Example> other = start;
      run(other, flags, kFactor, threads, instructions);
      const bool same = std::equal(end.begin(), end.end(), other.begin(),
                                   [](const Example& a, const Example& b) { return a.same_bits(b); });
      expect(same, name + ": same bits on " + std::to_string(threads) + " threads, " + ademamix::instruction_set());
    }
  }
}

// ---- conversions, through steps that leave exact values

// A skipped element is read and written back: every code must survive.
void check_round_trip(const Format& half, bool stochastic, const char* instructions) {
  std::vector<Example> examples{Example(half, kF32, 0, kCodes, {})};
  Example& e = examples[0];
  for (int code = 0; code < kCodes; ++code) {
    e.parameter.put(code, static_cast<uint16_t>(code));
    e.gradient.set(code, kNaN);
  }
  run(examples, {false, true, stochastic}, 1, 1, instructions);
  bool good = e.skipped == kCodes;
  for (int code = 0; code < kCodes; ++code) {
    good = good && (std::isnan(decode(half, code)) ? std::isnan(e.parameter[code])
                                                   : e.parameter.at<uint16_t>(code) == code);
  }
  expect(good, std::string("round trip of every ") + half.name + ", " + ademamix::instruction_set());
}

// A slow average that starts empty and moves at rate 1/4 becomes a quarter of the gradient.
void check_load(const Format& half, const Format& wide, const char* instructions) {
  std::vector<Example> examples{Example(wide, half, 0, kCodes, {0, 0.25, 0, 0, 0, 1, 0, 1})};
  Example& e = examples[0];
  for (int code = 0; code < kCodes; ++code) e.gradient.put(code, static_cast<uint16_t>(code));
  run(examples, {false, false, false}, 1, 1, instructions);
  bool good = true;
  for (int code = 0; code < kCodes; ++code) {
    const double exact = decode(half, code);
    good = good && agree(4 * e.slow[code], &wide == &kF64 ? exact : gradient_in_fp32(exact, 1), 0);
  }
  expect(good, std::string("every ") + half.name + " as " + wide.name + ", " + ademamix::instruction_set());
}

// fp32 numbers of every magnitude; the middle between any two neighbours in each half format, and what is next to it.
std::vector<float> float_sample() {
  constexpr float largest = std::numeric_limits<float>::max();
  std::vector<float> sample{static_cast<float>(kNaN)};
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 2039) {
    const uint32_t word = static_cast<uint32_t>(bits);
    float x;
    std::memcpy(&x, &word, sizeof x);
    if (std::isfinite(x)) sample.push_back(x);
  }
  for (const Format* half : kHalves) {
    for (int code = 0; code < infinity_code(*half); ++code) {
      const double middle = (magnitude(*half, code) + magnitude(*half, code + 1)) / 2;
      if (middle >= static_cast<double>(largest)) continue;
      const float x = static_cast<float>(middle);
      for (float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, largest)}) sample.insert(sample.end(), {y, -y});
    }
  }
  return sample;
}

// A parameter that starts at 0 becomes the slow average.
void check_store(const Format& half, const std::vector<float>& sample, bool stochastic, const char* instructions) {
  std::vector<Example> examples{Example(half, kF32, 0, sample.size(), {0, 0, 0, 1, -1, 1, 0, 1})};
  Example& e = examples[0];
  for (size_t i = 0; i < sample.size(); ++i) e.slow.put(i, sample[i]);
  run(examples, {false, false, stochastic}, 1, 1, instructions);
  bool good = true;
  double surplus = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const double x = sample[i];
    const int code = e.parameter.at<uint16_t>(i);
    if (std::isnan(x) || x == 0) {
      good = good && agree(e.parameter[i], x, 0);
    } else if (!stochastic) {
      good = good && code == encode(half, x);
    } else {
      const int below = code_below(half, x);
      const int up = (code & 0x7fff) - below;
      const double gap = magnitude(half, below + 1) - magnitude(half, below);
      const double part = (std::abs(x) - magnitude(half, below)) / gap;
      good = good && (code >= 0x8000) == std::signbit(x) && (up == 0 ? part < 1 : up == 1 && part > 0);
      surplus += up - part;
    }
  }
  // The variance of one rounding is at most 1/4; six standard deviations.
  good = good && std::abs(surplus) < 6 * 0.5 * std::sqrt(static_cast<double>(sample.size()));
  expect(good, std::string("fp32 as ") + half.name + (stochastic ? ", stochastic, " : ", nearest, ") +
                   ademamix::instruction_set());
}

// All parameters with some of the corrections: what is read and written back stays, but for corrections of 0 and NaN.
void check_masters(bool stochastic, const char* instructions) {
  bool good = true;
  for (int correction = -128; correction < 128; correction += 15) {
    std::vector<Example> examples{Example(kBF16, kF32, 0, kCodes, {})};
    Example& e = examples[0];
    for (int code = 0; code < kCodes; ++code) {
      e.parameter.put(code, static_cast<uint16_t>(code));
      e.gradient.set(code, kNaN);
      e.correction[code] = static_cast<int8_t>(correction);
    }
    run(examples, {false, true, stochastic, true}, 1, 1, instructions);
    for (int code = 0; code < kCodes; ++code) {
      const bool infinite = (code & 0x7fff) == infinity_code(kBF16);
      const bool nan = std::isnan(decode(kBF16, code)) || (infinite && correction > 0);
      const bool zero = (code & 0x7fff) == 0;
      good = good && e.correction[code] == (nan || zero ? 0 : correction) &&
             (nan ? std::isnan(e.parameter[code]) : e.parameter.at<uint16_t>(code) == code);
    }
  }
  expect(good, std::string("masters are kept, ") + ademamix::instruction_set());
}

// A parameter that starts at 0 becomes the slow average: the nearest master, or one of its two neighbours.
void check_stored_masters(const std::vector<float>& sample, bool stochastic, const char* instructions) {
  std::vector<Example> examples{Example(kBF16, kF32, 0, sample.size(), {0, 0, 0, 1, -1, 1, 0, 1})};
  Example& e = examples[0];
  for (size_t i = 0; i < sample.size(); ++i) e.slow.put(i, sample[i]);
  run(examples, {false, false, stochastic, true}, 1, 1, instructions);
  bool good = true;
  double surplus = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const double x = sample[i], found = e.value(i, {false, false, stochastic, true});
    const double place = std::ldexp(1, std::max(std::ilogb(x), -126) - 15);
    if (std::isnan(x) || x == 0) {
      good = good && agree(found, x, 0) && e.correction[i] == 0;
    } else if (e.parameter[i] == 0) {
      good = good && std::abs(x) < 129 * place;  // half of the least parameter
    } else if (!stochastic) {
      good = good && found == std::nearbyint(x / place) * place;
    } else {
      good = good && std::abs(found - x) < place;
      surplus += (std::abs(found) - std::abs(x)) / place;
    }
  }
  good = good && std::abs(surplus) < 6 * 0.5 * std::sqrt(static_cast<double>(sample.size()));
  expect(good, std::string("fp32 as masters") + (stochastic ? ", stochastic, " : ", nearest, ") +
                   ademamix::instruction_set());
}

void check_steps(const Format& p) {
  for (const Format* g : kFormats) {
    const std::vector<Example> examples = random_examples(p, *g);
    for (bool fast : {false, true}) {
      for (bool skip : {false, true}) {
        check_step(examples, {fast, skip, false});
        if (&p != &kBF16) continue;
        check_step(examples, {fast, skip, true});
        for (bool stochastic : {false, true}) check_step(examples, {fast, skip, stochastic, true});
      }
    }
  }
}

void check_conversions() {
  const std::vector<float> sample = float_sample();
  for (const char* instructions : ademamix::instruction_sets()) {
    for (const Format* half : kHalves) {
      for (bool stochastic : {false, true}) {
        if (stochastic && half != &kBF16) continue;
        check_round_trip(*half, stochastic, instructions);
        check_store(*half, sample, stochastic, instructions);
      }
      for (const Format* wide : {&kF32, &kF64}) check_load(*half, *wide, instructions);
    }
    for (bool stochastic : {false, true}) {
      check_masters(stochastic, instructions);
      check_stored_masters(sample, stochastic, instructions);
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string only = count > 1 ? arguments[1] : "";
  for (const Format* p : kFormats) {
    if (!only.empty() && only != p->name) continue;
    check_steps(*p);
    if (p != &kF64) driver::check_coded_steps(*p);
  }
  driver::check_xla_steps();
  driver::check_streams();
  if (only.empty()) {
    check_conversions();
    driver::check_codes();
  }
  ademamix::use_instruction_set(ademamix::instruction_sets().front());
  std::printf("digest %016llx\n", static_cast<unsigned long long>(driver::digest));
  std::printf("%s, %s: %d passed, %d failed\n", ademamix::instruction_set(), ademamix::thread_source(), passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
