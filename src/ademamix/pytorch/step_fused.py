"""The fused body: one call into the C++ core for all tensors of a group, whatever their dtypes."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch.coefficients import Coefficients, PerTensor
from ademamix.pytorch.rounding import Rounding

DTYPE_CODES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}  # `Dtype` in csrc/step.h
COMPLEX = (torch.complex64, torch.complex128)

core: ModuleType | None
try:
    core = importlib.import_module("ademamix._core")
    missing_core = ""
except ImportError as error:
    core = None
    missing_core = (
        f"the C++ core of ademamix is not there ({error}). It is built when the package is installed and a C++17 "
        "compiler is found: install one (g++ or clang++) and run "
        "`pip install --force-reinstall --no-deps --no-cache-dir ademamix`, or leave `fused` out"
    )


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
        torch.autograd.graph.increment_version(params)  # the core writes behind autograd's back
    else:
        if grad_scale is not None:
            tensors = (params, [grad / grad_scale for grad in grads], *tensors[2:])
        seed, indices = rounding
        torch.ops.ademamix.step_(*tensors, torch.stack(coefficients, dim=1), sign, seed, indices)


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
    laid_out = [_laid_out_like(slow, param) for slow, param in zip(slows, params, strict=True)]
    grads = [_laid_out_like(slow, grad) for slow, grad in zip(slows, grads, strict=True)]
    rows = {c: i for i, c in enumerate(dict.fromkeys(coefficients))}
    core.step(
        [x.data_ptr() for x in laid_out],
        [x.data_ptr() for x in grads],
        [x.data_ptr() for x in fasts],
        [x.data_ptr() for x in slows],
        [x.data_ptr() for x in squares],
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
    for param, copy in zip(params, laid_out, strict=True):
        if copy is not param:
            param.copy_(copy)


def _laid_out_like(moment: Tensor, tensor: Tensor) -> Tensor:
    """Return `tensor`, or a copy of it, with its elements in memory where the (dense) moment has them."""
    if (moment.is_contiguous() and tensor.is_contiguous()) or tensor.stride() == moment.stride():
        return tensor
    return torch.empty_like(moment, dtype=tensor.dtype).copy_(tensor)


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
