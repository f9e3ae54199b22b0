"""The multi-tensor body: torch's _foreach operations over buckets of tensors that share a device and dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch import storage
from ademamix.pytorch.coefficients import Coefficients, PerTensor, one_per_tensor
from ademamix.pytorch.gradient_limit import in_arithmetic, limited_together
from ademamix.pytorch.rounding import Rounding

# On a CPU, elements that go through all operations together: few enough that they stay in the cache meanwhile.
CACHED_ELEMENTS = 1 << 18


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
    scales = [column for column in (exp_avg_scales, exp_avg_slow_scales, exp_avg_sq_scales) if column]
    for positions, c in _buckets(params, grads, exp_avg_slows, coefficients):
        stored = [[column[i] for column in moments] for i in positions]
        own_scales = [[column[i] for column in scales] for i in positions]
        values = [storage.read(*row) for row in zip(stored, own_scales, strict=True)]
        *fasts, slows, squares = (list(column) for column in zip(*values, strict=True))
        own_params, own_grads = [params[i] for i in positions], [grads[i] for i in positions]
        dtype = slows[0].dtype
        if own_grads[0].dtype != dtype or grad_scale is not None or maximize:
            own_grads = [in_arithmetic(grad, dtype, grad_scale, maximize=maximize) for grad in own_grads]

        finite = [grad.isfinite() for grad in own_grads] if skipped else []
        in_place = own_params[0].dtype == dtype and not skipped
        targets = own_params if in_place else [param.to(dtype, copy=True) for param in own_params]
        lists = (targets, own_grads, fasts[0] if fasts else [], slows, squares)
        if in_place and slows[0].is_cpu and not torch.compiler.is_compiling():
            for part in _cached(*lists):
                _descend_(c, [], *part)
        else:
            _descend_(c, finite, *lists)

        for k, i in enumerate(positions):
            step = c.step[k] if isinstance(c.step, list) else c.step
            if finite:
                targets[k] = torch.where(finite[k], targets[k], params[i].to(dtype))
                skipped[i].add_((~finite[k]).sum())
            if not in_place:
                rounding.write(params[i], targets[k], i, step)
            if slows[k] is not exp_avg_slows[i]:
                storage.write(stored[k], own_scales[k], values[k], rounding.moment_words(params[i], i, step))


def _descend_(
    c: Coefficients,
    finite: list[Tensor],
    values: list[Tensor],
    grads: list[Tensor],
    fasts: list[Tensor],
    slows: list[Tensor],
    squares: list[Tensor],
) -> None:
    """Take the step. Moments of elements that are not `finite` stay; their `values` are left undefined."""
    fast_rate, slow_rate, square_rate = c.fast_rate, c.slow_rate, c.square_rate
    if grads[0].dtype == torch.float32:
        grads = limited_together(grads)
    if finite:
        grads = [torch.where(mask, grad, 0.0) for mask, grad in zip(finite, grads, strict=True)]
        kept = [mask.to(grad.dtype) for mask, grad in zip(finite, grads, strict=True)]
        fast_rate, slow_rate, square_rate = (
            torch._foreach_mul(kept, rate) for rate in (fast_rate, slow_rate, square_rate)
        )
    if fasts:
        torch._foreach_lerp_(fasts, grads, fast_rate)
    torch._foreach_lerp_(slows, grads, slow_rate)
    torch._foreach_lerp_(squares, torch._foreach_mul(grads, grads), square_rate)
    changes = torch._foreach_mul(slows, c.slow_gain)
    torch._foreach_add_(changes, fasts or grads)
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_add_(denominators, c.eps)
    torch._foreach_div_(changes, denominators)
    torch._foreach_mul_(changes, c.step_size)
    # Weight decay joins the change before it is applied: a parameter that is rounded once a step drifts least.
    torch._foreach_add_(changes, torch._foreach_mul(values, c.decay))
    torch._foreach_sub_(values, changes)


def _cached(*lists: list[Tensor]) -> Iterator[list[list[Tensor]]]:
    """Split lists of tensors of the same shapes into parts of about CACHED_ELEMENTS; empty lists stay empty."""
    # glibc gives the top of its heap back to the system when more than a limit of it is free, and the temporaries of
    # the next part would be paged in anew. A larger block, freed once, raises that limit; it is never touched.
    torch.empty(8 * CACHED_ELEMENTS)
    part: list[tuple[Tensor, ...]] = []
    elements = 0
    for tensors in zip(*(tensors for tensors in lists if tensors), strict=True):
        size = tensors[0].numel()
        if size > CACHED_ELEMENTS and all(tensor.is_contiguous() for tensor in tensors):
            for pieces in zip(*(tensor.view(-1).split(CACHED_ELEMENTS) for tensor in tensors), strict=True):
                yield _columns([pieces], lists)
            continue
        if part and elements + size > CACHED_ELEMENTS:
            yield _columns(part, lists)
            part, elements = [], 0
        part.append(tensors)
        elements += size
    if part:
        yield _columns(part, lists)


def _columns(rows: list[tuple[Tensor, ...]], lists: tuple[list[Tensor], ...]) -> list[list[Tensor]]:
    columns = iter(zip(*rows, strict=True))
    return [list(next(columns)) if tensors else [] for tensors in lists]


def _buckets(
    params: list[Tensor], grads: list[Tensor], slows: list[Tensor], coefficients: PerTensor
) -> list[tuple[list[int], Coefficients]]:
    """Positions of the tensors that go together, with coefficients of floats, or of lists of 0-dim tensors."""
    shared = isinstance(coefficients, list)
    each = one_per_tensor(coefficients, [storage.arithmetic_dtype(slow) for slow in slows])
    positions: dict[Any, list[int]] = {}
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        key = (param.device, param.dtype, grad.dtype, each[i] if shared else None)
        positions.setdefault(key, []).append(i)
    return [
        (own, each[own[0]] if shared else Coefficients(*map(list, zip(*(each[i] for i in own), strict=True))))
        for own in positions.values()
    ]
