// The float32 clocks of parameters.
#pragma once

#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ademamix {

// Pairs of them: all steps of a parameter, and those of its slow average.
class Clocks {
 public:
  using Pair = std::pair<double, double>;

  void reserve(size_t count) {
    clocks_.reserve(count);
    positions_.reserve(count);
  }

  void add(float* step, float* slow_step) {
    clocks_.push_back({step, slow_step});
    const float next[] = {*step + 1.0f, *slow_step + 1.0f};
    uint64_t bits;  // unlike a number, these are equal to themselves
    static_assert(sizeof bits == sizeof next);
    std::memcpy(&bits, next, sizeof bits);
    if (positions_.empty() || bits != last_) {  // mostly all show the same
      last_ = bits;
      const auto [found, is_new] = known_.try_emplace(bits, static_cast<int>(distinct_.size()));
      if (is_new) distinct_.push_back({next[0], next[1]});
      last_position_ = found->second;
    }
    positions_.push_back(last_position_);
  }

  // What they will show after the coming step, each pair once.
  const std::vector<Pair>& distinct() const { return distinct_; }

  // Which of these each parameter has.
  const std::vector<int>& positions() const { return positions_; }

  void advance() const {
    for (const auto& [step, slow_step] : clocks_) {
      *step += 1.0f;
      *slow_step += 1.0f;
    }
  }

 private:
  std::vector<std::pair<float*, float*>> clocks_;
  std::vector<Pair> distinct_;
  std::vector<int> positions_;
  std::unordered_map<uint64_t, int> known_;
  uint64_t last_ = 0;
  int last_position_ = 0;
};

}  // namespace ademamix
