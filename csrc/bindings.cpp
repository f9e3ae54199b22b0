// The Python face of the core. For PyTorch: steps on tensors (`step_cpu.py`) that it gathers (`gathering.py`) or that are
// listed, looks at their state (`parameter_state.py`), clocks (`coefficients.py`), and a check of their memory
// (`core.py`). For JAX: the call of XLA (`fused_call.py`). For both: the numbers of its formats, its instruction sets, and
// where its threads are from. For benchmarks: a loop that streams memory, in bindings_stream.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "addresses.h"
#include "bindings_stream.h"
#include "clocks.h"
#include "parallel.h"
#include "state_layout.h"
#include "step.h"
#include "tensor_reader.h"
#include "xla_step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using ademamix::Addresses;
using ademamix::Clocks;
using ademamix::Dtype;
using ademamix::ElementType;
using ademamix::Memory;
using ademamix::Storage;
using ademamix::TensorReader;
using Row = std::array<double, 9>;
using Rows = std::array<int64_t, 4>;  // their size, the first row and column in the whole parameter, the size there

constexpr double kLastStep = 1LL << 53;  // the last one that a double counts to

ademamix::Coefficients coefficients_from(const Row& row) {
  const ademamix::Coefficients c{row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8]};
  if (!(c.step >= 0 && c.step <= kLastStep)) throw nb::value_error("a clock of the optimizer shows no number of steps");
  return c;
}

// The lists of a group's tensors, in the order of `Tensors` in pytorch/tensors.py. Those of fast averages, of
// corrections, of scales and of counts may be empty.
struct Columns {
  nb::list parameters, gradients, fasts, slows, squares, corrections, fast_scales, slow_scales, square_scales, skipped;
};
using ColumnArray = std::array<nb::list, 10>;

nb::handle item(const nb::list& list, size_t i) { return PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(i)); }

Dtype dtype_of(const Memory& memory, const char* role, size_t i) {
  if (!ademamix::is_floating_point(memory.type)) TensorReader::fail(role, i, "is not of floating point");
  return static_cast<Dtype>(memory.type);
}

constexpr ElementType kFastCode = ademamix::element_type<ademamix::FastCode>();
constexpr ElementType kSlowCode = ademamix::element_type<ademamix::SlowCode>();
constexpr ElementType kSquareCode = ademamix::element_type<ademamix::SquareCode>();
constexpr ElementType kCorrection = ademamix::element_type<ademamix::Correction>();

Storage storage_of(const Memory& slow, Dtype parameter, size_t i) {
  const ElementType plain = parameter == Dtype::f64 ? ElementType::f64 : ElementType::f32;
  if (slow.type == plain) return Storage::plain;
  if (parameter != Dtype::f64 && slow.type == ElementType::bf16) return Storage::bf16;
  if (parameter != Dtype::f64 && slow.type == kSlowCode) return Storage::compact;
  TensorReader::fail("slow average", i, "has elements of a type that no storage has");
}

// The number of blocks in a tensor that is made of rows.
int64_t blocks_in(int64_t size, int64_t row_size) {
  if (size == 0) return 0;
  return size / row_size * ((row_size + ademamix::kBlockSize - 1) / ademamix::kBlockSize);
}

