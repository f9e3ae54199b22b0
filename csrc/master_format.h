// The 24 bits of a bf16 parameter and its correction: `src/ademamix/formats.py` explains them, `pytorch/master.py` is the
// twin. Without branches, so that loops over them vectorise.
#pragma once

#include "number_formats.h"

namespace ademamix {
namespace ADEMAMIX_ISA {

inline float load_master(BFloat16 parameter, Correction correction) {
  const uint32_t bits = static_cast<uint32_t>(parameter.bits) << kBF16Shift;
  const uint32_t rest = static_cast<uint32_t>(static_cast<int32_t>(correction)) << kMasterShift;
  return float_of(bits + ((bits & 0x7fffffffu) == 0 ? 0u : rest));
}

// Writes x, rounded to 24 bits by noise below its last place: the nearest bf16 number, and the last byte.
inline void store_master_with(BFloat16& parameter, Correction& correction, float x, uint32_t noise) {
  constexpr uint32_t kHalf = 1u << (kMasterShift - 1);  // of the last place of the parameter, in those of the master
  const uint32_t bits = bits_of(x);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t master = ((nan ? 0x7fc00000u : bits) + noise) >> kMasterShift;
  parameter.bits = static_cast<uint16_t>((master + kHalf) >> kMasterShift);
  correction = static_cast<Correction>(master);
}

inline void store_master(BFloat16& parameter, Correction& correction, float x) {
  constexpr uint32_t kBelowHalf = kMasterMask >> 1;
  store_master_with(parameter, correction, x, kBelowHalf + ((bits_of(x) >> kMasterShift) & 1u));
}

inline void store_master_stochastic(BFloat16& parameter, Correction& correction, float x, uint32_t random) {
  store_master_with(parameter, correction, x, random & kMasterMask);
}

}  // namespace ADEMAMIX_ISA
}  // namespace ademamix
