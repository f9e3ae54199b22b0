"""What the C++ core refuses, and how it reads tensors that frameworks describe in different ways."""

from __future__ import annotations

import ctypes

import pytest
import torch

from ademamix.pytorch.coefficients import Coefficients
from ademamix.pytorch.core import core, reader, tensor_reader
from ademamix.pytorch.tensors import Tensors

LARGEST = 2**63 - 1
ROWS_OF_OTHERS = "it is not made of rows of this size"
NO_PART = "it is no part of a whole with rows of this size"


def step_in_rows(rows, *, dtype=torch.float32, size=1000, reader=reader):
    """Take a step of 1 against the gradient 1, in rows that are given; return the parameter, which starts at 0."""
    param, grad = torch.zeros(size), torch.ones(size)
    fast, slow, square = (torch.zeros(size, dtype=dtype) for _ in range(3))
    tensors = Tensors.none()._replace(params=[param], grads=[grad], fasts=[fast], slows=[slow], squares=[square])
    core.step(
        columns=tensors.of_kernels,
        indices=[0],
        rows=[rows],
        coefficients=[Coefficients(1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0)],
        positions=[0],
        reader=reader,
        options=core.Options(gradient_factor=1.0, stochastic_rounding=False, rounding_seed=0, threads=1),
    )
    return param


# The size of rows, the first row and column in the whole, and the size of rows there.
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((0, 0, 0, 10), ROWS_OF_OTHERS),
        ((-1000, 0, 0, 10), ROWS_OF_OTHERS),
        ((-LARGEST - 1, 0, 0, LARGEST), ROWS_OF_OTHERS),
        ((300, 0, 0, 300), ROWS_OF_OTHERS),
        ((LARGEST, 0, 0, LARGEST), ROWS_OF_OTHERS),
        ((100, 0, 0, 0), NO_PART),
        ((100, 0, 0, 99), NO_PART),
        ((100, 0, 0, -LARGEST - 1), NO_PART),
        ((100, 0, 1, 100), NO_PART),
        ((100, 0, -1, 100), NO_PART),
        ((100, 0, LARGEST, 200), NO_PART),
        ((100, -1, 0, 100), NO_PART),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32 state", "bf16 state"])
def test_rows_that_cannot_be_are_refused(rows, reason, dtype):
    with pytest.raises(ValueError, match=reason):
        step_in_rows(rows, dtype=dtype)


@pytest.mark.parametrize("rows", [(0, 0, 0, 0), (1000, 0, 0, 1000), (100, LARGEST, 128, LARGEST), (100, 3, 7, 107)])
def test_rows_that_can_be_are_taken(rows):
    assert (step_in_rows(rows) == -1).all()


def test_codes_need_rows_whose_pieces_begin_where_blocks_do():
    for rows, reason in (((0, 0, 0, 0), ROWS_OF_OTHERS), ((100, 0, 7, 107), NO_PART), ((100, 0, 0, 128), NO_PART)):
        with pytest.raises(ValueError, match=reason):
            step_in_rows(rows, dtype=torch.bfloat16)
    assert (step_in_rows((100, 0, 128, 228), dtype=torch.bfloat16) == -1).all()


def test_a_tensor_without_elements_may_have_rows_without_any():
    assert step_in_rows((0, 0, 0, 10), size=0).numel() == 0


class DLTensor(ctypes.Structure):
    """A tensor as DLPack describes it."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))


class ExchangeAPI(ctypes.Structure):
    """The functions of DLPack that a framework offers."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("unused", ctypes.c_void_p * 4),
        ("describe", Describe),
        ("current_work_stream", ctypes.c_void_p),
    ]


def test_tensors_may_be_described_without_strides():
    """DLPack before 1.2 lets a framework leave them out where elements follow one another."""
    shapes = []  # live as long as the descriptions

    @Describe
    def describe(tensor, found):
        shapes.append((ctypes.c_int64 * 2)(10, tensor.numel() // 10))
        dtype = (2, 32, 1, 0)  # fp32 in one lane
        found[0] = DLTensor(tensor.data_ptr(), (1, 0), 2, dtype, shapes[-1], None, 0)
        return 0

    api = ExchangeAPI(version=(1, 0), describe=describe)
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new_capsule(ctypes.addressof(api), b"dlpack_exchange_api", None)
    assert (step_in_rows((0, 0, 0, 0), reader=tensor_reader(core, capsule)) == -1).all()
    assert len(shapes) == 5
