"""Tensors of a parameter in one order of memory, for kernels that see nothing but addresses."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def in_one_order(param: Tensor, grad: Tensor, *moments: Tensor, row_major: bool) -> tuple[Tensor, ...]:
    """Return the tensors of a parameter, or copies, that have their elements in one order of memory, without gaps.

    The order is that of the moments, but row-major if random words are to be drawn by the index of an element.
    """
    moment = moments[0]
    if param.is_contiguous() and grad.is_contiguous() and moment.is_contiguous():
        return (param, grad, *moments)
    order = moment
    if row_major and param.dtype == torch.bfloat16:
        order = torch.empty(moment.shape, device="meta")
    return tuple(
        x
        if x.stride() == order.stride()
        else torch.empty_strided(x.shape, order.stride(), dtype=x.dtype, device=x.device).copy_(x)
        for x in (param, grad, *moments)
    )


def copy_back(originals: Iterable[Tensor], copies: Iterable[Tensor]) -> None:
    """Write what a kernel has changed in copies to where it belongs."""
    for original, copy in zip(originals, copies, strict=True):
        if copy is not original:
            original.copy_(copy)