ademamix::Tensor read_tensor(TensorReader& reader, const Columns& columns, size_t i, const Rows& rows) {
  ademamix::Tensor tensor{};
  const Memory parameter = reader.read(item(columns.parameters, i), "parameter", i);
  const Memory gradient = reader.read(item(columns.gradients, i), "gradient", i);
  const Memory slow = reader.read(item(columns.slows, i), "slow average", i);
  const int64_t size = parameter.size;
  tensor.parameter = parameter.address;
  tensor.gradient = gradient.address;
  tensor.slow = slow.address;
  tensor.size = size;
  tensor.row_size = rows[0];
  tensor.parameter_dtype = dtype_of(parameter, "parameter", i);
  tensor.gradient_dtype = dtype_of(gradient, "gradient", i);
  tensor.storage = storage_of(slow, tensor.parameter_dtype, i);
  tensor.shard = {rows[1], rows[2], rows[3]};
  if (!is_made_of_rows(tensor)) TensorReader::fail("parameter", i, "is not made of rows of this size");
  if (!is_part_of_whole(tensor)) TensorReader::fail("parameter", i, "is no part of a whole with rows of this size");
  TensorReader::expect_size(gradient, size, "gradient", i);
  TensorReader::expect_size(slow, size, "slow average", i);

  const auto optional = [&](const nb::list& list, const char* role, int64_t count, ElementType type) {
    return list.size() == 0 ? nullptr : reader.read(item(list, i), role, i, count, type);
  };
  const bool coded = tensor.storage == Storage::compact;
  tensor.fast = optional(columns.fasts, "fast average", size, coded ? kFastCode : slow.type);
  tensor.square =
      reader.read(item(columns.squares, i), "second moment", i, size, coded ? kSquareCode : slow.type);
  tensor.skipped = static_cast<int64_t*>(optional(columns.skipped, "count of skipped elements", 1, ElementType::i64));
  tensor.correction =
      static_cast<ademamix::Correction*>(optional(columns.corrections, "correction", size, kCorrection));
  if (tensor.correction != nullptr && tensor.parameter_dtype != Dtype::bf16) {
    TensorReader::fail("correction", i, "belongs to a parameter that is not bf16");
  }
  if (tensor.storage == Storage::plain) return tensor;

  const int64_t blocks = blocks_in(size, tensor.row_size);
  const auto scales = [&](const nb::list& list, const char* role) {
    return static_cast<uint8_t*>(optional(list, role, blocks, ElementType::u8));
  };
  if (coded) {
    tensor.fast_scale = scales(columns.fast_scales, "scale of the fast average");
    tensor.slow_scale = scales(columns.slow_scales, "scale of the slow average");
    tensor.square_scale = scales(columns.square_scales, "scale of the second moment");
    const bool scaled = columns.slow_scales.size() && columns.square_scales.size() &&
                        (columns.fasts.size() == 0 || columns.fast_scales.size());
    if (!scaled) TensorReader::fail("moments", i, "lack their scales");
  }
  return tensor;
}

void check_lengths(const Columns& columns, const std::vector<size_t>& others) {
  const size_t count = columns.parameters.size();
  const auto check = [count](size_t size, bool may_be_empty) {
    if (size != count && !(may_be_empty && size == 0)) throw nb::value_error("lists of different lengths");
  };
  for (size_t size : {columns.gradients.size(), columns.slows.size(), columns.squares.size()}) check(size, false);
  for (size_t size : others) check(size, false);
  for (size_t size : {columns.fasts.size(), columns.corrections.size(), columns.fast_scales.size(),
                      columns.slow_scales.size(), columns.square_scales.size(), columns.skipped.size()}) {
    check(size, true);
  }
}

// Takes a step on all tensors. False, with nothing changed, if one of them is not contiguous. `positions` are those of
// the tensors' coefficients.
bool step(const ColumnArray& lists, const std::vector<int64_t>& indices, const std::vector<Rows>& rows,
          const std::vector<Row>& coefficients, const std::vector<int>& positions, TensorReader reader,
          const ademamix::Options& options) {
  const Columns columns{lists[0], lists[1], lists[2], lists[3], lists[4],
                        lists[5], lists[6], lists[7], lists[8], lists[9]};
  check_lengths(columns, {indices.size(), rows.size(), positions.size()});
  std::vector<ademamix::Tensor> tensors;
  tensors.reserve(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    tensors.push_back(read_tensor(reader, columns, i, rows[i]));
    tensors.back().index = indices[i];
    tensors.back().coefficients = coefficients_from(coefficients.at(static_cast<size_t>(positions[i])));
  }
  if (!reader.contiguous()) return false;
  nb::gil_scoped_release released;
  ademamix::step(tensors, options);
  return true;
}

