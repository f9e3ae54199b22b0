"""The readable body: one parameter at a time, one operation a line. The only one that autograd can go through."""

from __future__ import annotations

import torch
from torch import Tensor

from ademamix.pytorch.coefficients import PerTensor, one_per_tensor
from ademamix.pytorch.rounding import Rounding, write


def update(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_slows: list[Tensor],
    exp_avg_sqs: list[Tensor],
    skipped: list[Tensor],
    coefficients: PerTensor,
    *,
    rounding: Rounding,
    maximize: bool,
    grad_scale: Tensor | None,
) -> None:
    """Update each parameter and its moments in place; see `ademamix_step`."""
    for i, c in enumerate(one_per_tensor(coefficients, exp_avg_slows)):
        param, slow, square = params[i], exp_avg_slows[i], exp_avg_sqs[i]
        grad = grads[i].to(slow.dtype)
        if grad_scale is not None:
            grad = grad / grad_scale
        if maximize:
            grad = -grad

        kept: Tensor | float = 1.0
        if skipped:
            finite = grad.isfinite()
            skipped[i].add_((~finite).sum())
            grad = torch.where(finite, grad, 0.0)
            kept = finite.to(slow.dtype)  # an EMA that moves at rate 0 stays

        fast = exp_avgs[i].lerp_(grad, kept * c.fast_rate) if exp_avgs else grad
        slow.lerp_(grad, kept * c.slow_rate)
        square.lerp_(grad * grad, kept * c.square_rate)
        direction = (fast + c.slow_gain * slow) / (square.sqrt() + c.eps)
        before = param.to(slow.dtype)
        if torch.is_grad_enabled():
            before = before.clone()  # the derivative with respect to lr needs the value that is overwritten
        after = before - (c.decay * before + c.step_size * direction)
        if skipped:
            after = torch.where(finite, after, before)
        write(param, after, rounding, i, c.step)
