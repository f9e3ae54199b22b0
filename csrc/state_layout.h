// The form that the state of a parameter must have, to tell quickly that a step can take it as it is.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "step.h"
#include "tensor_reader.h"

namespace ademamix {

// The tensors in the state of a parameter, in the order of `Tensors` in pytorch/tensors.py.
enum StateColumn : size_t {
  kFast,
  kSlow,
  kSquare,
  kCorrections,
  kFastScale,
  kSlowScale,
  kSquareScale,
  kSkipped,
  kStep,
  kSlowStep,
  kStateColumns
};

// The storages, by the names that they have in Python.
constexpr std::pair<const char*, Storage> kStorages[] = {
    {"fp32", Storage::plain},
    {"bf16", Storage::bf16},
    {"compact", Storage::compact},
};

// A parameter, its gradient and its state, as they were found.
struct Entry {
  nanobind::handle parameter_object, gradient_object;
  DLTensor shape;  // of the parameter
  Memory parameter, gradient;
  std::array<nanobind::object, kStateColumns> objects;  // those that there are
  std::array<Memory, kStateColumns> state;
  nanobind::object start;  // the clock at which m1 began late, if it did

  // Elements in a row: a vector is one.
  int64_t row_size() const {
    return shape.ndim < 2 || parameter.size == 0 ? parameter.size : parameter.size / shape.shape[0];
  }

  // As in formats.py: whether the moments are worth storing in fewer bits.
  bool is_large() const {
    if (shape.ndim < 2) return parameter.size >= kLeastVector;
    return parameter.size >= std::max(kLeastSize, kLeastRow * shape.shape[0]);
  }
};

class StateLayout {
 public:
  // `names` has the name of each column, or None if there is none; `absent` are names that must not be there; and
  // `start` is that of the clock at which an m1 began late, which may be.
  StateLayout(const std::string& storage, const std::vector<nanobind::object>& names,
              std::vector<nanobind::object> absent, nanobind::str start)
      : storage_(storage_named(storage)), absent_(std::move(absent)), start_(std::move(start)) {
    if (names.size() != kStateColumns) throw nanobind::value_error("a state has another number of columns");
    for (size_t i = 0; i < kStateColumns; ++i) {
      if (names[i].is_none()) continue;
      names_[i] = names[i];
      ++count_;
    }
    for (StateColumn i : {kSlow, kSquare, kStep, kSlowStep}) require(i);
    if (storage_ == Storage::compact) {
      for (StateColumn i : {kSlowScale, kSquareScale}) require(i);
      if (has(kFast)) require(kFastScale);
    }
  }

  Storage storage() const { return storage_; }
  bool has(StateColumn column) const { return names_[column].is_valid(); }

  // Looks at a parameter. False if it is none that can fit.
  bool read_parameter(nanobind::handle parameter, const TensorReader& reader, Entry& entry) const {
    entry.parameter_object = parameter;
    return reader.has_exchange() && reader.describe(parameter, entry.shape, entry.parameter) &&
           entry.parameter.contiguous && is_floating_point(entry.parameter.type);
  }

  // Looks at what belongs to the parameter of `entry`. True if all tensors are plain, in the memory of the CPU and of
  // the right sizes and types. False may be a false alarm.
  bool read_rest(nanobind::handle state, nanobind::handle gradient, const TensorReader& reader, Entry& entry) const {
    entry.gradient_object = gradient;
    const ElementType type = entry.parameter.type;
    if (has(kCorrections) && type != ElementType::bf16) return false;
    if (!PyDict_Check(state.ptr()) || !alike(reader, gradient, entry.shape, entry.gradient)) return false;
    if (entry.gradient.type != type || reader.is_negated(gradient)) return false;
    for (size_t i = 0; i < kStateColumns; ++i) {
      if (!names_[i].is_valid()) continue;
      const nanobind::object& found = entry.objects[i] = nanobind::borrow(item(state, names_[i]));
      Memory& memory = entry.state[i];
      if (!found.is_valid()) return false;
      if (i < kFastScale) {
        if (!alike(reader, found, entry.shape, memory)) return false;
      } else {
        DLTensor any_shape;
        const bool is_scale = i < kSkipped;
        if (!reader.describe(found, any_shape, memory)) return false;
        if (memory.size != (is_scale ? blocks_of(entry) : 1)) return false;
      }
      if (memory.type != type_of(static_cast<StateColumn>(i), type)) return false;
    }
    if (PyDict_Size(state.ptr()) == count_) return true;  // there is nothing else, as mostly
    entry.start = nanobind::borrow(item(state, start_));
    return std::none_of(absent_.begin(), absent_.end(),
                        [&](const nanobind::object& name) { return item(state, name).is_valid(); });
  }

  bool fits(nanobind::handle state, nanobind::handle parameter, nanobind::handle gradient,
            const TensorReader& reader) const {
    Entry entry;
    return read_parameter(parameter, reader, entry) && read_rest(state, gradient, reader, entry);
  }

 private:
  static Storage storage_named(const std::string& wanted) {
    for (const auto& [name, storage] : kStorages) {
      if (wanted == name) return storage;
    }
    throw nanobind::value_error("there is no storage of this name");
  }

  void require(StateColumn column) const {
    if (!has(column)) throw nanobind::value_error("a state lacks a column");
  }

  // The type of the elements in a column, for parameters of a type.
  ElementType type_of(StateColumn column, ElementType parameter) const {
    switch (column) {
      case kFast: return moment_type<FastCode>(parameter);
      case kSlow: return moment_type<SlowCode>(parameter);
      case kSquare: return moment_type<SquareCode>(parameter);
      case kCorrections: return element_type<Correction>();
      case kSkipped: return ElementType::i64;
      case kStep:
      case kSlowStep: return ElementType::f32;
      default: return ElementType::u8;
    }
  }

  template <class Code>
  ElementType moment_type(ElementType parameter) const {
    if (storage_ == Storage::plain) return parameter == ElementType::f64 ? ElementType::f64 : ElementType::f32;
    if (parameter == ElementType::f64) return ElementType::unknown;
    return storage_ == Storage::bf16 ? ElementType::bf16 : element_type<Code>();
  }

  // Whether a tensor is of the shape of another.
  static bool alike(const TensorReader& reader, nanobind::handle tensor, const DLTensor& like, Memory& memory) {
    DLTensor found;
    return reader.describe(tensor, found, memory) && found.ndim == like.ndim &&
           std::equal(found.shape, found.shape + found.ndim, like.shape);
  }

  static int64_t blocks_of(const Entry& entry) {
    if (entry.parameter.size == 0 || entry.shape.ndim == 0) return 0;
    const int64_t row_size = entry.row_size();
    return entry.parameter.size / row_size * ((row_size + kBlockSize - 1) / kBlockSize);
  }

  // What a dictionary has under a name. Unlike PyDict_GetItem, this does not save the exceptions of others.
  static nanobind::handle item(nanobind::handle state, nanobind::handle name) {
    PyObject* const found = PyDict_GetItemWithError(state.ptr(), name.ptr());
    if (found == nullptr) PyErr_Clear();
    return found;
  }

  Storage storage_;
  std::array<nanobind::object, kStateColumns> names_;
  std::vector<nanobind::object> absent_;
  nanobind::str start_;
  Py_ssize_t count_ = 0;  // of names
};

}  // namespace ademamix
