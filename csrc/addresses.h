// The addresses of tensors that a step takes as they are, gathered in one call.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "clocks.h"
#include "state_layout.h"

namespace ademamix {

// The lists to fill, in the order of pytorch/gathering.py. The columns of the state follow.
enum List : size_t { kLate, kFastStarts, kIndices, kParameters, kGradients, kFirstState };
constexpr size_t kLists = kFirstState + kStateColumns;

// What the parameters of a group may have.
struct Possible {
  bool reduced;    // moments in fewer bits than they are computed in
  bool corrected;  // masters
};

// They are those of one step: whoever resizes a tensor after it was gathered makes them wrong.
class Addresses {
 public:
  // `lists` keep the tensors.
  explicit Addresses(std::vector<nanobind::list> lists) : lists_(std::move(lists)) {
    if (lists_.size() != kLists) throw nanobind::value_error("another number of lists");
  }

  // Whether a step needs nothing but these addresses: all tensors are contiguous, and no m1 began late.
  bool suffice() const { return contiguous_ && lists_[kLate].size() == 0; }
  const Clocks& clocks() const { return clocks_; }
  std::vector<Tensor>& tensors() { return tensors_; }

  // Fills the lists with the parameters that have a gradient and are of the kind of `layout`, and what belongs to them.
  // False if one of them does not fit.
  bool gather(const StateLayout& layout, const nanobind::list& parameters, nanobind::handle states,
              int64_t first_index, Possible possible, const TensorReader& reader) {
    static PyObject* const grad = PyUnicode_InternFromString("grad");
    if (!PyDict_Check(states.ptr())) return false;
    const size_t count = parameters.size();
    tensors_.reserve(count);
    clocks_.reserve(count);
    Py_ssize_t place = 0;  // in `states`
    for (size_t i = 0; i < count; ++i) {
      Entry entry;
      const nanobind::object parameter = parameters[i];
      const nanobind::object gradient = nanobind::steal(PyObject_GetAttr(parameter.ptr(), grad));
      if (!gradient.is_valid()) throw nanobind::python_error();
      if (gradient.is_none()) continue;
      if (!layout.read_parameter(parameter, reader, entry)) return false;
      if (!is_own(entry, possible, layout)) continue;
      const nanobind::object state = state_of(parameter, states, place);
      if (!state.is_valid() || !layout.read_rest(state, gradient, reader, entry)) return false;
      if (entry.start.is_valid()) {
        append(kLate, nanobind::int_(tensors_.size()));
        append(kFastStarts, entry.start);
      }
      add(entry, layout, first_index + static_cast<int64_t>(i));
    }
    return true;
  }

 private:
  static bool is_own(const Entry& entry, Possible possible, const StateLayout& layout) {
    const ElementType type = entry.parameter.type;
    const bool reduced = possible.reduced && type != ElementType::f64 && entry.is_large();
    const bool corrected = possible.corrected && type == ElementType::bf16;
    return reduced == (layout.storage() != Storage::plain) && corrected == layout.has(kCorrections);
  }

  // Looks onward from `place`, which saves the hash where states have the order of the parameters, and then anywhere.
  static nanobind::object state_of(nanobind::handle parameter, nanobind::handle states, Py_ssize_t& place) {
    PyObject *key, *value;
    while (PyDict_Next(states.ptr(), &place, &key, &value)) {
      if (key == parameter.ptr()) return nanobind::borrow(value);
    }
    value = PyDict_GetItemWithError(states.ptr(), parameter.ptr());
    if (value == nullptr && PyErr_Occurred()) throw nanobind::python_error();
    return nanobind::borrow(value);
  }

  void append(size_t list, nanobind::handle object) {
    if (PyList_Append(lists_[list].ptr(), object.ptr()) != 0) throw nanobind::python_error();
  }

  void add(const Entry& entry, const StateLayout& layout, int64_t index) {
    append(kIndices, nanobind::int_(index));
    append(kParameters, entry.parameter_object);
    append(kGradients, entry.gradient_object);
    contiguous_ = contiguous_ && entry.gradient.contiguous;
    for (size_t i = 0; i < kStateColumns; ++i) {
      if (!layout.has(static_cast<StateColumn>(i))) continue;
      append(kFirstState + i, entry.objects[i]);
      contiguous_ = contiguous_ && entry.state[i].contiguous;
    }
    clocks_.add(static_cast<float*>(entry.state[kStep].address), static_cast<float*>(entry.state[kSlowStep].address));
    tensors_.push_back(tensor_of(entry, layout, index));
  }

  static Tensor tensor_of(const Entry& entry, const StateLayout& layout, int64_t index) {
    const auto address = [&](StateColumn i) { return layout.has(i) ? entry.state[i].address : nullptr; };
    Tensor tensor{};
    tensor.parameter = entry.parameter.address;
    tensor.gradient = entry.gradient.address;
    tensor.fast = address(kFast);
    tensor.slow = address(kSlow);
    tensor.square = address(kSquare);
    tensor.fast_scale = static_cast<uint8_t*>(address(kFastScale));
    tensor.slow_scale = static_cast<uint8_t*>(address(kSlowScale));
    tensor.square_scale = static_cast<uint8_t*>(address(kSquareScale));
    tensor.skipped = static_cast<int64_t*>(address(kSkipped));
    tensor.correction = static_cast<Correction*>(address(kCorrections));
    tensor.size = entry.parameter.size;
    tensor.index = index;
    tensor.parameter_dtype = static_cast<Dtype>(entry.parameter.type);
    tensor.gradient_dtype = static_cast<Dtype>(entry.gradient.type);
    tensor.storage = layout.storage();
    if (tensor.storage != Storage::plain) {
      tensor.row_size = entry.row_size();
      tensor.shard = {0, 0, tensor.row_size};
    }
    return tensor;
  }

  std::vector<nanobind::list> lists_;
  std::vector<Tensor> tensors_;
  Clocks clocks_;
  bool contiguous_ = true;
};

}  // namespace ademamix
