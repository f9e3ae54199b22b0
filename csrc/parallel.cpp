#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

namespace ademamix {
namespace {

// torch's intra-op threads are an OpenMP team, and idle members of a team spin. A second pool would compete with them
// for the cores, so the team itself is used, through the entry point that compilers call for `#pragma omp parallel`.
// It is looked up at run time: linking to an OpenMP library could bring a second one into the process.
using OpenMPParallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);

OpenMPParallel find_openmp() {
#if defined(_WIN32)
  return nullptr;
#else
  return reinterpret_cast<OpenMPParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
#endif
}

OpenMPParallel openmp() {
  static const OpenMPParallel found = find_openmp();
  return found;
}

struct Team {
  std::atomic<int64_t> next{0};
  int64_t count;
  const std::function<void(int64_t)>* work;

  void take_turns() {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) (*work)(i);
  }
};

}  // namespace

void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& work) {
  Team team;
  team.count = count;
  team.work = &work;
  threads = static_cast<int>(std::min<int64_t>(threads, count));
  if (threads <= 1) {
    team.take_turns();
  } else if (OpenMPParallel parallel = openmp()) {
    parallel([](void* data) { static_cast<Team*>(data)->take_turns(); }, &team, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back([&team] { team.take_turns(); });
    team.take_turns();
    for (std::thread& helper : helpers) helper.join();
  }
}

const char* thread_source() { return openmp() ? "openmp" : "std::thread"; }

}  // namespace ademamix
