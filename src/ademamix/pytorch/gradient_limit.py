"""Gradients in the precision of the arithmetic, and the limit of their size there.

A finite gradient above 1.8e19 has no finite square in fp32: the second moment would be infinite, and the parameter NaN
a step later. So its magnitude is limited to 2^62, whose square is finite and has a code in every storage, and the step
is the ordinary, bounded one. Elements that are not finite stay as they are. In fp64 there is no limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ademamix.formats import GRADIENT_LIMIT
from ademamix.pytorch.memory_order import are_plain

SMALL = 1 << 14  # elements: smaller tensors are worth a copy, to be looked at together with others


def in_arithmetic(grad: Tensor, dtype: torch.dtype, grad_scale: Tensor | None, *, maximize: bool) -> Tensor:
    """Return a gradient in the dtype of the arithmetic, unscaled, and negated if it is to be ascended."""
    if grad.dtype == torch.float64 != dtype:
        grad = limited(grad, torch.finfo(dtype).max)  # finite elements stay finite
    grad = grad.to(dtype)
    if grad_scale is not None:
        grad = grad / grad_scale
    return -grad if maximize else grad


def limited(grad: Tensor, limit: float = GRADIENT_LIMIT) -> Tensor:
    """Return `grad` with the magnitude of its finite elements limited.

    >>> limited(torch.tensor([3.0, -1e30, float("inf")])).tolist()
    [3.0, -4.611686018427388e+18, inf]
    """
    return torch.where(grad.isfinite(), grad.clamp(-limit, limit), grad)


def limited_together(grads: list[Tensor]) -> list[Tensor]:
    """Return several gradients, limited. On a CPU, the sum of squares mostly shows that there is nothing to do."""
    if are_plain(grads) and all(grad.is_cpu for grad in grads) and not torch.compiler.is_compiling():
        small = [grad.flatten() for grad in grads if grad.numel() < SMALL]
        parts = [grad.flatten() for grad in grads if grad.numel() >= SMALL] + ([torch.cat(small)] if small else [])
        if all(torch.dot(part, part).item() < GRADIENT_LIMIT**2 for part in parts):
            return grads
    return [limited(grad) for grad in grads]
