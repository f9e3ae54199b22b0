"""Codes for moments that were not chosen, to compare with: each a function from values to what is read back of them.

Those in blocks cut the values, in their order in memory, into blocks that share a scale.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ademamix.pytorch.rounding import to_bf16

RoundTrip = Callable[[Tensor], Tensor]
LEAST_SCALE = 2.0**-100  # of a block of zeros


def in_blocks(round_trip: RoundTrip, size: int, values: Tensor) -> Tensor:
    """Apply `round_trip` to the (blocks, size) of `values`."""
    flat = values.reshape(-1)
    padded = F.pad(flat, (0, -flat.numel() % size)).view(-1, size)
    return round_trip(padded).reshape(-1)[: flat.numel()].view(values.shape)


def power_of_two_scale(blocks: Tensor) -> Tensor:
    """Return the smallest power of two that no value of a block exceeds."""
    greatest = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE)
    return torch.exp2(torch.ceil(torch.log2(greatest)))


def offset_float(mantissa_bits: int, octaves: int, *, size: int, stochastic: bool, keeps_positive: bool) -> RoundTrip:
    """Return the code of ademamix.pytorch.block_codes with any number of mantissa bits, octaves and block size."""
    shift, offset = 23 - mantissa_bits, 2.0**-octaves
    base = (127 - octaves) << 23

    def round_trip(blocks: Tensor) -> Tensor:
        scale = power_of_two_scale(blocks)
        unit = blocks.abs() / scale
        noise = torch.randint(1 << shift, unit.shape, dtype=torch.int32) if stochastic else 1 << (shift - 1)
        codes = ((unit + offset).view(torch.int32) - base + noise) >> shift
        if keeps_positive:
            codes = torch.where((codes == 0) & (unit > 0), 1, codes)
        return (((codes << shift) + base).view(torch.float32) - offset).copysign(blocks) * scale

    return partial(in_blocks, round_trip, size)


def companded(power: int, steps: int, *, size: int, stochastic: bool) -> RoundTrip:
    """Return the code of `steps` even steps of magnitude**(1/power): linear for power 1."""

    def round_trip(blocks: Tensor) -> Tensor:
        scale = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE)
        level = (blocks.abs() / scale) ** (1 / power) * steps
        if not stochastic:
            return ((level.round() / steps) ** power).copysign(blocks) * scale
        lower = level.floor().clamp(max=steps - 1)
        low, high = (lower / steps) ** power, ((lower + 1) / steps) ** power
        rises = torch.rand_like(level) < (blocks.abs() / scale - low) / (high - low)
        return torch.where(rises, high, low).copysign(blocks) * scale

    return partial(in_blocks, round_trip, size)


def fp16(*, size: int) -> RoundTrip:
    """Return fp16, to nearest, of blocks that are scaled to its range."""

    def round_trip(blocks: Tensor) -> Tensor:
        scale = power_of_two_scale(blocks) / 2**15
        return (blocks / scale).to(torch.float16).to(torch.float32) * scale

    return partial(in_blocks, round_trip, size)


def bf16(*, stochastic: bool) -> RoundTrip:
    """Return plain bf16."""
    if stochastic:
        return lambda values: to_bf16(values, torch.randint(1 << 16, values.shape)).to(torch.float32)
    return lambda values: values.to(torch.bfloat16).to(torch.float32)


def dynamic(*, signed: bool = True, size: int = 256, stochastic: bool = False) -> RoundTrip:
    """Return the 8-bit dynamic code of Dettmers et al., "8-bit Optimizers via Block-wise Quantization"."""
    levels = dynamic_levels(signed)
    count_below = fast_bucketize(levels if stochastic else (levels[1:] + levels[:-1]) / 2)

    def round_trip(blocks: Tensor) -> Tensor:
        scale = blocks.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE)
        unit = blocks / scale
        if not stochastic:
            return levels[count_below(unit)] * scale
        upper = count_below(unit).clamp(1, len(levels) - 1)
        low, high = levels[upper - 1], levels[upper]
        rises = torch.rand_like(unit) < (unit - low) / (high - low)
        return torch.where(rises, high, low) * scale

    return partial(in_blocks, round_trip, size)


@cache
def dynamic_levels(signed: bool) -> Tensor:
    """Return the 256 values: 0, 1, and seven decades whose numbers of even steps double from one to the next."""
    levels = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1.0, 2 ** (decade + (0 if signed else 1)) + 1)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0 ** (decade - 6)
        levels += middles.tolist()
        if signed:
            levels += (-middles).tolist()
    return torch.tensor(sorted(levels))


def fast_bucketize(boundaries: Tensor) -> Callable[[Tensor], Tensor]:
    """Return torch.bucketize for `boundaries`, ten times faster: a table by the leading bits, then one comparison.

    Possible where no two boundaries share the leading bits of their floats.
    """
    dropped, cells = 14, 1 << 18
    starts = torch.arange(-cells // 2, cells // 2, dtype=torch.int32) << dropped
    ends = torch.stack([starts, starts | ((1 << dropped) - 1)]).view(torch.float32)
    ends = torch.where(ends.isfinite().all(0), ends, 0.0)
    first, last = (torch.bucketize(end, boundaries) for end in (ends.amin(0), ends.amax(0)))
    if (last - first).amax() > 1:
        raise ValueError("boundaries are too close to each other")
    padded = F.pad(boundaries, (0, 1), value=float("inf"))

    def bucketize(values: Tensor) -> Tensor:
        found = first[(values.view(torch.int32) >> dropped) + cells // 2]
        return found + (values > padded[found])

    return bucketize
