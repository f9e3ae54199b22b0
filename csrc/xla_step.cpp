#include "xla_step.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "step.h"
#include "xla_threads.h"

namespace ademamix::xla {
namespace {

constexpr int64_t kCoefficients = 9;  // the fields of `Coefficients`, in their order

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void refuse(int64_t tensor, const std::string& reason) {
  throw Refusal("the fused step cannot use the arrays of parameter " + std::to_string(tensor) + ": " + reason);
}

Error* error_of(const Api& api, const char* message, ErrorCode code) {
  CreateErrorArgs arguments{sizeof arguments, nullptr, message, code};
  return api.create_error(&arguments);
}

// What is read of the frame lies where it is declared to lie.
bool is_known(const CallFrame& frame) {
  return frame.struct_size >= offsetof(CallFrame, future) && frame.arguments.struct_size == sizeof(Buffers) &&
         frame.results.struct_size == sizeof(Buffers) &&
         frame.api->struct_size >= offsetof(Api, count_threads) + sizeof frame.api->count_threads;
}

int64_t size_of(const Buffer& buffer) {
  int64_t size = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) size *= buffer.dims[i];
  return size;
}

int64_t bytes_of(const Buffer& buffer) {
  switch (buffer.dtype) {
    case DataType::f64: return 8 * size_of(buffer);
    case DataType::f32: return 4 * size_of(buffer);
    default: return 2 * size_of(buffer);
  }
}

Dtype dtype_of(const Buffer& buffer, int64_t tensor) {
  switch (buffer.dtype) {
    case DataType::f32: return Dtype::f32;
    case DataType::f64: return Dtype::f64;
    case DataType::bf16: return Dtype::bf16;
    case DataType::f16: return Dtype::f16;
  }
  refuse(tensor, "a parameter or a gradient has a dtype that the kernels do not know");
}

Coefficients coefficients_from(const Buffer& matrix, int64_t row) {
  double c[kCoefficients];
  for (int64_t i = 0; i < kCoefficients; ++i) {
    const int64_t at = row * kCoefficients + i;
    c[i] = matrix.dtype == DataType::f64 ? static_cast<const double*>(matrix.data)[at]
                                         : static_cast<const float*>(matrix.data)[at];
  }
  return {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]};
}

// Returns the memory of a result, which begins as a copy of the argument that it replaces; XLA lets the two share their
// memory, so that there is nothing to copy.
void* replaced(const Buffer& argument, const Buffer& result, int64_t size, DataType dtype, int64_t tensor) {
  if (size_of(argument) != size || size_of(result) != size) refuse(tensor, "they have different sizes");
  if (argument.dtype != dtype || result.dtype != dtype) refuse(tensor, "a moment has another dtype than the arithmetic");
  if (argument.data != result.data && size > 0) std::memcpy(result.data, argument.data, bytes_of(argument));
  return result.data;
}

// The arguments are a matrix with the coefficients of each tensor, and for each its parameter, fast average if these are
// stored, slow average, second moment, and gradient. The results are the same without gradients.
std::vector<Tensor> tensors_of(const CallFrame& frame) {
  Buffer** argument = frame.arguments.buffers;
  Buffer** result = frame.results.buffers;
  const Buffer& coefficients = **argument++;
  if (coefficients.dtype != DataType::f32 && coefficients.dtype != DataType::f64) {
    throw Refusal("the fused step cannot be taken: its coefficients are neither float32 nor float64");
  }
  const int64_t count = size_of(coefficients) / kCoefficients;
  const bool stores_fast = frame.arguments.size == 1 + 5 * count;
  if ((!stores_fast && frame.arguments.size != 1 + 4 * count) || frame.results.size != frame.arguments.size - 1 - count) {
    throw Refusal("the fused step was called with another number of arrays than its coefficients are for");
  }
  std::vector<Tensor> tensors(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    Tensor& tensor = tensors[static_cast<size_t>(i)];
    tensor.size = size_of(**argument);
    tensor.parameter_dtype = dtype_of(**argument, i);
    const DataType moments = tensor.parameter_dtype == Dtype::f64 ? DataType::f64 : DataType::f32;
    const auto next = [&](DataType dtype) { return replaced(**argument++, **result++, tensor.size, dtype, i); };
    tensor.parameter = next((*argument)->dtype);
    tensor.fast = stores_fast ? next(moments) : nullptr;
    tensor.slow = next(moments);
    tensor.square = next(moments);
    const Buffer& gradient = **argument++;
    if (size_of(gradient) != tensor.size) refuse(i, "they have different sizes");
    tensor.gradient = gradient.data;
    tensor.gradient_dtype = dtype_of(gradient, i);
    tensor.index = i;
    tensor.storage = Storage::plain;
    tensor.coefficients = coefficients_from(coefficients, i);
  }
  return tensors;
}

}  // namespace

Error* step(CallFrame* frame) {
  if (frame->extension_start != nullptr && frame->extension_start->type == kMetadataExtension) {
    Metadata* metadata = reinterpret_cast<MetadataExtension*>(frame->extension_start)->metadata;
    metadata->api_version.major_version = kMajorVersion;
    metadata->api_version.minor_version = kMinorVersion;
    metadata->traits = 0;
    return nullptr;
  }
  try {
    if (!is_known(*frame)) throw Refusal("this version of jaxlib calls foreign functions in a way that is not known here");
    const Threads threads(*frame);
    ademamix::step(tensors_of(*frame), {1.0, false, 0, threads.count()}, threads);
    return nullptr;
  } catch (const Refusal& refusal) {
    return error_of(*frame->api, refusal.what(), ErrorCode::invalid_argument);
  } catch (const std::exception& error) {
    return error_of(*frame->api, error.what(), ErrorCode::internal);
  }
}

}  // namespace ademamix::xla
