// The part of DLPack 1.x that describes a tensor without a copy: a framework offers it as
// `__dlpack_c_exchange_api__` on its tensor class. Names and layout are those of the specification
// (https://dmlc.github.io/dlpack/latest/c_api.html).
#pragma once

#include <cstdint>

namespace ademamix {

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
constexpr int32_t kDLCPU = 1;

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
enum : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4 };

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

struct DLPackExchangeAPI {
  uint32_t major_version;
  uint32_t minor_version;
  DLPackExchangeAPI* older;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out);
  void* current_work_stream;
};

}  // namespace ademamix
