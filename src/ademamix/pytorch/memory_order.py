"""Tensors of a parameter in one order of memory, for kernels that see nothing but addresses."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def has_memory(tensor: Tensor) -> bool:
    """Tell whether a tensor has elements of its own: where its class handles operations, it may be a mere wrapper."""
    return type(tensor) in PLAIN_TYPES or type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__


def in_one_order(param: Tensor, grad: Tensor, *moments: Tensor, row_major: bool) -> tuple[Tensor, ...]:
    """Return the tensors of a parameter, or copies, that have their elements in one order of memory, without gaps.

    The order is that of the moments, but row-major if random words are to be drawn by the index of an element.
    """
    if param.is_contiguous() and grad.is_contiguous() and all(moment.is_contiguous() for moment in moments):
        return (param, grad, *moments)
    order = torch.empty_like(moments[0], device="meta")
    if row_major and param.dtype == torch.bfloat16:
        order = torch.empty(order.shape, device="meta")
    return tuple(
        x
        if x.stride() == order.stride()
        else torch.empty_strided(x.shape, order.stride(), dtype=x.dtype, device=x.device).copy_(x)
        for x in (param, grad, *moments)
    )


def in_memory(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor without gaps as a vector, in the order that they have in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def copy_back(originals: Iterable[Tensor], copies: Iterable[Tensor]) -> None:
    """Write what a kernel has changed in copies to where it belongs."""
    for original, copy in zip(originals, copies, strict=True):
        if copy is not original:
            original.copy_(copy)
