// Work on the threads of XLA, which run everything else of a JAX program on a CPU.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "parallel.h"
#include "team.h"
#include "xla_ffi.h"

namespace ademamix::xla {

class Threads {
 public:
  explicit Threads(const CallFrame& frame) : api_(frame.api), context_(frame.context) {
    int64_t found = 0;
    CountThreadsArgs arguments{sizeof arguments, nullptr, context_, &found};
    if (!failed(api_->count_threads(&arguments)) && found > 0) count_ = static_cast<int>(found);
  }

  int count() const { return count_; }

  // A `ParallelFor`.
  void operator()(int64_t count, int useful, int, const std::function<void(int64_t)>& work) const {
    const auto team = std::make_shared<PoolTeam>(count, work);
    for (int i = 1; i < useful && schedule(team); ++i) {
    }
    team->join();
    team->wait();
  }

 private:
  // XLA may carry out a task late or, as long as the thread that waits is of the same pool, not at all. So this thread
  // takes turns as well, and waits only for items that were begun. A task that comes when all are taken does nothing;
  // the team lives until the last has come.
  class PoolTeam {
   public:
    PoolTeam(int64_t count, const std::function<void(int64_t)>& work) : team_(count, work) {}

    void join() {
      const int64_t done = team_.take_turns();
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ += done;
      if (done_ == team_.count()) all_done_.notify_all();
    }

    void wait() {
      std::unique_lock<std::mutex> lock(mutex_);
      all_done_.wait(lock, [this] { return done_ == team_.count(); });
    }

   private:
    Team team_;
    int64_t done_ = 0;
    std::mutex mutex_;
    std::condition_variable all_done_;
  };
  using Shared = std::shared_ptr<PoolTeam>;

  bool schedule(const Shared& team) const {
    auto own = std::make_unique<Shared>(team);
    const auto task = [](void* data) { (*std::unique_ptr<Shared>(static_cast<Shared*>(data)))->join(); };
    ScheduleArgs arguments{sizeof arguments, nullptr, context_, task, own.get()};
    if (failed(api_->schedule(&arguments))) return false;
    own.release();  // NOLINT: the task has it
    return true;
  }

  bool failed(Error* error) const {
    if (error == nullptr) return false;
    DestroyErrorArgs arguments{sizeof arguments, nullptr, error};
    api_->destroy_error(&arguments);
    return true;
  }

  const Api* api_;
  ExecutionContext* context_;
  int count_ = 1;
};

}  // namespace ademamix::xla
