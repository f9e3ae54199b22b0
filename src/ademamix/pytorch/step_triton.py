"""The fused body on CUDA: describes the tensors of a group to a Triton kernel, and launches it once for each bucket.

A bucket has tensors of equal dtypes. A table on the device tells the kernel about each of them, above all its
addresses. Nothing that changes from step to step is an argument, so a CUDA graph replays steps as they were taken.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix.formats import BLOCK
from ademamix.pytorch import storage
from ademamix.pytorch.coefficients import PerTensor, matrix_of
from ademamix.pytorch.memory_order import arranged, copy_back
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import KERNEL_NAMES, SHAPED_COLUMNS, Place, Rows, Tensors

BLOCKS_PER_PROGRAM = 8
PLAIN, BF16, CODED = 0, 1, 2
STORAGES = {"fp32": PLAIN, "bf16": BF16, "compact": CODED}  # those that the kernel knows
BY_SLOW = {storage.REDUCED_DTYPES[name]["slow"]: number for name, number in STORAGES.items() if number != PLAIN}
VECTOR_BYTES = 16  # moved by a thread at once, if addresses and rows are multiples of it


class TensorRow(NamedTuple):
    """A tensor as the kernel knows it, all in int64."""

    addresses: Sequence[int]  # of what the columns of `Tensors` that kernels take have for it, or 0
    row_size: int
    blocks_in_row: int
    blocks: int
    first_program: int  # programs of a launch are dealt out to its tensors in turn
    first_block: int  # of the parameter that the tensor is a part of: random words depend on it
    first_element: int
    block_gap: int  # the blocks of a row of the parameter that the tensor does not have
    element_gap: int
    position: int  # in the matrix of coefficients
    param_index: int
    seed: int


# The names of its numbers, which are the columns of the table.
TABLE = (*KERNEL_NAMES, *TensorRow._fields[1:])


class Bucket(NamedTuple):
    """What the tensors of a launch have in common."""

    param: torch.dtype
    grad: torch.dtype
    slow: torch.dtype
    alignment: int

    @property
    def storage(self) -> int:
        """PLAIN, BF16 or CODED: the dtype of the slow average tells."""
        return BY_SLOW.get(self.slow, PLAIN)


class Variant(NamedTuple):
    """What a launch is compiled for besides its bucket."""

    has_fast: bool
    skips: bool
    stochastic_params: bool
    maximize: bool
    bounds_slow: bool = False
    corrected: bool = False


def update(
    tensors: Tensors, coefficients: PerTensor, rounding: Rounding, *, maximize: bool, grad_scale: Tensor | None
) -> None:
    """Update each parameter and its moments, all of one device, in place; see `ademamix_step`."""
    copies = arranged(tensors, row_major=rounding.stochastic_params)
    buckets = _buckets(copies, rounding.seed)
    if not buckets:
        return
    device = tensors.params[0].device
    bounds_slow = (coefficients[0] if isinstance(coefficients, list) else coefficients).bounds_slow
    variant = Variant(
        bool(tensors.fasts),
        bool(tensors.skipped),
        rounding.stochastic_params,
        maximize,
        bounds_slow,
        bool(tensors.corrections),
    )
    with _on(device):
        numbers = _matrix(coefficients, device)
        flat = [number for rows in buckets.values() for row in rows for number in (*row.addresses, *row[1:])]
        table = _upload(flat, torch.int64, device).view(-1, len(TABLE))
        if grad_scale is not None:
            grad_scale = grad_scale.to(device)
        first = 0
        for bucket, rows in buckets.items():
            programs = rows[-1].first_program + _programs(rows[-1])
            _launch(bucket, variant, programs, table[first : first + len(rows)], numbers, grad_scale)
            first += len(rows)
    copy_back(tensors, copies)


def _buckets(tensors: Tensors, seed: int) -> dict[Bucket, list[TensorRow]]:
    """Describe the tensors that have elements, bucket by bucket."""
    buckets: dict[Bucket, list[TensorRow]] = {}
    for i, param in enumerate(tensors.params):
        if not param.numel():
            continue
        slow, place = tensors.slows[i], tensors.places[i]
        addresses = [column[i].data_ptr() if column else 0 for column in tensors.of_kernels]
        rows = _rows(place, param, slow)
        row_size, blocks_in_row, blocks_in_whole_row = rows.size, -(-rows.size // BLOCK), -(-rows.whole_size // BLOCK)
        divisible = all(number % VECTOR_BYTES == 0 for number in (*addresses[:SHAPED_COLUMNS], row_size))
        bucket = Bucket(param.dtype, tensors.grads[i].dtype, slow.dtype, VECTOR_BYTES if divisible else 1)
        before = buckets.setdefault(bucket, [])
        row = TensorRow(
            addresses,
            row_size=row_size,
            blocks_in_row=blocks_in_row,
            blocks=rows.number * blocks_in_row,
            first_program=before[-1].first_program + _programs(before[-1]) if before else 0,
            first_block=rows.first * blocks_in_whole_row + rows.first_column // BLOCK,
            first_element=rows.first * rows.whole_size + rows.first_column,
            block_gap=blocks_in_whole_row - blocks_in_row,
            element_gap=rows.whole_size - row_size,
            position=i,
            param_index=place.param_index,
            seed=seed,
        )
        before.append(row)
    return buckets


def _rows(place: Place, param: Tensor, slow: Tensor) -> Rows:
    """Return the rows of a tensor: a single one if nothing depends on where they end."""
    rows = place.rows(param.shape)
    if storage.is_reduced(slow) or rows.size != rows.whole_size:
        return rows
    return Rows(1, param.numel(), 0, rows.first * rows.whole_size, param.numel())


def _programs(row: TensorRow) -> int:
    return -(-row.blocks // BLOCKS_PER_PROGRAM)


def _launch(
    bucket: Bucket, variant: Variant, programs: int, table: Tensor, coefficients: Tensor, grad_scale: Tensor | None
) -> None:
    kernels: Any = importlib.import_module("ademamix.pytorch.triton_kernels")  # which imports triton
    launch = kernels.step[(programs,)]
    instance = kernels.instance(bucket, variant)
    # 64 threads on some of AMD's GPUs
    warp = torch.cuda.get_device_properties(table.device).warp_size if table.is_cuda else 32
    launch(table, len(table), coefficients, grad_scale, instance, num_warps=threads(bucket, variant) // warp)


def threads(bucket: Bucket, variant: Variant) -> int:
    """Return the threads of a program.

    Of 128, each has 8 elements, which are 16 bytes in bf16. It has half as many where elements are moved one by one,
    are in fp64, may be skipped, or are coded and have bounds: there, 8 would take so many registers that some are
    spilled, or that few programs are on a multiprocessor at once.
    """
    is_demanding = variant.skips or (variant.bounds_slow and bucket.storage == CODED) or bucket.slow == torch.float64
    return 256 if is_demanding or bucket.alignment != VECTOR_BYTES else 128


def _matrix(coefficients: PerTensor, device: torch.device) -> Tensor:
    """Return the coefficients in float64, a row for each tensor."""
    if isinstance(coefficients, list):
        flat = [number for row in coefficients for number in row]
        return _upload(flat, torch.float64, device).view(len(coefficients), -1)
    return matrix_of(coefficients).to(device, non_blocking=True)


def _upload(numbers: Sequence[int | float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Bring numbers to the device without waiting for it."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=dtype, device=device)
    if torch.cuda.is_current_stream_capturing():
        return as_arguments(numbers, dtype, device)
    return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def as_arguments(numbers: Sequence[int | float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Bring numbers to the device in the arguments of kernels, which a CUDA graph keeps by value.

    Each replay would repeat a copy from host memory, which would have to outlive the graph, and pinned memory may not
    be available during a capture. torch passes lists of scalars as arguments, a hundred at a time.
    """
    result = torch.zeros(len(numbers), dtype=dtype, device=device)
    places = [(place, number) for place, number in zip(result.unbind(), numbers, strict=True) if number]
    if places:
        torch._foreach_add_([place for place, _ in places], [number for _, number in places])
    return result


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` the one that kernels are launched on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
