// Tensors of torch, as the core finds them in Python's lists: it is built without torch's headers. All that they say
// about themselves is checked here, so that nothing outside their memory is read or written, whatever Python passes.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "dlpack_exchange.h"
#include "step.h"

namespace ademamix {

// The types of elements. The first are those of parameters, `Dtype` in step.h.
enum class ElementType : int {
  f32 = static_cast<int>(Dtype::f32),
  f64 = static_cast<int>(Dtype::f64),
  bf16 = static_cast<int>(Dtype::bf16),
  f16 = static_cast<int>(Dtype::f16),
  i16,
  i8,
  u8,
  i64,
  unknown
};
constexpr bool is_floating_point(ElementType type) { return type <= ElementType::f16; }

// Under the names of their dtypes.
constexpr std::pair<const char*, ElementType> kElementTypes[] = {
    {"float32", ElementType::f32},   {"float64", ElementType::f64}, {"bfloat16", ElementType::bf16},
    {"float16", ElementType::f16},   {"int16", ElementType::i16},   {"int8", ElementType::i8},
    {"uint8", ElementType::u8},      {"int64", ElementType::i64},
};

// The type of codes.
template <class Code>
constexpr ElementType element_type() {
  if constexpr (std::is_same_v<Code, int16_t>) return ElementType::i16;
  if constexpr (std::is_same_v<Code, int8_t>) return ElementType::i8;
  if constexpr (std::is_same_v<Code, uint8_t>) return ElementType::u8;
}

// Where the elements of a tensor are.
struct Memory {
  void* address;
  int64_t size;
  ElementType type;
  bool contiguous;  // they follow one another in row-major order
  bool on_cpu;

  bool is_there() const { return on_cpu && (address != nullptr || size == 0); }
};

class TensorReader {
 public:
  // The classes are torch.Tensor and torch.nn.Parameter. `exchange` is the capsule with DLPack's functions for them. It
  // is None where torch has none, before 2.10: tensors are then asked through their Python methods, which takes ten
  // times as long. `types` maps dtypes of torch to the numbers of their element types.
  TensorReader(nanobind::type_object tensor_class, nanobind::type_object parameter_class, nanobind::object exchange,
               nanobind::dict types)
      : tensor_class_(std::move(tensor_class)),
        parameter_class_(std::move(parameter_class)),
        is_neg_(tensor_class_.attr("is_neg")),
        api_(api_in(exchange)),
        types_(std::move(types)) {}

  // Whether a tensor that should have elements in the memory of the CPU has none. Others, of classes that may be mere
  // wrappers or on other devices, are not looked at; of one that is not dense, torch says so itself.
  bool lacks_memory(nanobind::handle tensor) const {
    const nanobind::handle type = tensor.type();
    if (!type.is(tensor_class_) && !type.is(parameter_class_)) return false;
    const Memory memory = api_ != nullptr ? exchanged(tensor) : asked(tensor);
    return memory.on_cpu && !memory.is_there();
  }

  bool has_exchange() const { return api_ != nullptr; }

  // Describes a tensor of torch.Tensor or torch.nn.Parameter in the memory of the CPU, quickly; false if it is another,
  // or has no elements there.
  bool describe(nanobind::handle tensor, DLTensor& found, Memory& memory) const {
    const nanobind::handle type = tensor.type();
    if (!type.is(tensor_class_) && !type.is(parameter_class_)) return false;
    if (api_->dltensor_from_py_object_no_sync(tensor.ptr(), &found) != 0) {
      PyErr_Clear();
      return false;
    }
    memory = memory_of(found);
    return memory.is_there();
  }

  // Whether the elements in memory are those of a tensor with the other sign: DLPack does not say.
  bool is_negated(nanobind::handle tensor) const {
    PyObject* const arguments[] = {tensor.ptr()};
    const nanobind::object answer = nanobind::steal(PyObject_Vectorcall(is_neg_.ptr(), arguments, 1, nullptr));
    if (!answer.is_valid()) PyErr_Clear();
    return answer.ptr() != Py_False;
  }

  // Whether all tensors that this copy of the reader has read are contiguous. The addresses of others are of no use.
  bool contiguous() const { return contiguous_; }

