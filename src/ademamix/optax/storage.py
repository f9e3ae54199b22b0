r"""How moments are stored: dtypes, bf16 with stochastic rounding, and the 16-bit block code of the slow average.

The code is that of :mod:`ademamix.pytorch.block_codes`, which explains it, and the random words are those of
:mod:`ademamix.pytorch.rounding`: codes, scales and words are the same bits in both frameworks, made of the numbers in
:mod:`ademamix.formats`. All of it is elementwise except for a maximum over each block, and blocks lie inside the rows
of dimension 0, so that arrays sharded by rows need no communication. The position of each block in its parameter is
stored: inside ``shard_map`` a program sees only its own rows, but the random words are those of the whole array.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import bitcast_convert_type

from ademamix import formats
from ademamix.formats import BF16_MASK, BF16_SHIFT, BLOCK, FIRST_MIXER, SECOND_MIXER, SLOW
from ademamix.optax.schedules import is_array
from ademamix.optax.settings import ASK_FOR_STATIC

OFFSET = 2.0**-SLOW.octaves
SLOW_DTYPES = ("float32", "bfloat16", SLOW.dtype)


def arithmetic_dtype(param: Any) -> Any:
    """Return the dtype of the arithmetic of a parameter's moments, or raise TypeError if it cannot be trained."""
    dtype = jnp.result_type(param)  # as JAX sees it: it may be a number, or an array of NumPy
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(
            f"AdEMAMix does not train parameters of dtype {dtype}, only real and complex floating-point ones. "
            "Leave others out with optax.masked, or partition them away."
        )
    return dtype if dtype.itemsize >= 8 else jnp.dtype(jnp.float32)


def checked_mu_dtype(dtype: Any) -> Any:
    """Return `mu_dtype` as a dtype; None for that of the arithmetic."""
    if dtype is None:
        return None
    if is_array(dtype) or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"mu_dtype must be None or a real floating-point dtype, got {dtype!r}. {ASK_FOR_STATIC}")
    return jnp.dtype(dtype)


def checked_slow_dtype(dtype: Any) -> Any:
    """Return `slow_dtype` as a dtype; None for that of the arithmetic."""
    if dtype is None:
        return None
    try:
        name = "" if is_array(dtype) else jnp.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in SLOW_DTYPES:
        raise ValueError(f"slow_dtype must be None or one of {', '.join(SLOW_DTYPES)}, got {dtype!r}. {ASK_FOR_STATIC}")
    return jnp.dtype(name)


def slow_dtype_of(param: Any, slow_dtype: Any) -> Any:
    """Return the dtype that the slow average of `param` is stored in.

    Small arrays keep the dtype of the arithmetic: they have no memory to save, and precision matters most in them. So
    do fp64 and complex parameters.
    """
    dtype = arithmetic_dtype(param)
    is_large = formats.is_large(jnp.shape(param))
    return slow_dtype if slow_dtype is not None and is_large and dtype == jnp.float32 else dtype


def empty_scale(param: Any) -> jax.Array:
    """Return the scales of the empty slow average of `param`, sharded like it."""
    # Computed from `param`, not made anew: so the scales are sharded by the rows that they belong to.
    scale: jax.Array = jax.jit(encode)(jnp.zeros_like(param, dtype=jnp.float32), None)[1]
    return scale


def block_positions(param: Any) -> jax.Array:
    """Return the position in `param` of each of its blocks, as (rows, blocks), sharded like it."""

    @jax.jit
    def positions(zeros: jax.Array) -> jax.Array:
        empty = _blocked(zeros).max(-1)  # computed, as above
        rows, blocks = empty.shape
        return empty + jax.lax.iota(jnp.uint32, rows * blocks).reshape(rows, blocks)

    found: jax.Array = positions(jnp.zeros_like(param, dtype=jnp.uint32))
    return found


def read_slow(stored: jax.Array, scale: jax.Array | None, dtype: Any) -> jax.Array:
    """Return the values of a stored slow average, for the arithmetic."""
    return stored.astype(dtype) if scale is None else decode(stored, scale)


def write_slow(
    values: jax.Array, dtype: Any, block: jax.Array | None, key: tuple[int, jax.Array]
) -> tuple[jax.Array, jax.Array | None]:
    """Return `values` as they are stored, and their scales. `key` and the positions of blocks decide the rounding."""
    if block is None:
        return values, None
    words = random_words(block, *key)
    if dtype == SLOW.dtype:
        return encode(values, words >> -SLOW.random_left)
    return to_bf16(values, _unblocked(words, values.shape) >> BF16_SHIFT), None


