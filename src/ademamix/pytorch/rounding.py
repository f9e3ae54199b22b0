"""Stochastic rounding of bf16 parameters, with torch operations.

The random word of an element is a function of (seed, parameter index, step, element index) alone, so the result is
the same on any number of threads, on every replica and after every resume. `RoundingStream` in
csrc/number_formats.h is the twin; they are tested to agree bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


class Rounding(NamedTuple):
    """How bf16 parameters are written back: to the nearest value if `seed` is None, else stochastically.

    `indices` are the parameters' positions in the optimizer; they keep the random words of two parameters apart.
    """

    seed: int | None
    indices: list[int]


def write(param: Tensor, values: Tensor, rounding: Rounding, position: int, step: float | Tensor) -> None:
    """Write `values` into the parameter at `position`, stochastically if that is asked for and it is bf16."""
    if rounding.seed is None or param.dtype != torch.bfloat16:
        param.copy_(values)
    else:
        write_stochastically(param, values, rounding.seed, rounding.indices[position], step)


def write_stochastically(param: Tensor, values: Tensor, seed: int, index: int, step: float | Tensor) -> None:
    r"""Write fp32 `values` into a bf16 `param`, rounding each to one of its two neighbours at random.

    .. math:: P(\text{up}) = \frac{x - \lfloor x \rfloor}{\lceil x \rceil - \lfloor x \rfloor}

    so that the expectation is exact and updates below half a unit of the last place are not lost.

    >>> param = torch.ones(8, dtype=torch.bfloat16)
    >>> write_stochastically(param, torch.full((8,), 1.001), seed=0, index=0, step=1)
    >>> param.tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0078125]
    """
    random = _random_words(param, seed, index, step)
    bits = values.view(torch.int32)
    rounded = ((bits + (random & 0xFFFF).to(torch.int32)) & -0x10000).view(torch.float32)
    param.copy_(torch.where(values.isnan(), values, rounded))


def _random_words(param: Tensor, seed: int, index: int, step: float | Tensor) -> Tensor:
    key0: Any = 0x243F6A88
    key1: Any = 0x85A308D3
    for word in (seed, index, step.to(torch.int64) if isinstance(step, Tensor) else int(step)):
        for half in (word & _WORD, word >> 32):
            key0 = _mix(key0 ^ half)
            key1 = _mix((key1 + half) & _WORD)
    element = torch.arange(param.numel(), device=param.device).view(param.shape)
    words: Tensor = _mix((_mix((element & _WORD) ^ key0) + ((element >> 32) ^ key1)) & _WORD)
    return words


def _mix(x: Any) -> Any:
    """Mix a 32-bit word: a Python int, or int64 elements below 2**32."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)
