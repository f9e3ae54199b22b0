"""How moments are stored: which dtype each has in which storage, and how it is read and written.

The paths read moments into the dtype that they are computed in, update them, and write them back:

========  ===============  ===============  ===============  ==================
storage   fast             slow             square           bytes per parameter
========  ===============  ===============  ===============  ==================
fp32      fp32             fp32             fp32             12
bf16      bf16             bf16             bf16             6
compact   int8 codes       int16 codes      uint8 codes      4.02 with scales
========  ===============  ===============  ===============  ==================

The coded ones have a uint8 tensor of scales beside them, see :mod:`ademamix.pytorch.block_codes`. bf16 and codes are
rounded stochastically: a slow average moves by 1e-4 of a gradient per step, which rounding to nearest loses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ademamix import formats
from ademamix.pytorch import block_codes, master, shards
from ademamix.pytorch.memory_order import PLAIN_TYPES
from ademamix.pytorch.rounding import bf16_random_part, to_bf16
from ademamix.pytorch.tensors import Tensors

# The dtype of a parameter's arithmetic, and of its moments unless they are reduced.
MOMENT_DTYPES = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
}
# Those of the moments that are reduced, by storage.
REDUCED_DTYPES: dict[str, dict[str, torch.dtype]] = {
    name: {moment: getattr(torch, dtype) for moment, dtype in stored._asdict().items()}
    for name, stored in formats.STORAGES.items()
    if name != "fp32"
}

# The values of the moments of a parameter; with beta1 = 0 there is no fast one.
Moments: TypeAlias = tuple[Tensor | None, Tensor, Tensor]


def reduces(param: Tensor, group: Mapping[str, Any]) -> bool:
    """Tell whether the moments of `param` are to be stored in fewer bits than they are computed in."""
    return (
        group["state_storage"] != "fp32"
        and _can_be_reduced(param.dtype, param.shape)
        and (type(param) in PLAIN_TYPES or shards.keeps_blocks(param))
    )


@cache
def _can_be_reduced(dtype: torch.dtype, shape: torch.Size) -> bool:
    return MOMENT_DTYPES.get(dtype) == torch.float32 and formats.is_large(shape)


def dtype_of(moment: str, param: Tensor, group: Mapping[str, Any]) -> torch.dtype | None:
    """Return the dtype that `moment` is stored in; None if AdEMAMix cannot train `param`."""
    if reduces(param, group):
        return REDUCED_DTYPES[group["state_storage"]][moment]
    return MOMENT_DTYPES.get(param.dtype)


def is_reduced(stored: Tensor) -> bool:
    """Tell whether a stored moment must be decoded before the arithmetic and encoded after it."""
    return MOMENT_DTYPES.get(stored.dtype) != stored.dtype


def arithmetic_dtype(stored: Tensor) -> torch.dtype:
    """Return the dtype of the arithmetic of a real stored moment."""
    return torch.float64 if stored.dtype == torch.float64 else torch.float32


def read(tensors: Tensors, i: int) -> Moments:
    """Return the moments of the parameter at `i` for the arithmetic: the stored tensors themselves where possible."""
    return (
        read_moment(tensors.fasts[i], _at(i, tensors.fast_scales)) if tensors.fasts else None,
        read_moment(tensors.slows[i], _at(i, tensors.slow_scales)),
        read_moment(tensors.squares[i], _at(i, tensors.square_scales)),
    )


def read_param(tensors: Tensors, i: int, dtype: torch.dtype) -> Tensor:
    """Return the parameter at `i` in the dtype of the arithmetic: its master if it has one, itself where possible."""
    param = tensors.params[i]
    return master.joined(param, tensors.corrections[i]) if tensors.corrections else param.to(dtype)


def write(tensors: Tensors, i: int, moments: Moments, words: Tensor) -> None:
    """Write the moments of the parameter at `i` back into the stored tensors, in place.

    `words` has 32 random bits for each element, as (rows, row size).
    """
    fast, slow, square = moments
    if fast is not None:
        write_moment("fast", tensors.fasts[i], _at(i, tensors.fast_scales), fast, words)
    write_moment("slow", tensors.slows[i], _at(i, tensors.slow_scales), slow, words)
    write_moment("square", tensors.squares[i], _at(i, tensors.square_scales), square, words)


def _at(i: int, column: list[Tensor]) -> Tensor | None:
    return column[i] if column else None


def read_moment(stored: Tensor, scale: Tensor | None) -> Tensor:
    """Return the values of a stored moment."""
    if scale is not None:
        return block_codes.decode(stored, scale)
    return stored.to(torch.float32) if is_reduced(stored) else stored


def write_moment(moment: str, stored: Tensor, scale: Tensor | None, values: Tensor, words: Tensor | None) -> None:
    """Write `values`, rounded by random `words`, or to nearest if there are none."""
    if scale is not None:
        code = block_codes.BY_DTYPE[stored.dtype]
        random = None if words is None else block_codes.random_part(code, words)
        codes, new_scale = block_codes.encode(values, code, random)
        stored.copy_(codes)
        scale.copy_(new_scale)
    elif stored.dtype == torch.bfloat16 and words is not None:
        stored.copy_(to_bf16(values, bf16_random_part(moment, words).view(values.shape)))
    else:
        stored.copy_(values)