def write_fast(values: jax.Array, dtype: Any) -> jax.Array:
    """Return the fast average as it is stored: finite `values` stay finite in a dtype with fewer exponents."""
    if dtype.itemsize >= values.dtype.itemsize or dtype == jnp.bfloat16:
        return values.astype(dtype)
    largest = float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return jnp.where(jnp.isfinite(values), jnp.clip(values, -largest, largest), values).astype(dtype)


def encode(values: jax.Array, random: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Return the int16 codes of fp32 `values` and the scales of their blocks.

    `random` has 11 random bits for each element, as (rows, blocks, elements of a block); None rounds to nearest.
    """
    blocks = _blocked(values)
    finite = jnp.where(jnp.isfinite(blocks), blocks, 0.0)
    magnitude = jnp.abs(finite)
    largest = bitcast_convert_type(magnitude.max(-1), jnp.int32)
    exponent = jnp.clip((largest + 0x7FFFFF) >> 23, formats.LEAST_EXPONENT, formats.GREATEST_EXPONENT)
    unit = jnp.minimum(magnitude * _power_of_two(254 - exponent)[..., None], 1.0)
    noise = 1 << (SLOW.shift - 1) if random is None else random.astype(jnp.int32)
    codes = (bitcast_convert_type(unit + jnp.float32(OFFSET), jnp.int32) - SLOW.base + noise) >> SLOW.shift
    codes = jnp.where(finite < 0, -codes, codes).astype(SLOW.dtype)
    return _unblocked(codes, values.shape), exponent.astype(jnp.uint8)


def decode(codes: jax.Array, scale: jax.Array) -> jax.Array:
    """Return the fp32 values of `codes`.

    >>> codes, scale = encode(jnp.array([[0.5, -0.25, 0.0]]), None)
    >>> decode(codes, scale).tolist()
    [[0.5, -0.25, 0.0]]
    """
    wide = _blocked(codes).astype(jnp.int32)
    magnitude = bitcast_convert_type((jnp.abs(wide) << SLOW.shift) + SLOW.base, jnp.float32) - jnp.float32(OFFSET)
    values = jnp.where(wide < 0, -magnitude, magnitude) * _power_of_two(scale)[..., None]
    return _unblocked(values, codes.shape)


def to_bf16(values: jax.Array, random: jax.Array) -> jax.Array:
    """Round fp32 `values` to bf16, up or down by 16 `random` bits; NaN stays NaN."""
    bits = (bitcast_convert_type(values, jnp.uint32) + random) & ~jnp.uint32(BF16_MASK)
    return jnp.where(jnp.isnan(values), values, bitcast_convert_type(bits, jnp.float32)).astype(jnp.bfloat16)


def random_words(block: jax.Array, index: int, step: jax.Array) -> jax.Array:
    """Return 32 random bits for each element, as (rows, blocks, elements of a block).

    A function of the position of the parameter in its tree, the step and the element alone: the same on any number of
    devices and after every resume.
    """
    key0, key1 = jnp.uint32(formats.FIRST_KEY), jnp.uint32(formats.SECOND_KEY)
    seed = (0, 0)
    for half in (*seed, index & 0xFFFFFFFF, index >> 32, step.astype(jnp.uint32), 0, formats.MOMENT_DOMAIN):
        half = jnp.asarray(half, jnp.uint32)
        key0, key1 = _mix(key0 ^ half), _mix(key1 + half)
    lane = jax.lax.iota(jnp.uint32, BLOCK) * jnp.uint32(formats.LANE_STEP)
    words = _mix(_mix(block ^ key0) + key1)[..., None] + lane[None, None, :]
    words = (words ^ (words >> 16)) * jnp.uint32(FIRST_MIXER)
    return jnp.bitwise_xor(words, words >> 15)


def _mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * jnp.uint32(FIRST_MIXER)
    x = (x ^ (x >> 15)) * jnp.uint32(SECOND_MIXER)
    return x ^ (x >> 16)


def _blocked(values: jax.Array) -> jax.Array:
    """Cut the rows of dimension 0, or a vector, into blocks, the last of each row filled up with zeros."""
    rows, row_size = _rows_of(values.shape)
    padded = jnp.pad(values.reshape(rows, row_size), ((0, 0), (0, -row_size % BLOCK)))
    return padded.reshape(rows, -1, BLOCK)


def _unblocked(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    rows, row_size = _rows_of(shape)
    return blocks.reshape(rows, -1)[:, :row_size].reshape(shape)


def _rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """Return the fp32 number of a biased exponent; 0 for 0."""
    return bitcast_convert_type(exponent.astype(jnp.int32) << 23, jnp.float32)
