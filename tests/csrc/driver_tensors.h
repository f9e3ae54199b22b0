// What the checks of the driver are made with: arrays of any format, and a count of what held.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "driver_formats.h"

namespace driver {

using namespace formats;

inline int passed = 0;
inline int failed = 0;

inline void expect(bool holds, const std::string& what) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED: %s\n", what.c_str());
}

inline bool agree(double x, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(x);
  return std::isinf(expected) ? x == expected : std::abs(x - expected) <= tolerance;
}

// Numbers that are spread much like normal ones, the same on every machine: std::normal_distribution takes logarithms,
// and their last digit is the library's affair.
struct Normal {
  double operator()(std::mt19937& random) const {
    double sum = -2;
    for (int i = 0; i < 4; ++i) sum += 0x1p-32 * static_cast<double>(random());
    return 1.75 * sum;
  }
};

// A gradient times a factor as fp32 arithmetic takes it: what is finite stays so, also its square.
inline double limited(double x, double limit) { return std::isfinite(x) ? std::clamp(x, -limit, limit) : x; }
inline float gradient_in_fp32(double gradient, double factor) {
  const float single = static_cast<float>(limited(gradient, std::numeric_limits<float>::max()));
  return static_cast<float>(limited(single * static_cast<float>(factor), 0x1p62));
}

// Room for `lead` elements comes before the first, so that it lies on no boundary larger than an element.
struct Array {
  const Format* format;
  size_t lead, size;
  std::vector<unsigned char> bytes;

  Array(const Format& f, size_t before, size_t count)
      : format(&f), lead(before), size(count), bytes((before + count) * f.bytes) {}

  void* data() { return bytes.data() + lead * format->bytes; }

  template <class T>
  T at(size_t i) const {
    T value;
    std::memcpy(&value, bytes.data() + (lead + i) * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void put(size_t i, T value) {
    std::memcpy(bytes.data() + (lead + i) * sizeof(T), &value, sizeof(T));
  }

  double operator[](size_t i) const {
    if (format == &kF32) return at<float>(i);
    if (format == &kF64) return at<double>(i);
    return decode(*format, at<uint16_t>(i));
  }
  void set(size_t i, double x) {
    if (format == &kF32) return put(i, static_cast<float>(x));
    if (format == &kF64) return put(i, x);
    put(i, static_cast<uint16_t>(encode(*format, x)));
  }
};

// All results of steps so far in one number (FNV-1a), which must be the same on every processor.
inline uint64_t digest = 0xcbf29ce484222325u;

inline void add_to_digest(const std::vector<unsigned char>& bytes) {
  for (unsigned char byte : bytes) digest = (digest ^ byte) * 0x100000001b3u;
}

// Every NaN counts as the same: processors make different ones.
inline void add_to_digest(Array array) {
  for (size_t i = 0; i < array.size; ++i) {
    if (std::isnan(array[i])) array.set(i, kNaN);
  }
  add_to_digest(array.bytes);
}

// What a step of some tensors depends on, beside the tensors.
struct Flags {
  bool fast, skip, stochastic;
  bool corrected = false;  // bf16 parameters have masters
};

constexpr double kFactor = -1.0 / 3;
constexpr uint64_t kSeed = 0x123456789abcdefu;

inline std::string name_of(const Format& p, const Format& g, const Flags& flags) {
  return std::string(p.name) + " by " + g.name + (flags.fast ? ", m1" : "") + (flags.skip ? ", skip" : "") +
         (flags.stochastic ? ", stochastic" : "") + (flags.corrected ? ", masters" : "");
}

}  // namespace driver
