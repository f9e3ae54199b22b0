// Vectors of the masters of bf16 parameters, as master_format.h has them one by one, and blocks of these.
#pragma once

#include "master_format.h"
#include "parameter_vectors.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

// Points at parameters and their corrections.
struct MasterPointer {
  BFloat16* parameter;
  Correction* correction;

  MasterPointer operator+(int64_t i) const { return {parameter + i, correction + i}; }
};

// The masters of a tensor from `first` on.
inline MasterPointer masters_of(const Tensor& tensor, int64_t first) {
  return MasterPointer{static_cast<BFloat16*>(tensor.parameter), tensor.correction} + first;
}

ADEMAMIX_INLINE Floats load(const MasterPointer& from) {
  const Words bits = widen(reinterpret_cast<const uint16_t*>(from.parameter)) << kBF16Shift;
  const Words rest = widen(from.correction) << kMasterShift;
  return float_of(bits + ((bits & 0x7fffffffu) == 0u ? all(0u) : rest));
}

ADEMAMIX_INLINE void store_parameters(const MasterPointer& to, int i, const Group& x,
                                      const ParameterRounding& rounding) {
  const RoundedGroup masters = rounded<kMasterShift>(i, x, rounding);
  constexpr uint32_t kHalf = 1u << (kBF16Shift - 1);  // of the last place of a parameter
  Words nearest[4], corrections[4];
  for (int k = 0; k < 4; ++k) {
    nearest[k] = masters.of[k] + kHalf;
    corrections[k] = (masters.of[k] >> kMasterShift) & kMasterMask;
  }
  narrow_upper(reinterpret_cast<uint16_t*>(to.parameter) + i, nearest[0], nearest[1], nearest[2], nearest[3]);
  narrow(reinterpret_cast<uint8_t*>(to.correction) + i, corrections[0], corrections[1], corrections[2], corrections[3]);
}

// A copy of a block of any size, in fp32, with zeros after it.
inline void read_masters(float* __restrict to, int size, const MasterPointer& from, int count) {
  for (int i = 0; i < count; ++i) to[i] = load_master(from.parameter[i], from.correction[i]);
  for (int i = count; i < size; ++i) to[i] = 0;
}

inline void write_masters(const MasterPointer& to, int count, const float* __restrict from,
                          const ParameterRounding& rounding) {
  for (int i = 0; i < count; ++i) {
    if (rounding.stochastic) {
      store_master_stochastic(to.parameter[i], to.correction[i], from[i],
                              rounding.random(rounding.place + static_cast<uint64_t>(i)));
    } else {
      store_master(to.parameter[i], to.correction[i], from[i]);
    }
  }
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
