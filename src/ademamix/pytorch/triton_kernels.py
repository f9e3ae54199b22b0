"""The fused step on CUDA: one Triton kernel for all dtypes and storages, each of which is an instance of it.

Only :mod:`ademamix.pytorch.step_triton`, which launches it, imports this file, so that Triton is needed only where it
is used. The kernel is tested in Triton's interpreter, and instances of it are compiled to machine code; we have neither
run it on a GPU nor timed it.

The formats are those of block_codes.py, rounding.py and storage.py, bit for bit. Arithmetic is that of step_single.py,
but the compiler may fuse multiplications and additions: results agree with other paths to rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ademamix import formats
from ademamix.pytorch import block_codes
from ademamix.pytorch.coefficients import Coefficients
from ademamix.pytorch.step_triton import BLOCKS_PER_PROGRAM, CODED, PLAIN, TABLE, Bucket, Variant
from ademamix.pytorch.tensors import KERNEL_COLUMNS
from ademamix.pytorch.triton_formats import (
    decode_fast,
    decode_slow,
    decode_squares,
    divide_master,
    encode_fast,
    encode_slow,
    encode_squares,
    fast_to_bf16,
    join_master,
    keys,
    moment_words,
    param_to_bf16,
    random_words,
    slow_to_bf16,
    squares_to_bf16,
    to_nearest_bf16,
)

# A compiled function sees globals only if they are constexpr.
LANES = tl.constexpr(formats.BLOCK)
BLOCKS = tl.constexpr(BLOCKS_PER_PROGRAM)
IS_PLAIN, IS_CODED = tl.constexpr(PLAIN), tl.constexpr(CODED)
# Moments, as numbers to add to the column of the pointer to the fast one or to its scale.
FAST, SLOW, SQUARE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LIMIT = tl.constexpr(formats.GRADIENT_LIMIT)
FP32_MAX = tl.constexpr(torch.finfo(torch.float32).max)

# The columns of the table of tensors, in their order; of the moments and of their scales, the first.
COLUMNS = tl.constexpr(len(TABLE))
PARAM, GRAD, MOMENT, _, _, CORRECTION, SCALE, _, _, SKIPPED = map(tl.constexpr, range(KERNEL_COLUMNS))
_rows = map(tl.constexpr, range(KERNEL_COLUMNS, len(TABLE)))
ROW_SIZE, BLOCKS_IN_ROW, BLOCKS_IN_ALL, FIRST_PROGRAM, FIRST_BLOCK, FIRST_ELEMENT, *_rest = _rows
BLOCK_GAP, ELEMENT_GAP, POSITION, INDEX, SEED = _rest

# The columns of the matrix of coefficients, in their order.
NUMBERS = tl.constexpr(len(Coefficients._fields))
FAST_RATE, SLOW_RATE, SQUARE_RATE, SLOW_GAIN, STEP_SIZE, EPS, DECAY, STEP, SLOW_LIMIT = map(
    tl.constexpr, range(len(Coefficients._fields))
)

DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int16: tl.int16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
}


class Instance(NamedTuple):
    """What the kernel is compiled for."""

    param: tl.dtype
    grad: tl.dtype
    moments: tuple[tl.dtype, tl.dtype, tl.dtype]  # by FAST, SLOW and SQUARE
    compute: tl.dtype  # of the arithmetic
    storage: int  # PLAIN, BF16 or CODED
    has_fast: bool
    skips: bool
    stochastic: bool  # round the parameter stochastically
    maximize: bool
    bounds_slow: bool
    corrected: bool  # the parameter has a master
    alignment: int  # a divisor of all addresses and row sizes


def instance(bucket: Bucket, variant: Variant) -> Instance:
    """Return the instance of :func:`step` for a bucket."""
    coded = (formats.FAST, formats.SLOW, formats.SQUARE)
    stored = [block_codes.dtype_of(code) if bucket.storage == CODED else bucket.slow for code in coded]
    return Instance(
        param=DTYPES[bucket.param],
        grad=DTYPES[bucket.grad],
        moments=(DTYPES[stored[0]], DTYPES[stored[1]], DTYPES[stored[2]]),
        compute=tl.float64 if bucket.slow == torch.float64 else tl.float32,
        storage=bucket.storage,
        has_fast=variant.has_fast,
        skips=variant.skips,
        stochastic=variant.stochastic_params and bucket.param == torch.bfloat16,
        maximize=variant.maximize,
        bounds_slow=variant.bounds_slow,
        corrected=variant.corrected,
        alignment=bucket.alignment,
    )


@triton.jit(do_not_specialize=["count"])
def step(
    table,  # of int64, a TensorRow for each of `count` tensors
    count,
    coefficients,  # of float64, Coefficients for each tensor of the group
    grad_scale,  # gradients are divided by it: a pointer to one number, or None
    INSTANCE: tl.constexpr,  # the Instance
):
    """Update BLOCKS blocks of one tensor."""
    row = table + _tensor_of(tl.program_id(0), table, count) * COLUMNS
    c = coefficients + tl.load(row + POSITION) * NUMBERS
    tile, rows_before = _tile(tl.program_id(0), row, INSTANCE.alignment)
    block, _, offsets, mask = tile

    # All of these loads are before the first store: the compiler could not move them across it.
    before = _load_param(row, offsets, mask, INSTANCE)
    grad = _load(row + GRAD, offsets, mask, INSTANCE.grad, INSTANCE.alignment)
    if INSTANCE.grad == tl.float64 and INSTANCE.compute == tl.float32:
        grad = _limited(grad, FP32_MAX)  # finite elements stay finite
    grad = grad.to(INSTANCE.compute)
    if grad_scale is not None:
        grad = _divide(grad, tl.load(grad_scale).to(INSTANCE.compute))
    if INSTANCE.maximize:
        grad = -grad
    if INSTANCE.compute == tl.float32:
        grad = _limited(grad, LIMIT)
    finite = tl.abs(grad) < float("inf")
    if INSTANCE.skips:
        grad = tl.where(finite, grad, 0.0)
    fast_rate, slow_rate, square_rate = _rates(c, finite, INSTANCE.compute, INSTANCE.skips)

    fast = grad
    if INSTANCE.has_fast:
        fast = _load_moment(row, tile, FAST, INSTANCE)
        fast = _lerp(fast, grad, fast_rate)
    slow = _load_moment(row, tile, SLOW, INSTANCE)
    slow = _lerp(slow, grad, slow_rate)
    square = _load_moment(row, tile, SQUARE, INSTANCE)
    square = _lerp(square, grad * grad, square_rate)
    after = _descend(before, fast, slow, square, c, INSTANCE)

    words = block  # unused if nothing is rounded stochastically
    if INSTANCE.storage != IS_PLAIN or INSTANCE.stochastic:
        key0, key1 = keys(tl.load(row + SEED), tl.load(row + INDEX), tl.load(c + STEP).to(tl.int64))
    if INSTANCE.storage != IS_PLAIN:
        place = tl.load(row + FIRST_BLOCK) + block + rows_before * tl.load(row + BLOCK_GAP)
        words = moment_words(place, key0, key1)
    if INSTANCE.has_fast:
        _store_moment(row, tile, fast, words, FAST, INSTANCE)
    _store_moment(row, tile, slow, words, SLOW, INSTANCE)
    _store_moment(row, tile, square, words, SQUARE, INSTANCE)

    if INSTANCE.skips:
        after = tl.where(finite, after, before)
        _count(mask & (finite == 0), row + SKIPPED)
    if INSTANCE.stochastic:
        element = tl.load(row + FIRST_ELEMENT) + offsets + (rows_before * tl.load(row + ELEMENT_GAP))[:, None]
        words = random_words(element, key0, key1)
    _store_param(row, offsets, mask, after, words, INSTANCE)


@triton.jit
def _limited(values, limit: tl.constexpr):
    """Limit the magnitude of finite values, see gradient_limit.py."""
    bounded = tl.minimum(tl.maximum(values, -limit), limit)
    return tl.where(tl.abs(values) < float("inf"), bounded, values)


@triton.jit
def _tensor_of(program, table, count):
    """Return the last tensor whose first program is not after `program`."""
    low, high = count * 0, count
    while high - low > 1:
        middle = (low + high) // 2
        is_after = tl.load(table + middle * COLUMNS + FIRST_PROGRAM) > program
        low = tl.where(is_after, low, middle)
        high = tl.where(is_after, middle, high)
    return low


@triton.jit
def _tile(program, row, ALIGNMENT: tl.constexpr):
    """Return the tile: its blocks, which of them the tensor has, and the same for elements; and the rows before blocks.

    Blocks are numbered in 32 bits: 64-bit division takes many instructions. A tensor of more than 2^31 blocks would
    have terabytes.
    """
    blocks = tl.load(row + BLOCKS_IN_ALL).to(tl.int32)
    blocks_in_row = tl.load(row + BLOCKS_IN_ROW).to(tl.int32)
    row_size = tl.multiple_of(tl.load(row + ROW_SIZE), ALIGNMENT)
    block = (program - tl.load(row + FIRST_PROGRAM).to(tl.int32)) * BLOCKS + tl.arange(0, BLOCKS)
    rows_before = block // blocks_in_row
    column = ((block - rows_before * blocks_in_row).to(tl.int64) * LANES)[:, None] + tl.arange(0, LANES)[None, :]
    block_mask = block < blocks
    mask = block_mask[:, None] & (column < row_size)
    rows_before = rows_before.to(tl.int64)
    tile = (block, block_mask, (rows_before * row_size)[:, None] + column, mask)
    return tile, rows_before


@triton.jit
def _load(address, offsets, mask, DTYPE: tl.constexpr, ALIGNMENT: tl.constexpr):
    pointer = tl.multiple_of(tl.load(address).to(tl.pointer_type(DTYPE)), ALIGNMENT)
    return tl.load(pointer + offsets, mask=mask, other=0)


@triton.jit
def _store(address, values, offsets, mask, DTYPE: tl.constexpr, ALIGNMENT: tl.constexpr):
    pointer = tl.multiple_of(tl.load(address).to(tl.pointer_type(DTYPE)), ALIGNMENT)
    tl.store(pointer + offsets, values.to(DTYPE), mask=mask)


@triton.jit
def _load_param(row, offsets, mask, INSTANCE: tl.constexpr):
    """Return parameters, or their masters, for the arithmetic."""
    values = _load(row + PARAM, offsets, mask, INSTANCE.param, INSTANCE.alignment)
    if INSTANCE.corrected:
        values = join_master(values, _load(row + CORRECTION, offsets, mask, tl.int8, INSTANCE.alignment))
    return values.to(INSTANCE.compute)


@triton.jit
def _store_param(row, offsets, mask, values, words, INSTANCE: tl.constexpr):
    if INSTANCE.corrected:
        values, corrections = divide_master(values, words, INSTANCE.stochastic)
        _store(row + CORRECTION, corrections, offsets, mask, tl.int8, INSTANCE.alignment)
    elif INSTANCE.stochastic:
        values = param_to_bf16(values, words)
    elif INSTANCE.param == tl.bfloat16:
        values = to_nearest_bf16(values)
    _store(row + PARAM, values, offsets, mask, INSTANCE.param, INSTANCE.alignment)


@triton.jit
def _count(flags, address):
    """Add the number of `flags` that are set. Integers: the order of programs does not matter."""
    number = tl.sum(flags.to(tl.int32))
    pointer = tl.load(address).to(tl.pointer_type(tl.int64))
    tl.atomic_add(pointer, number.to(tl.int64), mask=number > 0, sem="relaxed")


@triton.jit
def _rates(c, finite, COMPUTE: tl.constexpr, SKIPS: tl.constexpr):
    """Return the rates of the fast, the slow and the square moment; an EMA that moves at rate 0 stays."""
    fast_rate = tl.load(c + FAST_RATE).to(COMPUTE)
    slow_rate = tl.load(c + SLOW_RATE).to(COMPUTE)
    square_rate = tl.load(c + SQUARE_RATE).to(COMPUTE)
    if SKIPS:
        fast_rate = tl.where(finite, fast_rate, 0.0)
        slow_rate = tl.where(finite, slow_rate, 0.0)
        square_rate = tl.where(finite, square_rate, 0.0)
    return fast_rate, slow_rate, square_rate


@triton.jit
def _lerp(start, end, rate):
    """Interpolate like torch.lerp, from the nearer end, which makes both ends exact."""
    is_small = rate < 0.5
    return tl.where(is_small, start, end) + tl.where(is_small, rate, rate - 1.0) * (end - start)


@triton.jit
def _divide(numerator, denominator):
    """Divide as IEEE 754 does; in fp32, `/` alone would be an approximation."""
    return tl.div_rn(numerator, denominator) if numerator.dtype == tl.float32 else numerator / denominator


@triton.jit
def _descend(before, fast, slow, square, c, INSTANCE: tl.constexpr):
    slow_gain, eps = tl.load(c + SLOW_GAIN).to(INSTANCE.compute), tl.load(c + EPS).to(INSTANCE.compute)
    step_size, decay = tl.load(c + STEP_SIZE).to(INSTANCE.compute), tl.load(c + DECAY).to(INSTANCE.compute)
    root = tl.sqrt_rn(square) if square.dtype == tl.float32 else tl.sqrt(square)
    slow_part = slow_gain * slow
    if INSTANCE.bounds_slow:
        bound = tl.load(c + SLOW_LIMIT).to(INSTANCE.compute) * (root + eps)
        slow_part = tl.where(slow_part > bound, bound, tl.where(slow_part < -bound, -bound, slow_part))
    direction = _divide(fast + slow_part, root + eps)
    return before - (decay * before + step_size * direction)


@triton.jit
def _load_moment(row, tile, WHICH: tl.constexpr, INSTANCE: tl.constexpr):
    block, block_mask, offsets, mask = tile
    stored = _load(row + MOMENT + WHICH, offsets, mask, INSTANCE.moments[WHICH], INSTANCE.alignment)
    if INSTANCE.storage == IS_CODED:
        scale = _load(row + SCALE + WHICH, block, block_mask, tl.uint8, 1)
        if WHICH == FAST:
            values = decode_fast(stored, scale)
        else:
            values = decode_slow(stored, scale) if WHICH == SLOW else decode_squares(stored, scale)
    else:
        values = stored.to(INSTANCE.compute)
    return values


@triton.jit
def _store_moment(row, tile, values, words, WHICH: tl.constexpr, INSTANCE: tl.constexpr):
    block, block_mask, offsets, mask = tile
    if INSTANCE.storage == IS_CODED:
        if WHICH == FAST:
            stored, scale = encode_fast(values, words)
        elif WHICH == SLOW:
            stored, scale = encode_slow(values, words)
        else:
            stored, scale = encode_squares(values, words)
        _store(row + SCALE + WHICH, scale, block, block_mask, tl.uint8, 1)
    elif INSTANCE.storage == IS_PLAIN:
        stored = values
    elif WHICH == FAST:
        stored = fast_to_bf16(values, words)
    elif WHICH == SLOW:
        stored = slow_to_bf16(values, words)
    else:
        stored = squares_to_bf16(values, words)
    _store(row + MOMENT + WHICH, stored, offsets, mask, INSTANCE.moments[WHICH], INSTANCE.alignment)
