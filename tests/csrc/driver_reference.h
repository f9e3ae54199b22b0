// Coded tensors, and one step on them element by element, as the formats are described: with exponents and fractions
// in double, not with the bits of floats.
#pragma once

#include <cstdint>
#include <vector>

#include "driver_tensors.h"
#include "step.h"

namespace driver {

using ademamix::Storage;

// An offset-float format: `fraction` bits after the leading one, the offset 2^-depth, and as many random bits as there
// are below the last place of a code. bf16 has no fraction here.
struct CodeFormat {
  int bytes;
  bool is_signed;
  int fraction, depth;
};
constexpr CodeFormat kFastCode{1, true, 4, 7};
constexpr CodeFormat kSlowCode{2, true, 12, 7};
constexpr CodeFormat kSquareCode{1, false, 4, 15};
constexpr CodeFormat kWideSquareCode{1, false, 2, 60};
constexpr CodeFormat kBF16Code{2, false, 0, 0};

// A moment of a tensor: its codes, allocated to the byte, and the scales of its blocks.
struct CodedMoment {
  CodeFormat format;
  std::vector<unsigned char> codes;
  std::vector<uint8_t> scales;

  CodedMoment(const CodeFormat& f, size_t size, size_t blocks) : format(f), codes(size * f.bytes), scales(blocks) {}

  int code(size_t i) const;
  void put(size_t i, int code);
  double value(size_t i, size_t block) const;

  bool operator==(const CodedMoment& other) const { return codes == other.codes && scales == other.scales; }
};

struct CodedExample {
  Storage storage;
  size_t row_size, blocks_per_row;
  Array parameter, gradient;
  CodedMoment fast, slow, square;
  std::vector<int8_t> correction;
  ademamix::Coefficients coefficients{};
  int64_t index = 0;
  int64_t skipped = 0;

  CodedExample(Storage s, const Format& p, const Format& g, size_t rows, size_t row_size);

  // The block that element i is in.
  size_t block_of(size_t i) const { return i / row_size * blocks_per_row + i % row_size / ademamix::kBlockSize; }

  void digest() const {
    add_to_digest(parameter);
    for (const CodedMoment* moment : {&fast, &slow, &square}) {
      if (storage == Storage::bf16) {
        Array values(kBF16, 0, parameter.size);
        values.bytes = moment->codes;
        add_to_digest(values);
      } else {
        add_to_digest(moment->codes);
        add_to_digest(moment->scales);
      }
    }
  }

  // The same bits, but for those within a NaN of the parameter.
  bool operator==(const CodedExample& other) const {
    for (size_t i = 0; i < parameter.size; ++i) {
      if (!agree(parameter[i], other.parameter[i], 0)) return false;
    }
    return fast == other.fast && slow == other.slow && square == other.square && correction == other.correction &&
           skipped == other.skipped;
  }
};

void step_by_reference(CodedExample& example, const Flags& flags, double factor);

}  // namespace driver
