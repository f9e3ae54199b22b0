// Blocks: their moments in fp32, and their random words.
#pragma once

#include "number_formats.h"
#include "step.h"
#include ADEMAMIX_SIMD_HEADER

namespace ademamix {
namespace ADEMAMIX_ISA {

// Compilers differ in what they inline. Calls between the passes over a block would cost as much as several vectors.
#define ADEMAMIX_INLINE inline __attribute__((always_inline))
#define ADEMAMIX_NOINLINE __attribute__((noinline))

// Codes are written four vectors at a time, see `narrow`.
constexpr int kGroupSize = 4 * kLanes;

struct Group {
  Floats of[4];
};

// The moments of a block in fp32.
struct Moments {
  alignas(64) float fast[kBlockSize];
  alignas(64) float slow[kBlockSize];
  alignas(64) float square[kBlockSize];
};

struct Scales {
  uint8_t* fast;
  uint8_t* slow;
  uint8_t* square;
};

template <class Fast, class Slow, class Square>
struct CodesOf {
  Fast* fast;
  Slow* slow;
  Square* square;
};

// The first multiples of a number, one for each element of a block.
struct Multiples {
  alignas(64) uint32_t words[kBlockSize];

  constexpr explicit Multiples(uint32_t number) : words() {
    for (uint32_t i = 0; i < kBlockSize; ++i) words[i] = i * number;
  }
};
constexpr Multiples kLaneWords(kLaneStep);
constexpr Multiples kLaneNumbers(1);

// The random words of the elements from `i` on in the block with this key. The steps are the first of `mix`.
inline Words random_words(Words block_key, int i) {
  Words x = block_key + load(kLaneWords.words + i);
  x = (x ^ (x >> 16)) * kFirstMixer;
  return x ^ (x >> 15);
}

// Random words that are independent of the ones above.
inline Words more_random_words(Words random) {
  const Words x = random * kSecondMixer;
  return x ^ (x >> 16);
}

// The random words of a group of vectors.
struct GroupWords {
  Words of[4];

  GroupWords(Words block_key, int i)
      : of{random_words(block_key, i), random_words(block_key, i + kLanes), random_words(block_key, i + 2 * kLanes),
           random_words(block_key, i + 3 * kLanes)} {}
};

// Writes the codes of a group: encode(moments, random words) of each of its vectors.
template <class Code, class Encode>
ADEMAMIX_INLINE void write_group(Code* to, const Group& from, const GroupWords& random, const Encode& encode) {
  narrow(to, encode(from.of[0], random.of[0]), encode(from.of[1], random.of[1]), encode(from.of[2], random.of[2]),
         encode(from.of[3], random.of[3]));
}

// Writes the upper halves of what `encode` returns.
template <class Encode>
ADEMAMIX_INLINE void write_upper_group(uint16_t* to, const Group& from, const GroupWords& random,
                                       const Encode& encode) {
  narrow_upper(to, encode(from.of[0], random.of[0]), encode(from.of[1], random.of[1]), encode(from.of[2], random.of[2]),
               encode(from.of[3], random.of[3]));
}

ADEMAMIX_INLINE Group load_group(const float* from) {
  return {{load(from), load(from + kLanes), load(from + 2 * kLanes), load(from + 3 * kLanes)}};
}

ADEMAMIX_INLINE void store_group(float* to, const Group& from) {
  for (int k = 0; k < 4; ++k) store(to + k * kLanes, from.of[k]);
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
