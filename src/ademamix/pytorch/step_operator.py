"""The fused bodies as an operator that torch.compile can see, with coefficients that are tensors."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch import step_cpu, step_triton, storage
from ademamix.pytorch.coefficients import Coefficients, matrix_of
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import KERNEL_COLUMNS, KERNEL_NAMES, Place, Tensors

# The columns of `Tensors` that kernels take, which a step changes, apart from gradients.
_columns = ", ".join(
    f"Tensor{'' if name == 'grads' else f'({mark}!)'}[] {name}"
    for mark, name in zip(string.ascii_lowercase, KERNEL_NAMES, strict=False)
)
_library = torch.library.Library("ademamix", "FRAGMENT")
_library.define(  # `coefficients` has a row for each tensor
    f"step_({_columns}, Tensor coefficients, bool bounds_slow, int seed, bool stochastic_params, int[] places, "
    "bool maximize) -> ()"
)


def update(
    tensors: Tensors, coefficients: Coefficients, rounding: Rounding, *, maximize: bool, grad_scale: Tensor | None
) -> None:
    """Update each parameter and its moments in place; see `ademamix_step`."""
    if grad_scale is not None:
        dtypes = [storage.arithmetic_dtype(slow) for slow in tensors.slows]
        unscaled = [grad.to(dtype) / grad_scale for grad, dtype in zip(tensors.grads, dtypes, strict=True)]
        tensors = tensors._replace(grads=unscaled)
    matrix = matrix_of(coefficients)
    if torch.compiler.is_compiling():
        bounds_slow, places = coefficients.bounds_slow, _as_numbers(tensors.places)
        torch.ops.ademamix.step_(*tensors.of_kernels, matrix, bounds_slow, *rounding, places, maximize)
    else:
        _on_cpu(tensors, matrix, rounding, maximize)


def _as_numbers(places: Iterable[Place]) -> list[int]:
    """Return the index, the dimensions, the offsets and the whole shape of each place: an operator takes numbers."""
    return [
        number for place in places for number in (place.param_index, len(place.whole), *place.offsets, *place.whole)
    ]


def _as_places(numbers: Iterable[int]) -> list[Place]:
    rest, places = iter(numbers), []
    for index in rest:
        dimensions = next(rest)
        offsets, whole = (tuple(itertools.islice(rest, dimensions)) for _ in range(2))
        places.append(Place(index, offsets, whole))
    return places


def _unpacked(arguments: tuple[Any, ...]) -> tuple[Tensors, Tensor, bool, Rounding, bool]:
    columns, (matrix, bounds_slow, seed, stochastic_params, places, maximize) = (
        arguments[:KERNEL_COLUMNS],
        arguments[KERNEL_COLUMNS:],
    )
    tensors = Tensors.none().with_columns(*columns)._replace(places=_as_places(places))
    return tensors, matrix, bounds_slow, Rounding(seed, stochastic_params), maximize


@torch.library.impl(_library, "step_", "CPU")
def _step_on_cpu(*arguments: Any) -> None:
    tensors, matrix, _, rounding, maximize = _unpacked(arguments)
    _on_cpu(tensors, matrix, rounding, maximize)


def _on_cpu(tensors: Tensors, matrix: Tensor, rounding: Rounding, maximize: bool) -> None:
    rows = [Coefficients(*row) for row in matrix.tolist()]
    step_cpu.update(tensors, rows, rounding, maximize=maximize, grad_scale=None)


@torch.library.impl(_library, "step_", "CUDA")
def _step_on_cuda(*arguments: Any) -> None:
    tensors, matrix, bounds_slow, rounding, maximize = _unpacked(arguments)
    vectors = Coefficients(*matrix.unbind(1))
    if not bounds_slow:
        vectors = vectors._replace(slow_limit=math.inf)
    step_triton.update(tensors, vectors, rounding, maximize=maximize, grad_scale=None)


@torch.library.register_fake("ademamix::step_", lib=_library)  # type: ignore[untyped-decorator]
def _step_on_nothing(*arguments: Any) -> None:
    return None
