"""The multi-tensor body: torch's _foreach operations over buckets of tensors that share a device and dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix.pytorch import storage
from ademamix.pytorch.coefficients import Coefficients, PerTensor, columns_of, one_per_tensor
from ademamix.pytorch.gradient_limit import in_arithmetic, limited_together
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import Tensors

# On a CPU, the elements that go through all operations together: few enough to stay in the cache meanwhile.
CACHED_ELEMENTS = 1 << 18


def update(
    tensors: Tensors, coefficients: PerTensor, rounding: Rounding, *, maximize: bool, grad_scale: Tensor | None
) -> None:
    """Update each parameter and its moments in place; see `ademamix_step`."""
    for positions, c in _buckets(tensors, coefficients):
        own = tensors.take(positions)
        dtype = storage.arithmetic_dtype(own.slows[0])
        grads = own.grads
        if grads[0].dtype != dtype or grad_scale is not None or maximize:
            grads = [in_arithmetic(grad, dtype, grad_scale, maximize=maximize) for grad in grads]
        _update_bucket(own, grads, dtype, c, rounding)


def _update_bucket(
    tensors: Tensors, grads: list[Tensor], dtype: torch.dtype, c: Coefficients, rounding: Rounding
) -> None:
    """Update tensors of one bucket with gradients in `dtype`, that of the arithmetic."""
    params = tensors.params
    moments = [storage.read(tensors, i) for i in range(len(params))]
    fasts = [fast for fast, _, _ in moments if fast is not None]
    slows, squares = [slow for _, slow, _ in moments], [square for _, _, square in moments]
    finite = [grad.isfinite() for grad in grads] if tensors.skipped else []
    in_place = params[0].dtype == dtype and not tensors.skipped
    targets = params if in_place else [_copied(tensors, i, dtype) for i in range(len(params))]
    values = Values(targets, grads, fasts, slows, squares)
    shared = not isinstance(c.step, list)  # numbers for all tensors, so that they can be divided
    if in_place and shared and slows[0].is_cpu and not torch.compiler.is_compiling():
        for part in _cached(values):
            _descend_(part, c, [])
    else:
        _descend_(values, c, finite)

    for i, param in enumerate(params):
        place = tensors.places[i]
        step = c.step[i] if isinstance(c.step, list) else c.step
        if finite:
            targets[i] = torch.where(finite[i], targets[i], storage.read_param(tensors, i, dtype))
            tensors.skipped[i].add_((~finite[i]).sum())
        if not in_place:
            rounding.write(param, targets[i], place, step, tensors.corrections[i] if tensors.corrections else None)
        if slows[i] is not tensors.slows[i]:
            storage.write(tensors, i, moments[i], rounding.moment_words(param, place, step))


def _copied(tensors: Tensors, i: int, dtype: torch.dtype) -> Tensor:
    """Return the parameter at `i` for the arithmetic, to be written to."""
    values = storage.read_param(tensors, i, dtype)
    return values.clone() if values is tensors.params[i] else values


class Values(NamedTuple):
    """The operands of the arithmetic: tensors of one dtype, with the same shapes in all lists that are not empty."""

    params: list[Tensor]
    grads: list[Tensor]
    fasts: list[Tensor]
    slows: list[Tensor]
    squares: list[Tensor]


def _descend_(values: Values, c: Coefficients, finite: list[Tensor]) -> None:
    """Take the step. Moments of elements that are not `finite` stay; their parameters are left undefined."""
    params, grads, fasts, slows, squares = values
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
    denominators = torch._foreach_sqrt(squares)
    torch._foreach_add_(denominators, c.eps)
    changes = torch._foreach_mul(slows, c.slow_gain)
    if c.bounds_slow:
        bounds = torch._foreach_mul(denominators, c.slow_limit)
        torch._foreach_minimum_(changes, bounds)
        torch._foreach_maximum_(changes, torch._foreach_neg(bounds))
    torch._foreach_add_(changes, fasts or grads)
    torch._foreach_div_(changes, denominators)
    torch._foreach_mul_(changes, c.step_size)
    # Weight decay joins the change before it is applied: a parameter that is rounded once a step drifts least.
    torch._foreach_add_(changes, torch._foreach_mul(params, c.decay))
    torch._foreach_sub_(params, changes)


def _cached(values: Values) -> Iterator[Values]:
    """Split lists of tensors of the same shapes into parts of about CACHED_ELEMENTS; empty lists stay empty."""
    # glibc gives the top of its heap back to the system when more than a limit of it is free, and the temporaries of
    # the next part would be paged in anew. A larger block, freed once, raises that limit; it is never touched.
    torch.empty(8 * CACHED_ELEMENTS)
    part: list[tuple[Tensor, ...]] = []
    elements = 0
    for tensors in zip(*(tensors for tensors in values if tensors), strict=True):
        size = tensors[0].numel()
        if size > CACHED_ELEMENTS and all(tensor.is_contiguous() for tensor in tensors):
            for pieces in zip(*(tensor.view(-1).split(CACHED_ELEMENTS) for tensor in tensors), strict=True):
                yield _columns([pieces], values)
            continue
        if part and elements + size > CACHED_ELEMENTS:
            yield _columns(part, values)
            part, elements = [], 0
        part.append(tensors)
        elements += size
    if part:
        yield _columns(part, values)


def _columns(rows: list[tuple[Tensor, ...]], like: Values) -> Values:
    columns = iter(zip(*rows, strict=True))
    return Values(*[list(next(columns)) if tensors else [] for tensors in like])


def _buckets(tensors: Tensors, coefficients: PerTensor) -> list[tuple[list[int], Coefficients]]:
    """Positions of the tensors that go together, with coefficients of floats, or of lists of 0-dim tensors."""
    shared = isinstance(coefficients, list)
    each = one_per_tensor(coefficients, [storage.arithmetic_dtype(slow) for slow in tensors.slows])
    positions: dict[Any, list[int]] = {}
    for i, (param, grad) in enumerate(zip(tensors.params, tensors.grads, strict=True)):
        key = (param.device, param.dtype, grad.dtype, each[i] if shared else None)
        positions.setdefault(key, []).append(i)
    return [(own, each[own[0]] if shared else columns_of([each[i] for i in own])) for own in positions.values()]
