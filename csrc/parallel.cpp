#include "parallel.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

#include "team.h"

namespace ademamix {
namespace {

// Long runs give each thread long stretches of memory to itself. Where threads take turns at short ones, what each
// prefetches beyond the end of its own belongs to another, which is about to write it: with 2^14 elements a compact step
// took twice as long on a Zen 5. Some runs for each thread even out their speeds.
constexpr int64_t kShortestRun = 1 << 14;
constexpr int64_t kLongestRun = 1 << 20;
constexpr int64_t kRunsPerThread = 4;

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

}  // namespace

void parallel_for(int64_t count, int useful, int available, const std::function<void(int64_t)>& work) {
  Team team(count, work);
  useful = static_cast<int>(std::min<int64_t>(useful, count));
  if (useful <= 1) {
    team.take_turns();
  } else if (OpenMPParallel parallel = openmp()) {
    // All of the team, even where fewer would do: libgomp ends the threads that a smaller team has no place for, and
    // has to start them again for the next team of full size, which is torch's.
    parallel([](void* data) { static_cast<Team*>(data)->take_turns(); }, &team, static_cast<unsigned>(available), 0);
  } else {
    std::vector<std::thread> helpers;
    helpers.reserve(static_cast<size_t>(useful));
    try {
      for (int i = 1; i < useful; ++i) helpers.emplace_back([&team] { team.take_turns(); });
    } catch (const std::system_error&) {
      // The system has no more threads to give: those there are do the work.
    }
    team.take_turns();
    for (std::thread& helper : helpers) helper.join();
  }
}

int64_t run_size(int64_t elements, int threads) {
  const int64_t share = elements / (kRunsPerThread * std::max(threads, 1));
  return std::clamp(share / kShortestRun * kShortestRun, kShortestRun, kLongestRun);
}

const char* thread_source() { return openmp() ? "openmp" : "std::thread"; }

}  // namespace ademamix
