// The part of XLA's foreign-function interface that a handler on a CPU needs: what `jax.ffi` calls. Layout and numbers
// are those of `xla/ffi/api/c_api.h`, which comes with jaxlib; a test compares them with the one that is installed.
//
// They are declared here so that building needs no jaxlib, and one build serves every jaxlib: in all from 0.4.38 to
// 0.10.2 this part is the same. A handler that is compiled against the headers of one jaxlib claims the version of
// those, and older ones refuse it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ademamix::xla {

// The version that introduced what is declared here. XLA refuses to register a handler of a version that it no longer
// serves.
constexpr int kMajorVersion = 0;
constexpr int kMinorVersion = 1;

struct Error;
struct ExecutionContext;
struct Future;

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};
constexpr int kMetadataExtension = 1;

struct Version {
  size_t struct_size;
  Extension* extension_start;
  int major_version;
  int minor_version;
};

struct Metadata {
  size_t struct_size;
  Version api_version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum class DataType : int { f16 = 10, f32 = 11, f64 = 12, bf16 = 16 };

struct Buffer {
  size_t struct_size;
  Extension* extension_start;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

// Arguments or results. XLA has a struct for each, with the same fields.
struct Buffers {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  int* types;
  Buffer** buffers;
};

struct Attributes {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  int* types;
  void** names;
  void** attributes;
};

enum class ErrorCode : int { invalid_argument = 3, internal = 13 };

struct CreateErrorArgs {
  size_t struct_size;
  Extension* extension_start;
  const char* message;
  ErrorCode code;
};

struct DestroyErrorArgs {
  size_t struct_size;
  Extension* extension_start;
  Error* error;
};

struct ScheduleArgs {
  size_t struct_size;
  Extension* extension_start;
  ExecutionContext* context;
  void (*task)(void* data);
  void* data;
};

struct CountThreadsArgs {
  size_t struct_size;
  Extension* extension_start;
  ExecutionContext* context;
  int64_t* count;
};

// The functions that XLA offers to handlers. Those that are not called have no type here.
struct Api {
  size_t struct_size;
  Extension* extension_start;
  Version version;
  const void* internal_api;
  Error* (*create_error)(CreateErrorArgs*);
  void* get_error_message;
  void (*destroy_error)(DestroyErrorArgs*);
  void* register_handler;
  void* get_stream;
  void* register_type;
  void* get_execution_context;
  void* set_state;
  void* get_state;
  void* allocate_device_memory;
  void* free_device_memory;
  Error* (*schedule)(ScheduleArgs*);
  Error* (*count_threads)(CountThreadsArgs*);
};

struct CallFrame {
  size_t struct_size;
  Extension* extension_start;
  const Api* api;
  ExecutionContext* context;
  int stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;
};

}  // namespace ademamix::xla
