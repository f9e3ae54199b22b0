// Compiles if csrc/xla_ffi.h describes what the header of jaxlib does; test_optax_fused_core.py compiles it.
#include <cstddef>
#include <type_traits>

#include "xla/ffi/api/c_api.h"
#include "xla_ffi.h"

namespace xla = ademamix::xla;

#define SAME_FIELD(ours, our_field, theirs, their_field)                    \
  static_assert(offsetof(xla::ours, our_field) == offsetof(theirs, their_field) && \
                sizeof(xla::ours::our_field) == sizeof(theirs::their_field))
#define SAME_NUMBER(ours, theirs) static_assert(static_cast<int>(xla::ours) == static_cast<int>(theirs))

SAME_FIELD(Extension, type, XLA_FFI_Extension_Base, type);
SAME_FIELD(Extension, next, XLA_FFI_Extension_Base, next);
SAME_FIELD(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME_FIELD(Metadata, api_version, XLA_FFI_Metadata, api_version);
SAME_FIELD(Metadata, traits, XLA_FFI_Metadata, traits);
SAME_FIELD(Version, major_version, XLA_FFI_Api_Version, major_version);
SAME_FIELD(Version, minor_version, XLA_FFI_Api_Version, minor_version);

SAME_FIELD(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME_FIELD(Buffer, data, XLA_FFI_Buffer, data);
SAME_FIELD(Buffer, rank, XLA_FFI_Buffer, rank);
SAME_FIELD(Buffer, dims, XLA_FFI_Buffer, dims);
SAME_FIELD(Buffers, size, XLA_FFI_Args, size);
SAME_FIELD(Buffers, types, XLA_FFI_Args, types);
SAME_FIELD(Buffers, buffers, XLA_FFI_Args, args);
SAME_FIELD(Buffers, size, XLA_FFI_Rets, size);
SAME_FIELD(Buffers, types, XLA_FFI_Rets, types);
SAME_FIELD(Buffers, buffers, XLA_FFI_Rets, rets);
static_assert(sizeof(xla::Buffers) == XLA_FFI_Args_STRUCT_SIZE && sizeof(xla::Buffers) == XLA_FFI_Rets_STRUCT_SIZE);

SAME_FIELD(CallFrame, api, XLA_FFI_CallFrame, api);
SAME_FIELD(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME_FIELD(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME_FIELD(CallFrame, results, XLA_FFI_CallFrame, rets);
static_assert(offsetof(xla::CallFrame, future) <= XLA_FFI_CallFrame_STRUCT_SIZE);

SAME_FIELD(Api, create_error, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_FIELD(Api, destroy_error, XLA_FFI_Api, XLA_FFI_Error_Destroy);
SAME_FIELD(Api, schedule, XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule);
SAME_FIELD(Api, count_threads, XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads);
SAME_FIELD(CreateErrorArgs, message, XLA_FFI_Error_Create_Args, message);
SAME_FIELD(CreateErrorArgs, code, XLA_FFI_Error_Create_Args, errc);
SAME_FIELD(DestroyErrorArgs, error, XLA_FFI_Error_Destroy_Args, error);
SAME_FIELD(ScheduleArgs, context, XLA_FFI_ThreadPool_Schedule_Args, ctx);
SAME_FIELD(ScheduleArgs, task, XLA_FFI_ThreadPool_Schedule_Args, task);
SAME_FIELD(ScheduleArgs, data, XLA_FFI_ThreadPool_Schedule_Args, data);
SAME_FIELD(CountThreadsArgs, context, XLA_FFI_ThreadPool_NumThreads_Args, ctx);
SAME_FIELD(CountThreadsArgs, count, XLA_FFI_ThreadPool_NumThreads_Args, num_threads);

SAME_NUMBER(kMajorVersion, XLA_FFI_API_MAJOR);
SAME_NUMBER(kMetadataExtension, XLA_FFI_Extension_Metadata);
SAME_NUMBER(DataType::f16, XLA_FFI_DataType_F16);
SAME_NUMBER(DataType::f32, XLA_FFI_DataType_F32);
SAME_NUMBER(DataType::f64, XLA_FFI_DataType_F64);
SAME_NUMBER(DataType::bf16, XLA_FFI_DataType_BF16);
SAME_NUMBER(ErrorCode::invalid_argument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME_NUMBER(ErrorCode::internal, XLA_FFI_Error_Code_INTERNAL);
