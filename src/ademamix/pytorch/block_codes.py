r"""Moments in 8 and 16 bits: blocks of values that share a power of two as their scale.

The scale :math:`s = 2^e` of a block is the smallest one that no value exceeds. A value :math:`x` is stored as an
*offset float*: the sum of its magnitude and a constant, with fewer bits of mantissa,

.. math:: c = \lfloor \mathrm{bits}(|x|/s + 2^{-K}) - \mathrm{bits}(2^{-K}) \rceil_M, \qquad
          x \approx \pm s\,(\mathrm{float}(c + \mathrm{bits}(2^{-K})) - 2^{-K})

where bits() reads a float as an integer and M is the number of mantissa bits kept. Steps are relative to the value
where it is large, and even below :math:`2^{-K}`, like those of a companding curve, but no root or logarithm has to be
computed. With stochastic rounding the expectation of the decoded value is x, so an EMA that moves by less than a step
still moves; rounding a decoded value again gives its own code, whatever the random word. Second moments have two such
formats, the second for blocks whose values lie far apart.

The numbers are in :mod:`ademamix.formats`, csrc/compact_storage.h is the twin of this file, and
benchmarks/moment_codes.py compares this code with others.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ademamix import formats
from ademamix.formats import BLOCK, FAST, SLOW, SQUARE, WIDE_SQUARE, BlockCode, wide_exponent

_LARGEST = 0x7FFFFFFF


def dtype_of(code: BlockCode) -> torch.dtype:
    """Return the integer type of a code's tensors."""
    dtype: torch.dtype = getattr(torch, code.dtype)
    return dtype


BY_DTYPE = {dtype_of(code): code for code in (FAST, SLOW, SQUARE)}


def scale_shape(shape: torch.Size) -> tuple[int, int]:
    """Return the shape of the scales: a row for each row of dimension 0, whose elements are cut into blocks.

    A vector is one row.
    """
    rows, row_size = rows_of(shape)
    return rows, -(-row_size // BLOCK)


def rows_of(shape: torch.Size) -> tuple[int, int]:
    """Return the number of rows that blocks lie in, and their size."""
    return (shape[0], shape[1:].numel()) if len(shape) > 1 else (1, shape.numel())


def decode(codes: Tensor, scale: Tensor) -> Tensor:
    """Return the fp32 values of `codes`.

    >>> codes, scale = encode(torch.tensor([[0.5, -0.25, 0.0]]), SLOW)
    >>> decode(codes, scale)
    tensor([[ 0.5000, -0.2500,  0.0000]])
    """
    code, exponent = BY_DTYPE[codes.dtype], scale.to(torch.int32)
    flat = codes.reshape(rows_of(codes.shape)).to(torch.int32)
    row_size = flat.shape[1]
    units = _units(flat, code)
    if code is SQUARE:
        is_wide = (exponent >= formats.FIRST_WIDE_SCALE) & (exponent <= formats.LAST_WIDE_SCALE)
        units = torch.where(per_element(is_wide, row_size), _units(flat, WIDE_SQUARE), units)
        exponent = torch.where(is_wide, wide_exponent(exponent), exponent)
    return (units * per_element(_power_of_two(exponent), row_size)).view(codes.shape)


def encode(values: Tensor, code: BlockCode, random: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the codes of fp32 `values` and the scales of their blocks.

    `random` has an int32 below 2**shift for each element, as (rows, elements of a row); None rounds to nearest.
    Non-finite values do not count for the scale of their block, and are stored as 0. A second moment that is not 0
    never becomes 0: updates are divided by its root.
    """
    flat = values.reshape(rows_of(values.shape))
    finite = torch.where(flat.isfinite(), flat, 0.0)
    magnitude = finite.abs()
    largest = _blocked(magnitude).amax(-1)
    scale = ((largest.view(torch.int32) + 0x7FFFFF) >> 23).clamp(formats.LEAST_EXPONENT, formats.GREATEST_EXPONENT)
    codes = _codes(magnitude, scale, code, random)
    if code is SQUARE:
        smallest = _blocked(torch.where(magnitude > 0, magnitude.view(torch.int32), _LARGEST), _LARGEST).amin(-1)
        is_wide = smallest <= (scale - formats.WELL_RESOLVED) << 23
        wide_scale = (scale - formats.WIDE_BASE + (1 << formats.WIDE_SHIFT) - 1) >> formats.WIDE_SHIFT
        wide_scale = wide_scale.clamp(min=formats.FIRST_WIDE_SCALE)
        wide_random = None if random is None else random << (WIDE_SQUARE.shift - SQUARE.shift)
        wide_codes = _codes(magnitude, wide_exponent(wide_scale), WIDE_SQUARE, wide_random)
        codes = torch.where(per_element(is_wide, flat.shape[1]), wide_codes, codes)
        scale = torch.where(is_wide, wide_scale, scale)
    else:
        codes = torch.where(finite < 0, -codes, codes)
    return codes.to(dtype_of(code)).view(values.shape), scale.to(torch.uint8)


def random_part(code: BlockCode, words: Tensor) -> Tensor:
    """Return the random bits that round a code: its share of `words`, which serve all moments."""
    moved = words << code.random_left if code.random_left > 0 else words >> -code.random_left
    return ((moved & code.random_mask) | code.random_rest).to(torch.int32)


def _units(codes: Tensor, code: BlockCode) -> Tensor:
    """Return the values that `codes`, as int32, stand for in a block with the scale 1."""
    # int16's and int8's least values are not codes, so abs() does not overflow
    magnitude = ((codes.abs() << code.shift) + code.base).view(torch.float32) - 2.0**-code.octaves
    return torch.where(codes < 0, -magnitude, magnitude)


def _codes(magnitude: Tensor, exponent: Tensor, code: BlockCode, random: Tensor | None) -> Tensor:
    """Return the codes of magnitudes, as int32, in blocks with these biased exponents as scales."""
    unit = (magnitude * per_element(_power_of_two(254 - exponent), magnitude.shape[1])).clamp(max=1.0)
    noise: Tensor | int = 1 << (code.shift - 1) if random is None else random
    codes = ((unit + 2.0**-code.octaves).view(torch.int32) - code.base + noise) >> code.shift
    return torch.where((codes == 0) & (magnitude > 0), 1, codes) if code.dtype == SQUARE.dtype else codes


def _blocked(rows: Tensor, fill: int = 0) -> Tensor:
    """Cut rows into blocks, as (rows, blocks, elements of a block); the last of a row is filled up."""
    blocks = -(-rows.shape[1] // BLOCK)
    return F.pad(rows, (0, -rows.shape[1] % BLOCK), value=fill).view(len(rows), blocks, BLOCK)


def per_element(per_block: Tensor, row_size: int) -> Tensor:
    """Repeat the entry of each block, (rows, blocks), for each of its elements, (rows, row_size)."""
    # By index: repeating and cutting off the end is compiled wrongly for CPUs (pytorch/pytorch issue 195582).
    return per_block[:, torch.arange(row_size, device=per_block.device) // BLOCK]


def _power_of_two(exponent: Tensor) -> Tensor:
    """Return the fp32 number of a biased exponent; 0 for 0."""
    return (exponent.to(torch.int32) << 23).view(torch.float32)
