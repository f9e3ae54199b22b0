"""The fused body on a CPU: one call into the C++ core for all tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch import storage
from ademamix.pytorch.coefficients import Coefficients
from ademamix.pytorch.core import core, reader
from ademamix.pytorch.memory_order import arranged, as_vectors, copy_back
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import Place, Tensors

# A tensor whose elements need no place: its moments have no blocks, and nothing is rounded at random.
ANYWHERE = (0, 0, 0, 0)


def update(
    tensors: Tensors, coefficients: list[Coefficients], rounding: Rounding, *, maximize: bool, grad_scale: Tensor | None
) -> None:
    """Update each parameter and its moments in place; see `ademamix_step`."""
    assert core is not None
    distinct = {id(c): c for c in coefficients}  # tensors with the same clocks share one
    numbers = {key: i for i, key in enumerate(distinct)}
    rest = (
        [place.param_index for place in tensors.places],
        _rows(tensors, rounding),
        list(distinct.values()),
        [numbers[key] for key in map(id, coefficients)],
        reader,
        _options(rounding, maximize=maximize, grad_scale=grad_scale),
    )
    if not core.step(tensors.of_kernels, *rest):
        copies = arranged(tensors, row_major=rounding.stochastic_params)
        core.step(as_vectors(copies).of_kernels, *rest)
        copy_back(tensors, copies)


def update_at(
    addresses: Any, coefficients: list[Coefficients], rounding: Rounding, *, maximize: bool, grad_scale: Tensor | None
) -> None:
    """Do the same to tensors that the core has gathered, with the coefficients at each of their distinct clocks."""
    assert core is not None
    core.step_at(addresses, coefficients, _options(rounding, maximize=maximize, grad_scale=grad_scale))


def _options(rounding: Rounding, *, maximize: bool, grad_scale: Tensor | None) -> Any:
    assert core is not None
    factor = -1.0 if maximize else 1.0
    if grad_scale is not None:
        factor /= grad_scale.item()
    return core.Options(factor, rounding.stochastic_params, rounding.seed, torch.get_num_threads())


def _rows(tensors: Tensors, rounding: Rounding) -> list[tuple[int, int, int, int]]:
    """Return the rows of each tensor as the core knows them, which only random words and blocks depend on."""
    is_reduced = storage.is_reduced(tensors.slows[0])
    return [
        _row(place, param.shape) if is_reduced or (place.whole and param.dtype == torch.bfloat16) else ANYWHERE
        for place, param in zip(tensors.places, tensors.params, strict=True)
    ]


@cache  # the same in every step
def _row(place: Place, shape: torch.Size) -> tuple[int, int, int, int]:
    _, size, first, first_column, whole_size = place.rows(shape)
    return size, first, first_column, whole_size
