#include "driver_xla.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "driver_tensors.h"
#include "step.h"
#include "xla_step.h"

namespace ademamix::xla {

// What XLA hides behind these names is its own affair; here it is what a check wants to know.
struct Error {
  std::string message;
  ErrorCode code;
};
struct ExecutionContext {
  std::function<bool(std::function<void()>)> schedule;  // false to refuse
  int64_t threads;                                      // 0: they are not to be counted
};

}  // namespace ademamix::xla

namespace driver {
namespace {

namespace xla = ademamix::xla;

constexpr int64_t kSize = 200'000;  // enough for several threads
constexpr int64_t kRow = 9;

int living_errors = 0;

xla::Error* new_error(const std::string& message, xla::ErrorCode code) {
  ++living_errors;
  return new xla::Error{message, code};
}

xla::Api api_with_threads() {
  xla::Api api{};
  api.struct_size = sizeof api;
  api.create_error = [](xla::CreateErrorArgs* a) { return new_error(a->message, a->code); };
  api.destroy_error = [](xla::DestroyErrorArgs* a) {
    --living_errors;
    delete a->error;
  };
  api.schedule = [](xla::ScheduleArgs* a) -> xla::Error* {
    const bool taken = a->context->schedule([task = a->task, data = a->data] { task(data); });
    return taken ? nullptr : new_error("no threads", xla::ErrorCode::internal);
  };
  api.count_threads = [](xla::CountThreadsArgs* a) -> xla::Error* {
    if (a->context->threads == 0) return new_error("no threads", xla::ErrorCode::internal);
    *a->count = a->context->threads;
    return nullptr;
  };
  return api;
}

// The arrays of a parameter with a slow average, a second moment and a gradient, and the coefficients of its step.
struct Call {
  std::vector<float> coefficients{0.1f, 1e-3f, 1e-3f, 5.0f, 1e-2f, 1e-8f, 1e-4f, 0.0f, 1e30f};
  std::vector<float> parameter, slow, square, gradient;
  int64_t matrix[2] = {1, kRow};
  int64_t size = kSize, gradient_size = kSize;
  xla::DataType slow_dtype = xla::DataType::f32;
  xla::Api api = api_with_threads();
  xla::CallFrame frame{};
  std::vector<xla::Buffer> buffers;
  std::vector<xla::Buffer*> arguments, results;

  Call() : parameter(kSize, 1.0f), slow(kSize, 0.5f), square(kSize, 0.1f), gradient(kSize) {
    for (int64_t i = 0; i < kSize; ++i) gradient[static_cast<size_t>(i)] = static_cast<float>(i % 97) / 97 - 0.5f;
    frame.struct_size = offsetof(xla::CallFrame, future);
    frame.arguments.struct_size = frame.results.struct_size = sizeof(xla::Buffers);
  }

  // Returns the message of the error, or "".
  std::string run(xla::ExecutionContext& context) {
    const auto buffer = [](std::vector<float>& of, int64_t* dims, int64_t rank, xla::DataType dtype) {
      return xla::Buffer{sizeof(xla::Buffer), nullptr, dtype, of.data(), rank, dims};
    };
    constexpr auto f32 = xla::DataType::f32;
    buffers = {buffer(coefficients, matrix, 2, f32), buffer(parameter, &size, 1, f32),
               buffer(slow, &size, 1, slow_dtype), buffer(square, &size, 1, f32),
               buffer(gradient, &gradient_size, 1, f32)};
    for (xla::Buffer& b : buffers) arguments.push_back(&b);
    results = {arguments[1], arguments[2], arguments[3]};
    frame.api = &api;
    frame.context = &context;
    frame.arguments.size = static_cast<int64_t>(arguments.size());
    frame.arguments.buffers = arguments.data();
    frame.results.size = static_cast<int64_t>(results.size());
    frame.results.buffers = results.data();
    xla::Error* error = xla::step(&frame);
    if (error == nullptr) return "";
    const std::string message = error->message;
    --living_errors;
    delete error;
    return message;
  }
};

void expect_refusal(const std::string& reason, const std::function<void(Call&)>& change) {
  xla::ExecutionContext alone{[](std::function<void()>) { return false; }, 1};
  Call call;
  const std::vector<float> before = call.parameter;
  change(call);
  const std::string message = call.run(alone);
  expect(message.find(reason) != std::string::npos, "XLA is told \"" + reason + "\", not \"" + message + "\"");
  expect(call.parameter == before, "a refused step changes nothing");
}

void check_threads() {
  std::vector<std::thread> threads;
  std::vector<std::function<void()>> late;
  const auto at_once = [&](std::function<void()> task) { return threads.emplace_back(std::move(task)), true; };
  const auto at_the_end = [&](std::function<void()> task) { return late.push_back(std::move(task)), true; };
  const auto never = [](std::function<void()>) { return false; };
  xla::ExecutionContext contexts[] = {{never, 0}, {never, 4}, {at_once, 4}, {at_the_end, 4}};
  Call alone;
  alone.run(contexts[0]);
  expect(alone.parameter[0] != 1.0f && alone.slow[0] != 0.5f && alone.square[0] != 0.1f, "a step of XLA changes all");
  for (xla::ExecutionContext& context : contexts) {
    Call call;
    expect(call.run(context).empty(), "a step of XLA succeeds on any kind of threads");
    expect(call.parameter == alone.parameter && call.slow == alone.slow && call.square == alone.square,
           "a step of XLA has the same bits on any kind of threads");
  }
  expect(late.size() == 3, "a step of XLA asks for the threads that there are");
  for (const auto& task : late) task();  // the arrays are gone
  for (std::thread& thread : threads) thread.join();
  expect(living_errors == 0, "errors of XLA are destroyed");
}

}  // namespace

void check_xla_steps() {
  check_threads();
  expect_refusal("not known here", [](Call& call) { call.frame.struct_size = 8; });
  expect_refusal("not known here", [](Call& call) { call.frame.arguments.struct_size += 8; });
  expect_refusal("not known here", [](Call& call) { call.frame.results.struct_size += 8; });
  expect_refusal("not known here", [](Call& call) { call.api.struct_size = offsetof(xla::Api, count_threads); });
  expect_refusal("another number of arrays", [](Call& call) {
    call.coefficients.resize(2 * kRow);
    call.matrix[0] = 2;
  });
  expect_refusal("different sizes", [](Call& call) { call.gradient_size = kSize - 1; });
  expect_refusal("another dtype", [](Call& call) { call.slow_dtype = xla::DataType::bf16; });
}

}  // namespace driver
