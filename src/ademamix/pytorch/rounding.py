"""Stochastic rounding of bf16 parameters and of stored moments, with torch operations.

The random word of an element is a function of (seed, parameter index, step, element index) alone, so the result is
the same on any number of threads, on every replica, for every way to shard a parameter and after every resume.
`RoundingStream` in csrc/number_formats.h is the twin; they are tested to agree bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix.formats import (
    BF16_MASK,
    BF16_SHIFT,
    BLOCK,
    FIRST_KEY,
    FIRST_MIXER,
    LANE_STEP,
    MOMENT_DOMAIN,
    SECOND_KEY,
    SECOND_MIXER,
)
from ademamix.pytorch import master
from ademamix.pytorch.block_codes import per_element
from ademamix.pytorch.tensors import Place, Rows

_WORD = 0xFFFFFFFF


class Rounding(NamedTuple):
    r"""How values are rounded when they are written back in fewer bits than they were computed in.

    A parameter in bf16 becomes one of the two neighbours of its value at random, with

    .. math:: P(\text{up}) = \frac{x - \lfloor x \rfloor}{\lceil x \rceil - \lfloor x \rfloor}

    so that the expectation is exact and updates below half a unit of the last place are not lost.

    >>> param = torch.ones(8, dtype=torch.bfloat16)
    >>> Rounding(seed=0, stochastic_params=True).write(param, torch.full((8,), 1.001), Place(param_index=0), step=1)
    >>> param.tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0078125]
    """

    seed: int
    stochastic_params: bool  # or to nearest; moments that are not fp32 are always rounded stochastically

    def write(
        self, param: Tensor, values: Tensor, place: Place, step: float | Tensor, correction: Tensor | None = None
    ) -> None:
        """Write `values` into `param`, and what is left into its `correction` if it has one.

        They are rounded stochastically if that was asked for and `param` is bf16.
        """
        random = None
        if self.stochastic_params and param.dtype == torch.bfloat16:
            element = _numbers(place.rows(param.shape), 1, param.device).view(param.shape)
            random = _random_words(element, _keys(self.seed, place.param_index, step)) & BF16_MASK
        if correction is not None:
            values, rest = master.divided(values, random)
            correction.copy_(rest)
        elif random is not None:
            values = to_bf16(values, random)
        param.copy_(values)

    def moment_words(self, param: Tensor, place: Place, step: float | Tensor) -> Tensor:
        """Return a 32-bit word for each element of `param`, in int64, as (rows, row size).

        A strong hash for each block, and a cheap one for each element in it: rounding asks for words that are
        uniform and uncorrelated, not for more.
        """
        keys = _keys(self.seed, place.param_index, step, MOMENT_DOMAIN)
        rows = place.rows(param.shape)
        block = _numbers(rows, BLOCK, param.device)
        lane = torch.arange(rows.size, device=param.device) % BLOCK
        words = (per_element(_random_words(block, keys), rows.size) + lane * LANE_STEP) & _WORD
        words = ((words ^ (words >> 16)) * FIRST_MIXER) & _WORD
        return words ^ (words >> 15)


def _numbers(rows: Rows, size: int, device: torch.device) -> Tensor:
    """Return which blocks of this size of the whole parameter `rows` have, counted row by row, as (rows, blocks)."""
    blocks, whole_blocks = -(-rows.size // size), -(-rows.whole_size // size)
    first = rows.first * whole_blocks + rows.first_column // size
    if blocks == whole_blocks:
        return torch.arange(first, first + rows.number * blocks, device=device).view(rows.number, blocks)
    starts = torch.arange(first, first + rows.number * whole_blocks, whole_blocks, device=device)
    return starts[:, None] + torch.arange(blocks, device=device)


def to_bf16(values: Tensor, random: Tensor) -> Tensor:
    """Round fp32 `values` to bf16, up or down by 16 `random` bits; NaN stays NaN."""
    rounded = ((values.view(torch.int32) + random.to(torch.int32)) & ~BF16_MASK).view(torch.float32)
    return torch.where(values.isnan(), values, rounded).to(torch.bfloat16)


def bf16_random_part(moment: str, words: Tensor) -> Tensor:
    """Return the random bits that round a moment in bf16: its share of `words`, which serve all moments."""
    if moment == "fast":
        return words & BF16_MASK
    return (words if moment == "slow" else _second_words(words)) >> BF16_SHIFT


def _second_words(words: Tensor) -> Tensor:
    """Return another random word for each of `words`."""
    words = (words * SECOND_MIXER) & _WORD
    return words ^ (words >> 16)


def _keys(seed: int, index: int, step: float | Tensor, *domain: int) -> tuple[Any, Any]:
    halves: list[Any] = []
    for word in (seed, index, step.to(torch.int64) if isinstance(step, Tensor) else int(step)):
        halves += [word & _WORD, word >> 32]
    key0: Any = FIRST_KEY
    key1: Any = SECOND_KEY
    for half in (*halves, *domain):
        key0 = _mix(key0 ^ half)
        key1 = _mix((key1 + half) & _WORD)
    return key0, key1


def _random_words(index: Tensor, keys: tuple[Any, Any]) -> Tensor:
    key0, key1 = keys
    words: Tensor = _mix((_mix((index & _WORD) ^ key0) + ((index >> 32) ^ key1)) & _WORD)
    return words


def _mix(x: Any) -> Any:
    """Mix a 32-bit word: a Python int, or int64 elements below 2**32."""
    x = ((x ^ (x >> 16)) * FIRST_MIXER) & _WORD
    x = ((x ^ (x >> 15)) * SECOND_MIXER) & _WORD
    return x ^ (x >> 16)
