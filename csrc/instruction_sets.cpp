#include "instruction_sets.h"

#include <atomic>
#include <cstring>

namespace ademamix {
namespace {

struct InstructionSet {
  const char* name;
  Kernel (*plain_kernel)(const Tensor&, const Options&);
  Kernel (*coded_kernel)(const Tensor&);
};

std::vector<InstructionSet> find_available() {
  std::vector<InstructionSet> found;
#if defined(ADEMAMIX_X86)
  const bool has_avx2 = __builtin_cpu_supports("avx2");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) found.push_back({"avx512", avx512::plain_kernel, avx512::coded_kernel});
  if (has_avx2) found.push_back({"avx2", avx2::plain_kernel, avx2::coded_kernel});
#endif
  found.push_back({"portable", portable::plain_kernel, portable::coded_kernel});
  return found;
}

const std::vector<InstructionSet>& available() {
  static const std::vector<InstructionSet> found = find_available();
  return found;
}

std::atomic<size_t> in_use{0};

}  // namespace

Kernel kernel_for(const Tensor& tensor, const Options& options) {
  const InstructionSet& set = available()[in_use];
  return tensor.storage == Storage::plain ? set.plain_kernel(tensor, options) : set.coded_kernel(tensor);
}

std::vector<const char*> instruction_sets() {
  std::vector<const char*> names;
  for (const InstructionSet& set : available()) names.push_back(set.name);
  return names;
}

const char* instruction_set() { return available()[in_use].name; }

void use_instruction_set(const char* name) {
  for (size_t i = 0; i < available().size(); ++i) {
    if (std::strcmp(available()[i].name, name) == 0) in_use = i;
  }
}

}  // namespace ademamix
