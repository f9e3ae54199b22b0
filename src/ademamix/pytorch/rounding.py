"""Stochastic rounding of bf16 parameters and of stored moments, with torch operations.

The random word of an element is a function of (seed, parameter index, step, element index) alone, so the result is
the same on any number of threads, on every replica and after every resume. `RoundingStream` in
csrc/number_formats.h is the twin; they are tested to agree bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix.pytorch.block_codes import BLOCK, per_element, scale_shape

_WORD = 0xFFFFFFFF
_MOMENTS = 1  # what keeps the random words of moments apart from those of their parameter


class Rounding(NamedTuple):
    """How values are rounded that are written back in fewer bits than they were computed in.

    `indices` are the parameters' positions in the optimizer; they keep the random words of two parameters apart.
    """

    seed: int
    indices: list[int]
    first_rows: list[int]  # where each tensor begins in dimension 0 of its parameter
    stochastic_params: bool  # or to nearest; moments that are not fp32 are always rounded stochastically

    def write(self, param: Tensor, values: Tensor, position: int, step: float | Tensor) -> None:
        """Write `values` into the parameter at `position`, stochastically if that is asked for and it is bf16."""
        if self.stochastic_params and param.dtype == torch.bfloat16:
            first = self.first_rows[position] * param.shape[1:].numel()
            write_stochastically(param, values, self.seed, self.indices[position], step, first=first)
        else:
            param.copy_(values)

    def moment_words(self, param: Tensor, position: int, step: float | Tensor) -> Tensor:
        """Return a 32-bit word for each element of the parameter at `position`, in int64, as (rows, row size).

        A strong hash for each block, and a cheap one for each element in it: rounding asks for words that are
        uniform and uncorrelated, not for more.
        """
        keys = _keys(self.seed, self.indices[position], step, _MOMENTS)
        rows, blocks = scale_shape(param.shape)
        row_size = param.numel() // rows
        first = self.first_rows[position] * blocks
        block = torch.arange(first, first + rows * blocks, device=param.device).view(rows, blocks)
        lane = torch.arange(row_size, device=param.device) % BLOCK
        words = (per_element(_random_words(block, keys), row_size) + lane * 0x9E3779B9) & _WORD
        words = ((words ^ (words >> 16)) * 0x7FEB352D) & _WORD
        return words ^ (words >> 15)


def write_stochastically(
    param: Tensor, values: Tensor, seed: int, index: int, step: float | Tensor, *, first: int = 0
) -> None:
    r"""Write fp32 `values` into a bf16 `param`, rounding each to one of its two neighbours at random.

    .. math:: P(\text{up}) = \frac{x - \lfloor x \rfloor}{\lceil x \rceil - \lfloor x \rfloor}

    so that the expectation is exact and updates below half a unit of the last place are not lost. `first` is the index
    of the first element.

    >>> param = torch.ones(8, dtype=torch.bfloat16)
    >>> write_stochastically(param, torch.full((8,), 1.001), seed=0, index=0, step=1)
    >>> param.tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0078125]
    """
    element = torch.arange(first, first + param.numel(), device=param.device).view(param.shape)
    random = _random_words(element, _keys(seed, index, step)) & 0xFFFF
    param.copy_(to_bf16(values, random))


def to_bf16(values: Tensor, random: Tensor) -> Tensor:
    """Round fp32 `values` to bf16, up or down by 16 `random` bits; NaN stays NaN."""
    rounded = ((values.view(torch.int32) + random.to(torch.int32)) & -0x10000).view(torch.float32)
    return torch.where(values.isnan(), values, rounded).to(torch.bfloat16)


def second_words(words: Tensor) -> Tensor:
    """Return another random word for each of `words`."""
    words = (words * 0x846CA68B) & _WORD
    return words ^ (words >> 16)


def _keys(seed: int, index: int, step: float | Tensor, *domain: int) -> tuple[Any, Any]:
    halves: list[Any] = []
    for word in (seed, index, step.to(torch.int64) if isinstance(step, Tensor) else int(step)):
        halves += [word & _WORD, word >> 32]
    key0: Any = 0x243F6A88
    key1: Any = 0x85A308D3
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
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)
