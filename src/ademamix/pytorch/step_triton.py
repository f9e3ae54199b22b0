"""The fused body on CUDA: describes the tensors of a group to a Triton kernel, and launches it once for each bucket.

A bucket has tensors of equal dtypes. What a kernel is to know of each of them, addresses above all, is in a table on
the device; nothing that changes from step to step is an argument, so a CUDA graph replays steps as they were taken.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix.pytorch import block_codes, storage
from ademamix.pytorch.coefficients import PerTensor
from ademamix.pytorch.memory_order import copy_back, in_one_order
from ademamix.pytorch.rounding import Rounding

BLOCKS_PER_PROGRAM = 8
PLAIN, BF16, CODED = 0, 1, 2
STORAGES = {torch.bfloat16: BF16, block_codes.SLOW.dtype: CODED}  # by the dtype of m2; all others are plain
VECTOR_BYTES = 16  # what a thread moves at once, if addresses and rows are multiples of it


class TensorRow(NamedTuple):
    """What the kernel knows of a tensor, all in int64. Addresses of what does not exist are 0."""

    param: int
    grad: int
    fast: int
    slow: int
    square: int
    fast_scale: int
    slow_scale: int
    square_scale: int
    skipped: int
    row_size: int
    blocks_in_row: int
    blocks: int
    first_program: int  # programs of a launch are dealt out to its tensors in turn
    first_block: int  # of the parameter that the tensor is a part of: random words depend on it
    first_element: int
    position: int  # in the matrix of coefficients
    param_index: int
    seed: int


POINTERS = TensorRow._fields[: TensorRow._fields.index("row_size")]


class Bucket(NamedTuple):
    """What the tensors of a launch have in common."""

    param: torch.dtype
    grad: torch.dtype
    slow: torch.dtype
    alignment: int


def update(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_slows: list[Tensor],
    exp_avg_sqs: list[Tensor],
    exp_avg_scales: list[Tensor],
    exp_avg_slow_scales: list[Tensor],
    exp_avg_sq_scales: list[Tensor],
    skipped: list[Tensor],
    coefficients: PerTensor,
    *,
    rounding: Rounding,
    maximize: bool,
    grad_scale: Tensor | None,
) -> None:
    """Update each parameter and its moments, all of one device, in place; see `ademamix_step`."""
    columns = [params, grads, exp_avg_slows, exp_avg_sqs, *([exp_avgs] if exp_avgs else [])]
    arranged = [in_one_order(*row, row_major=rounding.stochastic_params) for row in zip(*columns, strict=True)]
    copies = [list(column) for column in zip(*arranged, strict=True)]
    params_, grads_, slows_, squares_, fasts_ = [*copies, []][:5]
    scales = (exp_avg_scales, exp_avg_slow_scales, exp_avg_sq_scales)
    buckets = _buckets((params_, grads_, fasts_, slows_, squares_, *scales, skipped), rounding)
    if not buckets:
        return
    device = params[0].device
    with _on(device):
        numbers = _matrix(coefficients, device)
        flat = [number for rows in buckets.values() for row in rows for number in row]
        table = _upload(flat, torch.int64, device).view(-1, len(TensorRow._fields))
        if grad_scale is not None:
            grad_scale = grad_scale.to(device)
        first = 0
        for bucket, rows in buckets.items():
            _launch(
                bucket,
                rows,
                table[first : first + len(rows)],
                numbers,
                grad_scale,
                has_fast=bool(exp_avgs),
                skips=bool(skipped),
                stochastic=rounding.stochastic_params and bucket.param == torch.bfloat16,
                maximize=maximize,
            )
            first += len(rows)
    for originals, own in zip(columns, copies, strict=True):
        if originals is not grads:
            copy_back(originals, own)


def _buckets(pointed_at: tuple[list[Tensor], ...], rounding: Rounding) -> dict[Bucket, list[TensorRow]]:
    """Describe the tensors that have elements, bucket by bucket; `pointed_at` is in the order of POINTERS."""
    buckets: dict[Bucket, list[TensorRow]] = {}
    params, grads, _, slows, *_ = pointed_at
    for i, (param, grad, slow) in enumerate(zip(params, grads, slows, strict=True)):
        if not param.numel():
            continue
        addresses = [tensors[i].data_ptr() if tensors else 0 for tensors in pointed_at]
        rows, row_size = _geometry(param, slow)
        blocks_in_row = -(-row_size // block_codes.BLOCK)
        divisible = all(number % VECTOR_BYTES == 0 for number in (*addresses[:5], row_size))
        bucket = Bucket(param.dtype, grad.dtype, slow.dtype, VECTOR_BYTES if divisible else 1)
        before = buckets.setdefault(bucket, [])
        row = TensorRow(
            **dict(zip(POINTERS, addresses, strict=True)),
            row_size=row_size,
            blocks_in_row=blocks_in_row,
            blocks=rows * blocks_in_row,
            first_program=before[-1].first_program + _programs(before[-1]) if before else 0,
            first_block=rounding.first_rows[i] * blocks_in_row,
            first_element=rounding.first_rows[i] * (param.numel() // param.shape[0]) if param.dim() else 0,
            position=i,
            param_index=rounding.indices[i],
            seed=rounding.seed,
        )
        before.append(row)
    return buckets


def _geometry(param: Tensor, slow: Tensor) -> tuple[int, int]:
    """Return the number of rows and their size. Blocks lie inside of rows only if they matter to what is stored."""
    if not storage.is_reduced(slow):
        return 1, param.numel()
    return param.shape[0], param.numel() // param.shape[0]


def _programs(row: TensorRow) -> int:
    return -(-row.blocks // BLOCKS_PER_PROGRAM)


def _launch(
    bucket: Bucket,
    rows: list[TensorRow],
    table: Tensor,
    coefficients: Tensor,
    grad_scale: Tensor | None,
    *,
    has_fast: bool,
    skips: bool,
    stochastic: bool,
    maximize: bool,
) -> None:
    kernels: Any = importlib.import_module("ademamix.pytorch.triton_kernels")  # which imports triton
    kernels.step[(rows[-1].first_program + _programs(rows[-1]),)](
        table,
        len(rows),
        coefficients,
        grad_scale,
        **kernels.instance(
            bucket,
            storage=STORAGES.get(bucket.slow, PLAIN),
            has_fast=has_fast,
            skips=skips,
            stochastic=stochastic,
            maximize=maximize,
        ),
    )


def _matrix(coefficients: PerTensor, device: torch.device) -> Tensor:
    """Return the coefficients in float64, a row for each tensor."""
    if isinstance(coefficients, list):
        flat = [number for row in coefficients for number in row]
        return _upload(flat, torch.float64, device).view(len(coefficients), -1)
    return torch.stack(tuple(coefficients), dim=1).to(device, non_blocking=True)


def _upload(numbers: Sequence[int | float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Bring numbers to the device without waiting for it."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=dtype, device=device)
    if torch.cuda.is_current_stream_capturing():
        return as_arguments(numbers, dtype, device)
    return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def as_arguments(numbers: Sequence[int | float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Bring numbers to the device in the arguments of kernels, which a CUDA graph keeps by value.

    A copy from host memory would be repeated by each replay, from memory that has to outlive the graph, and pinned
    memory cannot be counted on to be had during a capture. torch passes lists of scalars as arguments, a hundred at
    a time.
    """
    result = torch.zeros(len(numbers), dtype=dtype, device=device)
    places = [(place, number) for place, number in zip(result.unbind(), numbers, strict=True) if number]
    if places:
        torch._foreach_add_([place for place, _ in places], [number for _, number in places])
    return result


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` the one that kernels are launched on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
