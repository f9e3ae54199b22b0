"""Tensors of a parameter in one order of memory, for kernels that see nothing but addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch.tensors import SHAPED_COLUMNS, Tensors

PLAIN_TYPES = frozenset((Tensor, torch.nn.Parameter))


def are_plain(tensors: Iterable[Any]) -> bool:
    """Tell whether tensors are of torch's own classes. All at once: a step asks it of every tensor."""
    return PLAIN_TYPES.issuperset(map(type, tensors))


def has_memory(tensor: Tensor) -> bool:
    """Tell whether a tensor has elements of its own: where its class handles operations, it may be a mere wrapper."""
    return type(tensor) in PLAIN_TYPES or type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__


def completed(grad: Tensor) -> Tensor:
    """Return a gradient as numbers in memory: a pending wait, negation or filling with zeros is carried out."""
    if type(grad) not in PLAIN_TYPES and hasattr(grad, "trigger_wait"):
        waited_for: Tensor = grad.trigger_wait()  # of an asynchronous collective
        grad = waited_for
    if grad._is_zerotensor():
        grad = grad.clone()
    return grad.resolve_conj().resolve_neg()


def arranged(tensors: Tensors, *, row_major: bool) -> Tensors:
    """Return tensors, or copies, such that those of each parameter have one order of memory, without gaps.

    The order is that of the moments, but row-major if random words are to be drawn by the index of an element.
    """
    shaped = [column for column in tensors.columns[:SHAPED_COLUMNS] if column]
    rows = [_in_one_order(*row, row_major=row_major) for row in zip(*shaped, strict=True)]
    columns = iter(zip(*rows, strict=True))
    return tensors.with_columns(*[list(next(columns)) if column else [] for column in tensors.columns[:SHAPED_COLUMNS]])


def _in_one_order(param: Tensor, grad: Tensor, *state: Tensor, row_major: bool) -> tuple[Tensor, ...]:
    if param.is_contiguous() and grad.is_contiguous() and all(tensor.is_contiguous() for tensor in state):
        return (param, grad, *state)
    order = torch.empty_like(state[0], device="meta")
    if row_major and param.dtype == torch.bfloat16:
        order = torch.empty(order.shape, device="meta")
    return tuple(
        x
        if x.stride() == order.stride()
        else torch.empty_strided(x.shape, order.stride(), dtype=x.dtype, device=x.device).copy_(x)
        for x in (param, grad, *state)
    )


def as_vectors(tensors: Tensors) -> Tensors:
    """Return tensors without gaps as vectors, in the order that their elements have in memory."""
    shaped = tensors.columns[:SHAPED_COLUMNS]
    return tensors.with_columns(*[[x.as_strided((x.numel(),), (1,)) for x in column] for column in shaped])


def copy_back(tensors: Tensors, copies: Tensors) -> None:
    """Write the copies that a kernel has changed, all but gradients, back to where they belong."""
    for originals, own in zip(tensors.columns[:SHAPED_COLUMNS], copies.columns[:SHAPED_COLUMNS], strict=True):
        if originals is not tensors.grads:
            for original, copy in zip(originals, own, strict=True):
                if copy is not original:
                    original.copy_(copy)