// Refuses tensors of the CPU that have lost their memory: torch's own operations on them would end the process.
void check_memory(const std::vector<nb::list>& columns, const TensorReader& reader) {
  for (const nb::list& tensors : columns) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (reader.lacks_memory(item(tensors, i))) {
        throw nb::value_error("a parameter, its gradient or its state has no memory: its storage is of another size");
      }
    }
  }
}

// The clocks of parameters, from lists.
void read_clocks(Clocks* self, const nb::list& steps, const nb::list& slow_steps, TensorReader reader) {
  const auto address = [&](const nb::list& clocks, size_t i) {
    return static_cast<float*>(reader.read(item(clocks, i), "clock", i, 1, ElementType::f32));
  };
  if (steps.size() != slow_steps.size()) throw nb::value_error("lists of different lengths");
  Clocks clocks;
  for (size_t i = 0; i < steps.size(); ++i) clocks.add(address(steps, i), address(slow_steps, i));
  new (self) Clocks(std::move(clocks));
}

// Gathers what a step takes into empty lists. None, with lists that are empty again, if not all of it is as it should.
std::optional<Addresses> gather(const ademamix::StateLayout& layout, const nb::list& parameters, nb::handle states,
                                int64_t first_index, std::array<bool, 2> possible, std::vector<nb::list> lists,
                                const TensorReader& reader) {
  Addresses found(lists);
  if (found.gather(layout, parameters, states, first_index, {possible[0], possible[1]}, reader)) return found;
  for (const nb::list& list : lists) PyList_SetSlice(list.ptr(), 0, PY_SSIZE_T_MAX, nullptr);
  return std::nullopt;
}

// Takes a step on what was gathered, with the coefficients at each of its distinct clocks.
void step_at(Addresses& addresses, const std::vector<Row>& coefficients, const ademamix::Options& options) {
  if (!addresses.suffice()) throw nb::value_error("a step needs more than these addresses");
  std::vector<ademamix::Coefficients> known;
  for (const Row& row : coefficients) known.push_back(coefficients_from(row));
  std::vector<ademamix::Tensor>& tensors = addresses.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].coefficients = known.at(static_cast<size_t>(addresses.clocks().positions()[i]));
  }
  nb::gil_scoped_release released;
  ademamix::step(tensors, options);
}

template <class Code>
std::string dtype_name() {
  return (std::is_signed_v<Code> ? "int" : "uint") + std::to_string(8 * sizeof(Code));
}

template <class Code>
nb::dict described(const ademamix::BlockCode& format) {
  nb::dict fields;
  fields["dtype"] = dtype_name<Code>();
  fields["mantissa_bits"] = format.mantissa_bits;
  fields["octaves"] = format.octaves;
  fields["first_random_bit"] = format.first_random_bit;
  fields["random_bits"] = format.random_bits;
  return fields;
}

// The numbers of formats.h, under their names in formats.py.
nb::dict formats() {
  nb::dict numbers;
  numbers["BLOCK"] = ademamix::kBlockSize;
  numbers["LEAST_ROW"] = ademamix::kLeastRow;
  numbers["LEAST_SIZE"] = ademamix::kLeastSize;
  numbers["LEAST_VECTOR"] = ademamix::kLeastVector;
  numbers["LEAST_EXPONENT"] = ademamix::kLeastExponent;
  numbers["GREATEST_EXPONENT"] = ademamix::kGreatestExponent;
  numbers["GRADIENT_LIMIT"] = ademamix::kGradientLimit;
  numbers["FIRST_MIXER"] = ademamix::kFirstMixer;
  numbers["SECOND_MIXER"] = ademamix::kSecondMixer;
  numbers["FIRST_KEY"] = ademamix::kFirstKey;
  numbers["SECOND_KEY"] = ademamix::kSecondKey;
  numbers["MOMENT_DOMAIN"] = ademamix::kMomentDomain;
  numbers["LANE_STEP"] = ademamix::kLaneStep;
  numbers["BF16_SHIFT"] = ademamix::kBF16Shift;
  numbers["BF16_MASK"] = ademamix::kBF16Mask;
  numbers["CORRECTION"] = dtype_name<ademamix::Correction>();
  numbers["MASTER_SHIFT"] = ademamix::kMasterShift;
  numbers["MASTER_MASK"] = ademamix::kMasterMask;
  numbers["FAST"] = described<ademamix::FastCode>(ademamix::kFastFormat);
  numbers["SLOW"] = described<ademamix::SlowCode>(ademamix::kSlowFormat);
  numbers["SQUARE"] = described<ademamix::SquareCode>(ademamix::kSquareFormat);
  numbers["WIDE_SQUARE"] = described<ademamix::SquareCode>(ademamix::kWideSquareFormat);
  numbers["FIRST_WIDE_SCALE"] = ademamix::kFirstWideScale;
  numbers["LAST_WIDE_SCALE"] = ademamix::kLastWideScale;
  numbers["WIDE_BASE"] = ademamix::kWideBase;
  numbers["WIDE_SHIFT"] = ademamix::kWideShift;
  numbers["WELL_RESOLVED"] = ademamix::kWellResolved;
  return numbers;
}

