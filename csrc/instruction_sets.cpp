#include "instruction_sets.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace ademamix {
namespace {

struct InstructionSet {
  const char* name;
  Kernel (*double_kernel)(const Tensor&);
  Kernel (*block_kernel)(const Tensor&, const Options&);
  StreamKernel stream_kernel;
};

std::vector<InstructionSet> find_available() {
  std::vector<InstructionSet> found;
#if defined(ADEMAMIX_X86)
  const bool has_avx2 = __builtin_cpu_supports("avx2");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) found.push_back({"avx512", avx512::double_kernel, avx512::block_kernel, avx512::stream_kernel});
  if (has_avx2) found.push_back({"avx2", avx2::double_kernel, avx2::block_kernel, avx2::stream_kernel});
#endif
  found.push_back({"portable", portable::double_kernel, portable::block_kernel, portable::stream_kernel});
  return found;
}

const std::vector<InstructionSet>& available() {
  static const std::vector<InstructionSet> found = find_available();
  return found;
}

constexpr char kVariable[] = "ADEMAMIX_INSTRUCTION_SET";

size_t position_of(const std::string& name) {
  std::string known;
  for (size_t i = 0; i < available().size(); ++i) {
    if (available()[i].name == name) return i;
    known += (i == 0 ? "" : ", ") + std::string(available()[i].name);
  }
  throw std::invalid_argument("\"" + name + "\" is no instruction set that the core can use on this processor: those are " +
                              known + ". The environment variable " + kVariable + " chooses one");
}

// The best, unless the environment names another.
size_t position_at_start() {
  const char* name = std::getenv(kVariable);
  return name == nullptr || *name == '\0' ? 0 : position_of(name);
}

// Read at its first use, so that a mistake in the environment is an error of the step, not of an import.
std::atomic<size_t>& in_use() {
  static std::atomic<size_t> position{position_at_start()};
  return position;
}

}  // namespace

Kernel kernel_for(const Tensor& tensor, const Options& options) {
  const InstructionSet& set = available()[in_use()];
  return tensor.parameter_dtype == Dtype::f64 ? set.double_kernel(tensor) : set.block_kernel(tensor, options);
}

StreamKernel stream_kernel() { return available()[in_use()].stream_kernel; }

std::vector<const char*> instruction_sets() {
  std::vector<const char*> names;
  for (const InstructionSet& set : available()) names.push_back(set.name);
  return names;
}

const char* instruction_set() { return available()[in_use()].name; }

void use_instruction_set(const char* name) { in_use() = position_of(name); }

}  // namespace ademamix
