// The form that the state of a parameter must have, to tell quickly that a step can take it as it is.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "step.h"
#include "tensor_reader.h"

namespace ademamix {

class StateLayout {
 public:
  // `moments` are the names of the fast average, if it is stored, of the slow one and of the squares; `scales` those of
  // their scales, if they are coded; and `absent` are names that must not be there. `types` are the element types of
  // reduced moments, and empty if they are those of the arithmetic.
  StateLayout(nanobind::list moments, std::vector<int> types, nanobind::list corrections, nanobind::list scales,
              nanobind::list clocks, nanobind::list counts, nanobind::list absent)
      : moments_(std::move(moments)),
        types_(std::move(types)),
        corrections_(std::move(corrections)),
        scales_(std::move(scales)),
        clocks_(std::move(clocks)),
        counts_(std::move(counts)),
        absent_(std::move(absent)) {}

  // True if all tensors are plain, in the memory of the CPU and of the right sizes and types. False may be a false
  // alarm.
  bool fits(nanobind::handle state, nanobind::handle parameter, nanobind::handle gradient,
            const TensorReader& reader) const {
    DLTensor shape, other;
    Memory memory, found;
    if (!reader.has_exchange() || !reader.describe(parameter, shape, memory) || !memory.contiguous) return false;
    if (!is_floating_point(memory.type) || !alike(reader, gradient, shape, other, found)) return false;
    if (found.type != memory.type || is_negated(gradient)) return false;
    const ElementType plain = memory.type == ElementType::f64 ? ElementType::f64 : ElementType::f32;
    for (size_t i = 0; i < moments_.size(); ++i) {
      if (!alike(reader, entry(state, moments_, i), shape, other, found)) return false;
      if (found.type != (types_.empty() ? plain : static_cast<ElementType>(types_[i]))) return false;
    }
    for (size_t i = 0; i < corrections_.size(); ++i) {
      if (!alike(reader, entry(state, corrections_, i), shape, other, found)) return false;
      if (found.type != element_type<Correction>()) return false;
    }
    for (size_t i = 0; i < scales_.size(); ++i) {
      if (!is_of(reader, entry(state, scales_, i), ElementType::u8, blocks_of(shape, memory.size))) return false;
    }
    return all_of_one(reader, state, clocks_, ElementType::f32) &&
           all_of_one(reader, state, counts_, ElementType::i64) && none_of(state, absent_);
  }

 private:
  static nanobind::handle entry(nanobind::handle state, const nanobind::list& names, size_t i) {
    return PyDict_GetItem(state.ptr(), PyList_GetItem(names.ptr(), static_cast<Py_ssize_t>(i)));
  }

  // Whether a tensor is there, of the shape of another.
  static bool alike(const TensorReader& reader, nanobind::handle tensor, const DLTensor& like, DLTensor& found,
                    Memory& memory) {
    return tensor.is_valid() && reader.describe(tensor, found, memory) && found.ndim == like.ndim &&
           std::equal(found.shape, found.shape + found.ndim, like.shape);
  }

  static bool is_of(const TensorReader& reader, nanobind::handle tensor, ElementType type, int64_t size) {
    DLTensor found;
    Memory memory;
    return tensor.is_valid() && reader.describe(tensor, found, memory) && memory.type == type && memory.size == size;
  }

  static bool all_of_one(const TensorReader& reader, nanobind::handle state, const nanobind::list& names,
                         ElementType type) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (!is_of(reader, entry(state, names, i), type, 1)) return false;
    }
    return true;
  }

  static bool none_of(nanobind::handle state, const nanobind::list& names) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (entry(state, names, i).is_valid()) return false;
    }
    return true;
  }

  static int64_t blocks_of(const DLTensor& shape, int64_t size) {
    if (size == 0 || shape.ndim == 0) return 0;
    const int64_t rows = shape.ndim == 1 ? 1 : shape.shape[0];
    return rows * ((size / rows + kBlockSize - 1) / kBlockSize);
  }

  // Whether the elements in memory are the gradient's with the other sign: DLPack does not say.
  static bool is_negated(nanobind::handle gradient) {
    static PyObject* const name = PyUnicode_InternFromString("is_neg");
    PyObject* const arguments[] = {gradient.ptr()};
    const nanobind::object answer = nanobind::steal(PyObject_VectorcallMethod(name, arguments, 1, nullptr));
    if (!answer.is_valid()) PyErr_Clear();
    return answer.ptr() != Py_False;
  }

  nanobind::list moments_;
  std::vector<int> types_;
  nanobind::list corrections_, scales_, clocks_, counts_, absent_;
};

}  // namespace ademamix
