"""The multi-tensor body: torch's _foreach operations over buckets of tensors that share a device and dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch.coefficients import Coefficients, PerTensor, one_per_tensor
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
    for positions, c in _buckets(params, grads, exp_avg_slows, coefficients):
        own_params, own_grads, slows, squares = (
            [tensors[i] for i in positions] for tensors in (params, grads, exp_avg_slows, exp_avg_sqs)
        )
        fasts = [exp_avgs[i] for i in positions] if exp_avgs else []
        own_skipped = [skipped[i] for i in positions] if skipped else []
        dtype = slows[0].dtype
        if own_grads[0].dtype != dtype:
            own_grads = [grad.to(dtype) for grad in own_grads]
        if grad_scale is not None:
            own_grads = [grad / grad_scale for grad in own_grads]
        if maximize:
            own_grads = list(torch._foreach_neg(own_grads))

        fast_rate, slow_rate, square_rate = c.fast_rate, c.slow_rate, c.square_rate
        finite: list[Tensor] = []
        if own_skipped:
            finite = [grad.isfinite() for grad in own_grads]
            torch._foreach_add_(own_skipped, [(~mask).sum() for mask in finite])
            own_grads = [torch.where(mask, grad, 0.0) for mask, grad in zip(finite, own_grads, strict=True)]
            kept = [mask.to(dtype) for mask in finite]  # an EMA that moves at rate 0 stays
            fast_rate, slow_rate, square_rate = (
                torch._foreach_mul(kept, rate) for rate in (fast_rate, slow_rate, square_rate)
            )

        if fasts:
            torch._foreach_lerp_(fasts, own_grads, fast_rate)
        torch._foreach_lerp_(slows, own_grads, slow_rate)
        _lerp_to_square_(squares, own_grads, square_rate)

        in_place = own_params[0].dtype == dtype and not finite
        values = own_params if in_place else [param.to(dtype, copy=True) for param in own_params]
        _descend_(values, fasts or own_grads, slows, squares, c)
        if in_place:
            continue
        for k, i in enumerate(positions):
            after = torch.where(finite[k], values[k], params[i].to(dtype)) if finite else values[k]
            write(params[i], after, rounding, i, c.step[k] if isinstance(c.step, list) else c.step)


def _lerp_to_square_(averages: list[Tensor], values: list[Tensor], rate: Any) -> None:
    if isinstance(rate, float):  # two passes in place: no temporary for the squares
        torch._foreach_add_(averages, averages, alpha=-rate)
        torch._foreach_addcmul_(averages, values, values, rate)
    else:
        torch._foreach_lerp_(averages, torch._foreach_mul(values, values), rate)


def _descend_(
    values: list[Tensor], fasts: list[Tensor], slows: list[Tensor], squares: list[Tensor], c: Coefficients
) -> None:
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_add_(denominators, c.eps)
    if isinstance(c.step_size, float):  # two divisions: cheaper than a temporary for m1 + slow_gain m2
        if c.decay:
            torch._foreach_add_(values, values, alpha=-c.decay)
        torch._foreach_addcdiv_(values, fasts, denominators, -c.step_size)
        torch._foreach_addcdiv_(values, slows, denominators, -c.step_size * c.slow_gain)
    else:
        directions = torch._foreach_mul(slows, c.slow_gain)
        torch._foreach_add_(directions, fasts)
        torch._foreach_mul_(directions, c.step_size)
        torch._foreach_sub_(values, torch._foreach_mul(values, c.decay))
        torch._foreach_addcdiv_(values, directions, denominators, -1.0)


def _buckets(
    params: list[Tensor], grads: list[Tensor], slows: list[Tensor], coefficients: PerTensor
) -> list[tuple[list[int], Coefficients]]:
    """Positions of the tensors that go together, with coefficients of floats, or of lists of 0-dim tensors."""
    shared = isinstance(coefficients, list)
    each = one_per_tensor(coefficients, slows)
    positions: dict[Any, list[int]] = {}
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        key = (param.device, param.dtype, grad.dtype, each[i] if shared else None)
        positions.setdefault(key, []).append(i)
    return [
        (own, each[own[0]] if shared else Coefficients(*map(list, zip(*(each[i] for i in own), strict=True))))
        for own in positions.values()
    ]
