"""The readable body: one parameter at a time, one operation a line. The only one that autograd can go through."""

from __future__ import annotations

import torch
from torch import Tensor

from ademamix.pytorch import storage
from ademamix.pytorch.coefficients import PerTensor, one_per_tensor
from ademamix.pytorch.gradient_limit import in_arithmetic, limited, limited_together
from ademamix.pytorch.rounding import Rounding


def update(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_slows: list[Tensor],
    exp_avg_sqs: list[Tensor],
    exp_avg_scales: list[Tensor],
    exp_avg_slow_scales: list[Tensor],
    exp_avg_sq_scales: list[Tensor],
    skipped: list[Tensor],
    coefficients: PerTensor,
    *,
    rounding: Rounding,
    maximize: bool,
    grad_scale: Tensor | None,
) -> None:
    """Update each parameter and its moments in place; see `ademamix_step`."""
    moments = [column for column in (exp_avgs, exp_avg_slows, exp_avg_sqs) if column]
    all_scales = [column for column in (exp_avg_scales, exp_avg_slow_scales, exp_avg_sq_scales) if column]
    dtypes = [storage.arithmetic_dtype(slow) for slow in exp_avg_slows]
    for i, c in enumerate(one_per_tensor(coefficients, dtypes)):
        param, dtype = params[i], dtypes[i]
        stored, scales = [column[i] for column in moments], [column[i] for column in all_scales]
        grad = in_arithmetic(grads[i], dtype, grad_scale, maximize=maximize)
        if dtype == torch.float32:
            (grad,) = limited_together([grad]) if not torch.is_grad_enabled() else [limited(grad)]

        kept: Tensor | float = 1.0
        if skipped:
            finite = grad.isfinite()
            skipped[i].add_((~finite).sum())
            grad = torch.where(finite, grad, 0.0)
            kept = finite.to(dtype)  # an EMA that moves at rate 0 stays

        values = storage.read(stored, scales)
        *fasts, slow, square = values
        fast = fasts[0].lerp_(grad, kept * c.fast_rate) if fasts else grad
        slow.lerp_(grad, kept * c.slow_rate)
        square.lerp_(grad * grad, kept * c.square_rate)
        direction = (fast + c.slow_gain * slow) / (square.sqrt() + c.eps)
        if slow is not stored[-2]:
            storage.write(stored, scales, values, rounding.moment_words(param, i, c.step))

        before = param.to(dtype)
        if torch.is_grad_enabled():
            before = before.clone()  # the derivative with respect to lr needs the value that is overwritten
        after = before - (c.decay * before + c.step_size * direction)
        if skipped:
            after = torch.where(finite, after, before)
        rounding.write(param, after, i, c.step)
