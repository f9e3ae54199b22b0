// Threads that take turns at the items of a work.
#pragma once

#include <atomic>
#include <cfenv>
#include <cstdint>
#include <functional>

namespace ademamix {

// All work in the floating-point mode of the thread that made the team: threads have one each, and whether subnormal
// numbers are flushed to zero, for example, must not depend on which thread does the work.
class Team {
 public:
  Team(int64_t count, const std::function<void(int64_t)>& work) : count_(count), work_(&work) { std::fegetenv(&mode_); }

  int64_t count() const { return count_; }

  // Works until every item is taken, and returns how many this thread has done.
  int64_t take_turns() {
    int64_t done = 0;
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetenv(&mode_);
    for (int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1), ++done) (*work_)(i);
    std::fesetenv(&own);
    return done;
  }

 private:
  std::atomic<int64_t> next_{0};
  int64_t count_;
  const std::function<void(int64_t)>* work_;
  std::fenv_t mode_;
};

}  // namespace ademamix
