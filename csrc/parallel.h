// Runs work on the OpenMP threads that the host framework already has, or on threads of its own where there are none.
#pragma once

#include <cstdint>
#include <functional>

namespace ademamix {

// Calls work(i) once for each i in [0, count), in any order. `useful` threads are worth their start; where a team of
// `available` threads is running anyway, all of it may be used.
void parallel_for(int64_t count, int useful, int available, const std::function<void(int64_t)>& work);

// How many elements a thread should work on at a time, of so many in all. The bits of a step do not depend on it: it is
// a multiple of every vector's length, so that a loop's vectorised body and its scalar tail always meet at the end of a
// tensor.
int64_t run_size(int64_t elements, int threads);

// "openmp" if the process has a GNU-compatible OpenMP runtime to share, else "std::thread".
const char* thread_source();

// A function that spreads work over threads, as `parallel_for` does.
using ParallelFor = std::function<void(int64_t count, int useful, int available, const std::function<void(int64_t)>& work)>;

}  // namespace ademamix
