"""The fused body on a CPU: one call into the C++ core for all tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ademamix.pytorch import storage
from ademamix.pytorch.coefficients import Coefficients
from ademamix.pytorch.core import core, reader
from ademamix.pytorch.memory_order import arranged, as_vectors, copy_back
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import Tensors


def update(
    tensors: Tensors, coefficients: list[Coefficients], rounding: Rounding, *, maximize: bool, grad_scale: Tensor | None
) -> None:
    """Update each parameter and its moments in place; see `ademamix_step`."""
    assert core is not None
    factor = -1.0 if maximize else 1.0
    if grad_scale is not None:
        factor /= grad_scale.item()
    distinct = {c: i for i, c in enumerate(dict.fromkeys(coefficients))}
    rest = (
        _row_sizes(tensors),
        tensors.indices,
        list(distinct),
        [distinct[c] for c in coefficients],
        reader,
        core.Options(factor, rounding.stochastic_params, rounding.seed, torch.get_num_threads()),
    )
    if not core.step(tensors.of_kernels, *rest):
        copies = arranged(tensors, row_major=rounding.stochastic_params)
        core.step(as_vectors(copies).of_kernels, *rest)
        copy_back(tensors, copies)


def _row_sizes(tensors: Tensors) -> list[int]:
    """Return the number of elements in each tensor's rows of dimension 0, which only reduced moments need."""
    if not storage.is_reduced(tensors.slows[0]):
        return [0] * len(tensors.params)
    return [param.numel() // param.shape[0] if param.numel() else 0 for param in tensors.params]
