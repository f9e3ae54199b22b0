"""The fused body: one call into the C++ core for all tensors of a group, whatever their dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch.coefficients import Coefficients, PerTensor
from ademamix.pytorch.core import core, missing_core
from ademamix.pytorch.rounding import Rounding

DTYPE_CODES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}  # `Dtype` in csrc/step.h
COMPLEX = (torch.complex64, torch.complex128)


def unsupported(param: Tensor) -> str | None:
    """Say why the fused body cannot update `param`, or return None if it can."""
    if core is None:
        return missing_core
    if not param.is_cpu:
        return f"there is no fused kernel for device {param.device.type!r}; leave `fused` out or use foreach=True"
    if param.dtype not in DTYPE_CODES and param.dtype not in COMPLEX:
        return f"there is no fused kernel for {param.dtype}; leave `fused` out"
    return None


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
    sign = -1.0 if maximize else 1.0
    tensors = (params, grads, exp_avgs, exp_avg_slows, exp_avg_sqs, skipped)
    if isinstance(coefficients, list):
        factor = sign if grad_scale is None else sign / grad_scale.item()
        _call_core(*tensors, coefficients, factor, rounding)
    else:
        if grad_scale is not None:
            unscaled = [grad.to(slow.dtype) / grad_scale for grad, slow in zip(grads, exp_avg_slows, strict=True)]
            tensors = (params, unscaled, *tensors[2:])
        seed, indices = rounding
        torch.ops.ademamix.step_(*tensors, torch.stack(coefficients, dim=1), sign, seed, indices)
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(params)  # the core writes behind autograd's back


def _call_core(
    params: list[Tensor],
    grads: list[Tensor],
    fasts: list[Tensor],
    slows: list[Tensor],
    squares: list[Tensor],
    skipped: list[Tensor],
    coefficients: list[Coefficients],
    factor: float,
    rounding: Rounding,
) -> None:
    assert core is not None
    columns = [params, grads, slows, squares, *([fasts] if fasts else [])]
    arranged = [_in_one_order(*row, stochastic=rounding.seed is not None) for row in zip(*columns, strict=True)]
    params_, grads_, slows_, squares_, *fasts_ = map(list, zip(*arranged, strict=True))
    rows = {c: i for i, c in enumerate(dict.fromkeys(coefficients))}
    core.step(
        [x.data_ptr() for x in params_],
        [x.data_ptr() for x in grads_],
        [x.data_ptr() for tensors in fasts_ for x in tensors],
        [x.data_ptr() for x in slows_],
        [x.data_ptr() for x in squares_],
        [x.data_ptr() for x in skipped],
        [x.numel() for x in params],
        rounding.indices,
        [DTYPE_CODES[x.dtype] for x in params],
        [DTYPE_CODES[x.dtype] for x in grads],
        list(rows),
        [rows[c] for c in coefficients],
        factor,
        rounding.seed is not None,
        rounding.seed or 0,
        torch.get_num_threads(),
    )
    for originals, copies in zip((params, slows, squares, fasts), (params_, slows_, squares_, *fasts_), strict=False):
        for original, copy in zip(originals, copies, strict=True):
            if copy is not original:
                original.copy_(copy)


def _in_one_order(param: Tensor, grad: Tensor, *moments: Tensor, stochastic: bool) -> tuple[Tensor, ...]:
    """Return the tensors of a parameter, or copies, that have their elements in one order of memory, without gaps.

    The order is that of the moments, but row-major if random words are to be drawn by the index of an element.
    """
    moment = moments[0]
    if param.is_contiguous() and grad.is_contiguous() and moment.is_contiguous():
        return (param, grad, *moments)
    order = moment
    if stochastic and param.dtype == torch.bfloat16:
        order = torch.empty(moment.shape, device="meta")
    return tuple(
        x if x.stride() == order.stride() else torch.empty_strided(x.shape, order.stride(), dtype=x.dtype).copy_(x)
        for x in (param, grad, *moments)
    )


# The same call as an operator that torch.compile can see. `coefficients` has a row for each tensor.
_library = torch.library.Library("ademamix", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_slows, "
    "Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] skipped, Tensor coefficients, float factor, int? seed, int[] indices) -> ()"
)


@torch.library.impl(_library, "step_", "CPU")
def _step_on_cpu(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_slows: list[Tensor],
    exp_avg_sqs: list[Tensor],
    skipped: list[Tensor],
    coefficients: Tensor,
    factor: float,
    seed: int | None,
    indices: list[int],
) -> None:
    rows = [Coefficients(*row) for row in coefficients.tolist()]
    _call_core(
        params,
        grads,
        exp_avgs,
        exp_avg_slows,
        exp_avg_sqs,
        skipped,
        rows,
        factor,
        Rounding(seed, list(indices)),
    )


@torch.library.register_fake("ademamix::step_", lib=_library)  # type: ignore[untyped-decorator]
def _step_on_nothing(*args: Any) -> None:
    return None
