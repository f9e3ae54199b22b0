#include "driver_stream.h"

#include <string>
#include <vector>

#include "driver_tensors.h"
#include "instruction_sets.h"
#include "stream.h"

namespace driver {
namespace {

using Bytes = std::vector<unsigned char>;

Bytes random_bytes(size_t size) {
  std::mt19937 random(41);
  Bytes bytes(size);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

bool changed_between(const Bytes& before, const Bytes& after, size_t first, size_t last, unsigned char by) {
  for (size_t i = 0; i < before.size(); ++i) {
    if (after[i] != (before[i] ^ (i >= first && i < last ? by : 0))) return false;
  }
  return true;
}

// Where it writes is seen by having it write something else than it has read.
void check_stream(size_t size, size_t first, size_t last, const char* instructions) {
  const Bytes starts[] = {random_bytes(4 * size), random_bytes(2 * size), random_bytes(size)};
  Bytes gradient = starts[0], wide = starts[1], narrow = starts[2];
  const ademamix::Streams tensor{{{gradient.data(), 4}, {wide.data(), 2}, {narrow.data(), 1}},
                                 static_cast<int64_t>(size)};
  ademamix::use_instruction_set(instructions);
  const auto pass = [&](uint32_t change) {
    return ademamix::stream_kernel()(tensor, static_cast<int64_t>(first), static_cast<int64_t>(last), change);
  };
  const uint32_t seen = pass(0xa5a5a5a5u);
  bool good = gradient == starts[0] && changed_between(starts[1], wide, 2 * first, 2 * last, 0xa5) &&
              changed_between(starts[2], narrow, first, last, 0xa5);
  for (size_t i = 4 * first; i < 4 * last; ++i) {
    gradient[i] = static_cast<unsigned char>(gradient[i] ^ 1);
    good = good && pass(0) != seen;
    gradient[i] = starts[0][i];
  }
  expect(good && pass(0) == seen, "a stream of elements " + std::to_string(first) + " to " + std::to_string(last) +
                                      " of " + std::to_string(size) + ", " + instructions);
}

}  // namespace

void check_streams() {
  for (const char* instructions : ademamix::instruction_sets()) {
    check_stream(1, 0, 1, instructions);
    check_stream(300, 0, 300, instructions);
    check_stream(300, 128, 299, instructions);
    check_stream(1000, 7, 907, instructions);
  }
  Bytes gradient = random_bytes(200'000), moment = random_bytes(100'000);
  const Bytes starts[] = {gradient, moment};
  const ademamix::Streams tensor{{{gradient.data(), 2}, {moment.data(), 1}}, 100'000};
  expect(ademamix::stream({tensor, tensor}, 2) > 0, "a stream takes time");
  expect(gradient == starts[0] && moment == starts[1], "a stream changes nothing");
}

}  // namespace driver
