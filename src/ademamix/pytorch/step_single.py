"""The readable body: one parameter at a time, one operation per line. The only one that autograd can go through."""

from __future__ import annotations

import torch
from torch import Tensor

from ademamix.pytorch import storage
from ademamix.pytorch.coefficients import PerTensor, one_per_tensor
from ademamix.pytorch.gradient_limit import in_arithmetic, limited, limited_together
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import Tensors


def update(
    tensors: Tensors, coefficients: PerTensor, rounding: Rounding, *, maximize: bool, grad_scale: Tensor | None
) -> None:
    """Update each parameter and its moments in place; see `ademamix_step`."""
    dtypes = [storage.arithmetic_dtype(slow) for slow in tensors.slows]
    for i, c in enumerate(one_per_tensor(coefficients, dtypes)):
        param, place, dtype = tensors.params[i], tensors.places[i], dtypes[i]
        grad = in_arithmetic(tensors.grads[i], dtype, grad_scale, maximize=maximize)
        if dtype == torch.float32:
            (grad,) = limited_together([grad]) if not torch.is_grad_enabled() else [limited(grad)]

        kept: Tensor | float = 1.0
        if tensors.skipped:
            finite = grad.isfinite()
            tensors.skipped[i].add_((~finite).sum())
            grad = torch.where(finite, grad, 0.0)
            kept = finite.to(dtype)  # an EMA that moves at rate 0 stays

        moments = storage.read(tensors, i)
        stored_fast, slow, square = moments
        fast = grad if stored_fast is None else stored_fast.lerp_(grad, kept * c.fast_rate)
        slow.lerp_(grad, kept * c.slow_rate)
        square.lerp_(grad * grad, kept * c.square_rate)
        denominator, slow_part = square.sqrt() + c.eps, c.slow_gain * slow
        if c.bounds_slow:
            bound = c.slow_limit * denominator
            slow_part = slow_part.clamp(-bound, bound)
        direction = (fast + slow_part) / denominator
        if slow is not tensors.slows[i]:
            storage.write(tensors, i, moments, rounding.moment_words(param, place, c.step))

        before = storage.read_param(tensors, i, dtype)
        if torch.is_grad_enabled():
            before = before.clone()  # the derivative with respect to lr needs the value that is overwritten
        after = before - (c.decay * before + c.step_size * direction)
        if tensors.skipped:
            after = torch.where(finite, after, before)
        rounding.write(param, after, place, c.step, tensors.corrections[i] if tensors.corrections else None)
