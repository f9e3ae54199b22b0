"""The fused step on CUDA: one Triton kernel for all dtypes and storages, each of which is an instance of it.

:mod:`ademamix.pytorch.step_triton` launches it and is the only one that imports this file, so that Triton is needed
where it is used alone. The kernel is tested in Triton's interpreter, and instances of it are compiled to machine code;
it has not been run on a GPU or timed by us.

The formats are those of block_codes.py, rounding.py and storage.py, bit for bit. Arithmetic is that of step_single.py,
but the compiler may fuse multiplications and additions: results agree with other paths to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ademamix.pytorch import block_codes
from ademamix.pytorch.coefficients import Coefficients
from ademamix.pytorch.gradient_limit import GRADIENT_LIMIT
from ademamix.pytorch.step_triton import BLOCKS_PER_PROGRAM, CODED, PLAIN, Bucket, TensorRow

# A compiled function sees globals only if they are constexpr.
LANES = tl.constexpr(block_codes.BLOCK)
BLOCKS = tl.constexpr(BLOCKS_PER_PROGRAM)
IS_PLAIN, IS_CODED = tl.constexpr(PLAIN), tl.constexpr(CODED)
LEAST_EXPONENT = tl.constexpr(block_codes.LEAST_EXPONENT)
GREATEST_EXPONENT = tl.constexpr(block_codes.GREATEST_EXPONENT)

# Moments, by what is added to the column of a pointer to the fast one or to its scale.
FAST, SLOW, SQUARE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FAST_SHIFT, FAST_BASE = tl.constexpr(block_codes.FAST.shift), tl.constexpr(block_codes.FAST.base)
SLOW_SHIFT, SLOW_BASE = tl.constexpr(block_codes.SLOW.shift), tl.constexpr(block_codes.SLOW.base)
SQUARE_SHIFT, SQUARE_BASE = tl.constexpr(block_codes.SQUARE.shift), tl.constexpr(block_codes.SQUARE.base)
WIDE_SQUARE_SHIFT = tl.constexpr(block_codes.WIDE_SQUARE.shift)
WIDE_SQUARE_BASE = tl.constexpr(block_codes.WIDE_SQUARE.base)
FIRST_WIDE_SCALE = tl.constexpr(block_codes.FIRST_WIDE_SCALE)
LAST_WIDE_SCALE = tl.constexpr(block_codes.LAST_WIDE_SCALE)
WELL_RESOLVED = tl.constexpr(block_codes.WELL_RESOLVED)
LIMIT = tl.constexpr(GRADIENT_LIMIT)
FP32_MAX = tl.constexpr(torch.finfo(torch.float32).max)

# The columns of the table of tensors.
COLUMNS = tl.constexpr(len(TensorRow._fields))
PARAM = tl.constexpr(TensorRow._fields.index("param"))
GRAD = tl.constexpr(TensorRow._fields.index("grad"))
MOMENT = tl.constexpr(TensorRow._fields.index("fast"))
SCALE = tl.constexpr(TensorRow._fields.index("fast_scale"))
SKIPPED = tl.constexpr(TensorRow._fields.index("skipped"))
ROW_SIZE = tl.constexpr(TensorRow._fields.index("row_size"))
BLOCKS_IN_ROW = tl.constexpr(TensorRow._fields.index("blocks_in_row"))
BLOCKS_IN_ALL = tl.constexpr(TensorRow._fields.index("blocks"))
FIRST_PROGRAM = tl.constexpr(TensorRow._fields.index("first_program"))
FIRST_BLOCK = tl.constexpr(TensorRow._fields.index("first_block"))
FIRST_ELEMENT = tl.constexpr(TensorRow._fields.index("first_element"))
POSITION = tl.constexpr(TensorRow._fields.index("position"))
INDEX = tl.constexpr(TensorRow._fields.index("param_index"))
SEED = tl.constexpr(TensorRow._fields.index("seed"))

# The columns of the matrix of coefficients.
NUMBERS = tl.constexpr(len(Coefficients._fields))
FAST_RATE = tl.constexpr(Coefficients._fields.index("fast_rate"))
SQUARE_RATE = tl.constexpr(Coefficients._fields.index("square_rate"))
SLOW_RATE = tl.constexpr(Coefficients._fields.index("slow_rate"))
SLOW_GAIN = tl.constexpr(Coefficients._fields.index("slow_gain"))
STEP_SIZE = tl.constexpr(Coefficients._fields.index("step_size"))
EPS = tl.constexpr(Coefficients._fields.index("eps"))
DECAY = tl.constexpr(Coefficients._fields.index("decay"))
STEP = tl.constexpr(Coefficients._fields.index("step"))

DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int16: tl.int16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
}


def instance(
    bucket: Bucket, *, storage: int, has_fast: bool, skips: bool, stochastic: bool, maximize: bool
) -> dict[str, Any]:
    """Return the arguments that :func:`step` is compiled for."""
    slow = DTYPES[bucket.slow]
    return {
        "PARAM_DTYPE": DTYPES[bucket.param],
        "GRAD_DTYPE": DTYPES[bucket.grad],
        "FAST_DTYPE": DTYPES[block_codes.FAST.dtype] if storage == CODED else slow,
        "SLOW_DTYPE": slow,
        "SQUARE_DTYPE": DTYPES[block_codes.SQUARE.dtype] if storage == CODED else slow,
        "COMPUTE": tl.float64 if bucket.slow == torch.float64 else tl.float32,
        "STORAGE": storage,
        "HAS_FAST": has_fast,
        "SKIPS": skips,
        "STOCHASTIC": stochastic,
        "MAXIMIZE": maximize,
        "ALIGNMENT": bucket.alignment,
    }


@triton.jit(do_not_specialize=["count"])
def step(
    table,  # of int64, a TensorRow for each of `count` tensors
    count,
    coefficients,  # of float64, Coefficients for each tensor of the group
    grad_scale,  # what gradients are to be divided by: a pointer to one number, or None
    PARAM_DTYPE: tl.constexpr,
    GRAD_DTYPE: tl.constexpr,
    FAST_DTYPE: tl.constexpr,
    SLOW_DTYPE: tl.constexpr,
    SQUARE_DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,  # the dtype of the arithmetic
    STORAGE: tl.constexpr,  # PLAIN, BF16 or CODED
    HAS_FAST: tl.constexpr,
    SKIPS: tl.constexpr,
    STOCHASTIC: tl.constexpr,  # round the parameter stochastically
    MAXIMIZE: tl.constexpr,
    ALIGNMENT: tl.constexpr,  # a divisor of all addresses and row sizes
):
    """Update BLOCKS blocks of one tensor."""
    row = table + _tensor_of(tl.program_id(0), table, count) * COLUMNS
    c = coefficients + tl.load(row + POSITION) * NUMBERS
    block, blocks, offsets, mask = _tile(tl.program_id(0), row, ALIGNMENT)

    # All loads are before the first store: the compiler could not move them across it.
    before = _load(row + PARAM, offsets, mask, PARAM_DTYPE, ALIGNMENT).to(COMPUTE)
    grad = _load(row + GRAD, offsets, mask, GRAD_DTYPE, ALIGNMENT)
    if tl.float64 == GRAD_DTYPE and tl.float32 == COMPUTE:
        grad = _limited(grad, FP32_MAX)  # what is finite stays so
    grad = grad.to(COMPUTE)
    if grad_scale is not None:
        grad = _divide(grad, tl.load(grad_scale).to(COMPUTE))
    if MAXIMIZE:
        grad = -grad
    if tl.float32 == COMPUTE:
        grad = _limited(grad, LIMIT)
    finite = tl.abs(grad) < float("inf")
    if SKIPS:
        grad = tl.where(finite, grad, 0.0)
    fast_rate, slow_rate, square_rate = _rates(c, finite, COMPUTE, SKIPS)

    slow = _load_moment(row, block, blocks, offsets, mask, SLOW, SLOW_DTYPE, COMPUTE, STORAGE, ALIGNMENT)
    square = _load_moment(row, block, blocks, offsets, mask, SQUARE, SQUARE_DTYPE, COMPUTE, STORAGE, ALIGNMENT)
    slow = _lerp(slow, grad, slow_rate)
    square = _lerp(square, grad * grad, square_rate)
    fast = grad
    if HAS_FAST:
        fast = _load_moment(row, block, blocks, offsets, mask, FAST, FAST_DTYPE, COMPUTE, STORAGE, ALIGNMENT)
        fast = _lerp(fast, grad, fast_rate)

    words = block  # of no use, if moments are not rounded
    if STORAGE != IS_PLAIN or STOCHASTIC:
        key0, key1 = _keys(tl.load(row + SEED), tl.load(row + INDEX), tl.load(c + STEP).to(tl.int64))
    if STORAGE != IS_PLAIN:
        words = _moment_words(tl.load(row + FIRST_BLOCK) + block, key0, key1)
    _store_moment(slow, words, row, block, blocks, offsets, mask, SLOW, SLOW_DTYPE, STORAGE, ALIGNMENT)
    _store_moment(square, words, row, block, blocks, offsets, mask, SQUARE, SQUARE_DTYPE, STORAGE, ALIGNMENT)
    if HAS_FAST:
        _store_moment(fast, words, row, block, blocks, offsets, mask, FAST, FAST_DTYPE, STORAGE, ALIGNMENT)

    after = _descend(before, fast, slow, square, c, COMPUTE)
    if SKIPS:
        after = tl.where(finite, after, before)
        _count(mask & (finite == 0), row + SKIPPED)
    if STOCHASTIC:
        after = _to_bf16(after, _random_words(tl.load(row + FIRST_ELEMENT) + offsets, key0, key1) & 0xFFFF)
    elif tl.bfloat16 == PARAM_DTYPE:
        after = _to_nearest_bf16(after)
    _store(row + PARAM, after, offsets, mask, PARAM_DTYPE, ALIGNMENT)


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
    """Return the tile's blocks, their number in the tensor, and the offsets and the mask of its elements."""
    blocks = tl.load(row + BLOCKS_IN_ALL)
    blocks_in_row = tl.load(row + BLOCKS_IN_ROW)
    row_size = tl.multiple_of(tl.load(row + ROW_SIZE), ALIGNMENT)
    block = (program - tl.load(row + FIRST_PROGRAM)) * BLOCKS + tl.arange(0, BLOCKS)
    column = (block % blocks_in_row * LANES)[:, None] + tl.arange(0, LANES)[None, :]
    mask = (block < blocks)[:, None] & (column < row_size)
    return block, blocks, (block // blocks_in_row * row_size)[:, None] + column, mask


@triton.jit
def _load(address, offsets, mask, DTYPE: tl.constexpr, ALIGNMENT: tl.constexpr):
    pointer = tl.multiple_of(tl.load(address).to(tl.pointer_type(DTYPE)), ALIGNMENT)
    return tl.load(pointer + offsets, mask=mask, other=0)


@triton.jit
def _store(address, values, offsets, mask, DTYPE: tl.constexpr, ALIGNMENT: tl.constexpr):
    pointer = tl.multiple_of(tl.load(address).to(tl.pointer_type(DTYPE)), ALIGNMENT)
    tl.store(pointer + offsets, values.to(DTYPE), mask=mask)


@triton.jit
def _count(flags, address):
    """Add the number of `flags` that are set. Integers: the order of programs does not matter."""
    number = tl.sum(flags.to(tl.int32))
    pointer = tl.load(address).to(tl.pointer_type(tl.int64))
    tl.atomic_add(pointer, number.to(tl.int64), mask=number > 0, sem="relaxed")


@triton.jit
def _rates(c, finite, COMPUTE: tl.constexpr, SKIPS: tl.constexpr):
    """Return the rates of m1, m2 and nu; an EMA that moves at rate 0 stays."""
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
    """Interpolate like torch.lerp, which is exact at both ends."""
    return tl.where(rate < 0.5, start + rate * (end - start), end - (end - start) * (1.0 - rate))


@triton.jit
def _divide(numerator, denominator):
    """Divide as IEEE 754 does; in fp32, `/` alone would be an approximation."""
    return tl.div_rn(numerator, denominator) if numerator.dtype == tl.float32 else numerator / denominator


@triton.jit
def _descend(before, fast, slow, square, c, COMPUTE: tl.constexpr):
    slow_gain, eps = tl.load(c + SLOW_GAIN).to(COMPUTE), tl.load(c + EPS).to(COMPUTE)
    step_size, decay = tl.load(c + STEP_SIZE).to(COMPUTE), tl.load(c + DECAY).to(COMPUTE)
    root = tl.sqrt_rn(square) if square.dtype == tl.float32 else tl.sqrt(square)
    direction = _divide(fast + slow_gain * slow, root + eps)
    return before - (decay * before + step_size * direction)


@triton.jit
def _load_moment(
    row,
    block,
    blocks,
    offsets,
    mask,
    WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
    STORAGE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    stored = _load(row + MOMENT + WHICH, offsets, mask, DTYPE, ALIGNMENT)
    if STORAGE == IS_CODED:
        scale = _load(row + SCALE + WHICH, block, block < blocks, tl.uint8, 1)
        if WHICH == FAST:
            values = _decode(stored, scale, FAST_SHIFT, FAST_BASE)
        elif WHICH == SLOW:
            values = _decode(stored, scale, SLOW_SHIFT, SLOW_BASE)
        else:
            values = _decode_squares(stored, scale)
    else:
        values = stored.to(COMPUTE)
    return values


@triton.jit
def _store_moment(
    values,
    words,
    row,
    block,
    blocks,
    offsets,
    mask,
    WHICH: tl.constexpr,
    DTYPE: tl.constexpr,
    STORAGE: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """Store a moment. The parts of the word that it is rounded by are those of storage.py."""
    if STORAGE == IS_CODED:
        if WHICH == FAST:
            stored, scale = _encode(values, (words & 0x7FE00) | 0x100, FAST_SHIFT, FAST_BASE)
        elif WHICH == SLOW:
            stored, scale = _encode(values, words >> 21, SLOW_SHIFT, SLOW_BASE)
        else:
            stored, scale = _encode_squares(values, ((words << 10) & 0x7FC00) | 0x200)
        _store(row + SCALE + WHICH, scale, block, block < blocks, tl.uint8, 1)
    elif STORAGE == IS_PLAIN:
        stored = values
    elif WHICH == FAST:
        stored = _to_bf16(values, words & 0xFFFF)
    elif WHICH == SLOW:
        stored = _to_bf16(values, words >> 16)
    else:
        second = words * 0x846CA68B
        stored = _to_bf16(values, (second ^ (second >> 16)) >> 16)
    _store(row + MOMENT + WHICH, stored, offsets, mask, DTYPE, ALIGNMENT)


@triton.jit
def _decode(codes, scale, SHIFT: tl.constexpr, BASE: tl.constexpr):
    return _units(codes, SHIFT, BASE) * _power_of_two(scale)[:, None]


@triton.jit
def _decode_squares(codes, scale):
    scale = scale.to(tl.int32)
    is_wide = (scale >= FIRST_WIDE_SCALE) & (scale <= LAST_WIDE_SCALE)
    wide_units = _units(codes, WIDE_SQUARE_SHIFT, WIDE_SQUARE_BASE)
    units = tl.where(is_wide[:, None], wide_units, _units(codes, SQUARE_SHIFT, SQUARE_BASE))
    return units * _power_of_two(tl.where(is_wide, _wide_exponent(scale), scale))[:, None]


@triton.jit
def _units(codes, SHIFT: tl.constexpr, BASE: tl.constexpr):
    """Return the values that codes stand for in a block with the scale 1."""
    wide = codes.to(tl.int32)
    magnitude = ((tl.abs(wide) << SHIFT) + BASE).to(tl.float32, bitcast=True) - _offset(BASE)
    return tl.where(wide < 0, -magnitude, magnitude)


@triton.jit
def _encode(values, noise, SHIFT: tl.constexpr, BASE: tl.constexpr):
    """Return the codes of a tile and the scales of its blocks; what is masked must be 0."""
    finite = tl.where(tl.abs(values) < float("inf"), values, 0.0)
    magnitude = tl.abs(finite)
    scale = _scales(magnitude)
    codes = _codes(magnitude, scale, noise, SHIFT, BASE)
    return tl.where(finite < 0, -codes, codes), scale


@triton.jit
def _encode_squares(values, noise):
    """Do the same for second moments, of which some blocks are wide, and none that is not 0 becomes 0."""
    squares = tl.where(values < float("inf"), values, 0.0)
    scale = _scales(squares)
    smallest = tl.min(tl.where(squares > 0, squares.to(tl.int32, bitcast=True), 0x7FFFFFFF), axis=1)
    is_wide = smallest <= (scale - WELL_RESOLVED) << 23
    wide_scale = tl.maximum((scale + 7 - _wide_exponent(0)) >> 3, FIRST_WIDE_SCALE)
    codes = _codes(squares, scale, noise, SQUARE_SHIFT, SQUARE_BASE)
    wide_noise = noise << (WIDE_SQUARE_SHIFT - SQUARE_SHIFT)
    wide_codes = _codes(squares, _wide_exponent(wide_scale), wide_noise, WIDE_SQUARE_SHIFT, WIDE_SQUARE_BASE)
    codes = tl.where(is_wide[:, None], wide_codes, codes)
    return tl.where((codes == 0) & (squares > 0), 1, codes), tl.where(is_wide, wide_scale, scale)


@triton.jit
def _scales(magnitude):
    """Return the biased exponents of the blocks of a tile."""
    exponent = (tl.max(magnitude, axis=1).to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    return tl.minimum(tl.maximum(exponent, LEAST_EXPONENT), GREATEST_EXPONENT)


@triton.jit
def _codes(magnitude, exponent, noise, SHIFT: tl.constexpr, BASE: tl.constexpr):
    unit = tl.minimum(magnitude * _power_of_two(254 - exponent)[:, None], 1.0)
    return ((unit + _offset(BASE)).to(tl.int32, bitcast=True) - BASE + noise.to(tl.int32)) >> SHIFT


@triton.jit
def _wide_exponent(scale):
    """Return the biased exponent that the scale of a wide block stands for."""
    return 45 + 8 * scale


@triton.jit
def _offset(BASE: tl.constexpr):
    """Return the number that is added to magnitudes, from its bits."""
    return tl.full((), BASE, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _power_of_two(exponent):
    """Return the fp32 number of a biased exponent; 0 for 0."""
    return (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _to_bf16(values, random):
    """Round fp32 `values` to bf16, up or down by 16 `random` bits; NaN stays NaN."""
    bits = (values.to(tl.uint32, bitcast=True) + random) >> 16
    return tl.where(values == values, bits, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _to_nearest_bf16(values):
    """Round fp32 `values` to the nearest bf16, ties to even. A cast does the same, but not in the interpreter."""
    return _to_bf16(values, 0x7FFF + ((values.to(tl.uint32, bitcast=True) >> 16) & 1))


@triton.jit
def _keys(seed, index, step):
    """Return the key of a parameter's random words, which that of its moments goes on from."""
    key0 = tl.full((), 0x243F6A88, tl.uint32)
    key1 = tl.full((), 0x85A308D3, tl.uint32)
    key0, key1 = _absorb(key0, key1, seed)
    key0, key1 = _absorb(key0, key1, index)
    return _absorb(key0, key1, step)


@triton.jit
def _absorb(key0, key1, word):
    low, high = word.to(tl.uint32), (word >> 32).to(tl.uint32)
    return _mix(_mix(key0 ^ low) ^ high), _mix(_mix(key1 + low) + high)


@triton.jit
def _moment_words(block, key0, key1):
    """Return a 32-bit word for each element of each block: a strong hash of the block, a cheap one inside of it."""
    of_block = _random_words(block, _mix(key0 ^ 1), _mix(key1 + 1))
    words = of_block[:, None] + tl.arange(0, LANES).to(tl.uint32)[None, :] * 0x9E3779B9
    words = (words ^ (words >> 16)) * 0x7FEB352D
    return words ^ (words >> 15)


@triton.jit
def _random_words(element, key0, key1):
    return _mix(_mix(element.to(tl.uint32) ^ key0) + ((element >> 32).to(tl.uint32) ^ key1))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)