nb::dict element_types() {
  nb::dict numbers;
  for (const auto& [name, type] : ademamix::kElementTypes) numbers[name] = static_cast<int>(type);
  return numbers;
}

nb::list storages() {
  nb::list names;
  for (const auto& [name, storage] : ademamix::kStorages) names.append(name);
  return names;
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Fused CPU kernels of ademamix";
  nb::set_leak_warnings(false);  // the reader lives as long as the process
  m.attr("FORMATS") = formats();
  m.attr("ELEMENT_TYPES") = element_types();
  m.attr("STORAGES") = nb::tuple(storages());
  nb::class_<ademamix::Options>(m, "Options")
      .def("__init__", [](ademamix::Options* self, double gradient_factor, bool stochastic_rounding,
                          uint64_t rounding_seed, int threads) {
        new (self) ademamix::Options{gradient_factor, stochastic_rounding, rounding_seed, threads};
      }, "gradient_factor"_a, "stochastic_rounding"_a, "rounding_seed"_a, "threads"_a);
  m.def("step", &step, "columns"_a, "indices"_a, "rows"_a, "coefficients"_a, "positions"_a, "reader"_a, "options"_a);
  m.def("check_memory", &check_memory, "columns"_a, "reader"_a);
  nb::class_<TensorReader>(m, "TensorReader")
      .def(nb::init<nb::type_object, nb::type_object, nb::object, nb::dict>(), "tensor_class"_a, "parameter_class"_a,
           "exchange"_a.none(), "element_types"_a);
  nb::class_<ademamix::StateLayout>(m, "StateLayout")
      .def(nb::init<const std::string&, const std::vector<nb::object>&, std::vector<nb::object>, nb::str>(),
           "storage"_a, "names"_a, "absent"_a, "start"_a)
      .def("fits", &ademamix::StateLayout::fits, "state"_a, "parameter"_a, "gradient"_a, "reader"_a);
  nb::class_<Clocks>(m, "Clocks")
      .def("__init__", &read_clocks, "steps"_a, "slow_steps"_a, "reader"_a)
      .def_prop_ro("distinct", &Clocks::distinct)
      .def_prop_ro("positions", &Clocks::positions)
      .def("advance", &Clocks::advance);
  nb::class_<Addresses>(m, "Addresses")
      .def_prop_ro("suffice", &Addresses::suffice)
      .def_prop_ro("clocks", &Addresses::clocks, nb::rv_policy::reference_internal);
  m.def("gather", &gather, "layout"_a, "parameters"_a, "states"_a, "first_index"_a, "possible"_a, "lists"_a, "reader"_a);
  m.def("step_at", &step_at, "addresses"_a, "coefficients"_a, "options"_a);
  m.def("instruction_set", &ademamix::instruction_set);
  m.def("instruction_sets", &ademamix::instruction_sets);
  m.def("use_instruction_set", &ademamix::use_instruction_set, "name"_a);
  ademamix::bind_stream(m);
  m.def("thread_source", &ademamix::thread_source);
  m.def("xla_step", [] { return nb::capsule(reinterpret_cast<void*>(&ademamix::xla::step)); });  // optax/fused.py
}