  // `role` and `position` name the tensor in the message if there is no memory that the kernels can use.
  Memory read(nanobind::handle tensor, const char* role, size_t position) {
    if (!PyType_IsSubtype(Py_TYPE(tensor.ptr()), reinterpret_cast<PyTypeObject*>(tensor_class_.ptr()))) {
      fail(role, position, "is not a tensor");
    }
    const Memory memory = api_ != nullptr ? exchanged(tensor) : asked(tensor);
    if (!memory.on_cpu) fail(role, position, "is not in the memory of the CPU");
    if (memory.type == ElementType::unknown) fail(role, position, "has elements of a type that it does not know");
    if (memory.address == nullptr && memory.size > 0) fail(role, position, "has no memory");
    contiguous_ = contiguous_ && memory.contiguous;
    return memory;
  }

  // The address of a tensor of known size and element type.
  void* read(nanobind::handle tensor, const char* role, size_t position, int64_t size, ElementType type) {
    const Memory memory = read(tensor, role, position);
    expect_size(memory, size, role, position);
    if (memory.type != type) fail(role, position, "has elements of another type than its storage");
    return memory.address;
  }

  static void expect_size(const Memory& memory, int64_t size, const char* role, size_t position) {
    if (memory.size == size) return;
    fail(role, position, "has " + std::to_string(memory.size) + " elements, not " + std::to_string(size));
  }

  [[noreturn]] static void fail(const char* role, size_t position, const std::string& reason) {
    const std::string message = "the fused kernel cannot use the " + std::string(role) + " of tensor " +
                                std::to_string(position) + " of its group: it " + reason;
    throw nanobind::value_error(message.c_str());
  }

 private:
  static const DLPackExchangeAPI* api_in(nanobind::handle capsule) {
    if (capsule.is_none()) return nullptr;
    const void* found = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
    if (found == nullptr) throw nanobind::python_error();
    const auto* api = static_cast<const DLPackExchangeAPI*>(found);
    return api->major_version == 1 && api->dltensor_from_py_object_no_sync != nullptr ? api : nullptr;
  }

  Memory exchanged(nanobind::handle tensor) const {
    DLTensor found;
    if (api_->dltensor_from_py_object_no_sync(tensor.ptr(), &found) != 0) throw nanobind::python_error();
    return memory_of(found);
  }

  // Without strides, which DLPack before 1.2 allows, elements follow one another in row-major order.
  static Memory memory_of(const DLTensor& found) {
    Memory memory{static_cast<char*>(found.data) + found.byte_offset, 1, type_of(found.dtype), true,
                  found.device.device_type == kDLCPU};
    for (int32_t i = found.ndim - 1; i >= 0; --i) {
      if (found.strides != nullptr && found.shape[i] != 1 && found.strides[i] != memory.size) memory.contiguous = false;
      memory.size *= found.shape[i];
    }
    if (memory.size == 0) memory.contiguous = true;
    if (found.data == nullptr) memory.address = nullptr;
    return memory;
  }

  static ElementType type_of(DLDataType dtype) {
    if (dtype.lanes != 1) return ElementType::unknown;
    switch (dtype.code << 8 | dtype.bits) {
      case kDLFloat << 8 | 32: return ElementType::f32;
      case kDLFloat << 8 | 64: return ElementType::f64;
      case kDLFloat << 8 | 16: return ElementType::f16;
      case kDLBfloat << 8 | 16: return ElementType::bf16;
      case kDLInt << 8 | 16: return ElementType::i16;
      case kDLInt << 8 | 8: return ElementType::i8;
      case kDLInt << 8 | 64: return ElementType::i64;
      case kDLUInt << 8 | 8: return ElementType::u8;
      default: return ElementType::unknown;
    }
  }

  Memory asked(nanobind::handle tensor) const {
    const bool on_cpu = nanobind::cast<bool>(tensor.attr("is_cpu"));
    const nanobind::object dtype = tensor.attr("dtype");
    const ElementType type = types_.contains(dtype) ? static_cast<ElementType>(nanobind::cast<int>(types_[dtype]))
                                                    : ElementType::unknown;
    const auto address = nanobind::cast<uintptr_t>(tensor.attr("data_ptr")());
    return {reinterpret_cast<void*>(address), nanobind::cast<int64_t>(tensor.attr("numel")()), type,
            nanobind::cast<bool>(tensor.attr("is_contiguous")()), on_cpu};
  }

  nanobind::type_object tensor_class_, parameter_class_;
  nanobind::object is_neg_;
  const DLPackExchangeAPI* api_;
  nanobind::dict types_;
  bool contiguous_ = true;
};

}  // namespace ademamix
