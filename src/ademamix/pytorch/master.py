"""Masters of bf16 parameters in 24 bits: a parameter, and beside it a correction of 8 bits more.

:mod:`ademamix.formats` has the numbers. Steps compute in fp32: they read numbers of 24 bits, and write such numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ademamix.formats import BF16_SHIFT, CORRECTION, MASTER_MASK, MASTER_SHIFT
from ademamix.pytorch import shards
from ademamix.pytorch.memory_order import PLAIN_TYPES

CORRECTION_DTYPE: torch.dtype = getattr(torch, CORRECTION)
HALF = 1 << (MASTER_SHIFT - 1)  # of the last place of a parameter, in the last places of its master
NAN = 0x7FC00000  # in the bits of fp32


def is_corrected(param: Tensor, group: Mapping[str, Any]) -> bool:
    """Tell whether `param` is to have a master of more bits than its own."""
    is_own = type(param) in PLAIN_TYPES or shards.is_sharded(param)
    return group["master"] is not None and param.dtype == torch.bfloat16 and is_own


def joined(param: Tensor, correction: Tensor) -> Tensor:
    """Return the masters of bf16 parameters, in fp32."""
    bits = param.view(torch.int16).to(torch.int32) << BF16_SHIFT
    corrections = torch.where(param == 0, 0, correction.to(torch.int32) << MASTER_SHIFT)
    return (bits + corrections).view(torch.float32)


def divided(values: Tensor, random: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the parameters and corrections of fp32 `values`.

    Values are rounded to 24 bits: up or down by 8 `random` bits, or to nearest without them.
    """
    bits = torch.where(values.isnan(), NAN, values.view(torch.int32))
    noise = HALF - 1 + ((bits >> MASTER_SHIFT) & 1) if random is None else random.to(torch.int32) & MASTER_MASK
    masters = (bits + noise) >> MASTER_SHIFT
    params = (masters + HALF) >> MASTER_SHIFT
    return params.to(torch.int16).view(torch.bfloat16), masters.to(CORRECTION_DTYPE)
