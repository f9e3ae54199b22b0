"""The fused body: on a CPU one call into the C++ core for all tensors of a group, on CUDA a Triton kernel."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch import step_triton, storage
from ademamix.pytorch.coefficients import Coefficients, PerTensor
from ademamix.pytorch.core import core, missing_core, reader
from ademamix.pytorch.memory_order import copy_back, has_memory, in_memory, in_one_order
from ademamix.pytorch.rounding import Rounding

# Triton is looked for here, and imported where it is used: not everyone waits for it.
has_triton = importlib.util.find_spec("triton") is not None


def runs_on_triton(param: Tensor) -> bool:
    """Tell whether the Triton kernel is the one for `param`: it is on NVIDIA's GPUs, ROCm has not been looked at."""
    return param.is_cuda and torch.version.hip is None


def has_core() -> bool:
    """Tell whether the C++ core has been built."""
    return core is not None


def unsupported(param: Tensor) -> str | None:
    """Say why the fused body cannot update `param`, or return None if it can."""
    if runs_on_triton(param):
        if not has_triton:
            return "on CUDA it takes Triton, which is not there: `pip install triton`, or leave `fused` out"
    elif not param.is_cpu:
        return f"there is no fused kernel for device {param.device.type!r}; leave `fused` out or use foreach=True"
    elif core is None:
        return missing_core
    if param.dtype not in storage.MOMENT_DTYPES:
        return f"there is no fused kernel for {param.dtype}; leave `fused` out"
    if not has_memory(param):
        return f"a {type(param).__name__} keeps its elements where the kernel cannot see them; leave `fused` out"
    return None


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
    sign = -1.0 if maximize else 1.0
    moments = (exp_avgs, exp_avg_slows, exp_avg_sqs)
    rest = (exp_avg_scales, exp_avg_slow_scales, exp_avg_sq_scales, skipped)
    if runs_on_triton(params[0]) and not torch.compiler.is_compiling():
        step_triton.update(
            params, grads, *moments, *rest, coefficients, rounding=rounding, maximize=maximize, grad_scale=grad_scale
        )
    elif isinstance(coefficients, list):
        factor = sign if grad_scale is None else sign / grad_scale.item()
        _call_core(params, grads, *moments, *rest, coefficients, factor, rounding)
    else:
        if grad_scale is not None:
            grads = [
                grad.to(storage.arithmetic_dtype(slow)) / grad_scale
                for grad, slow in zip(grads, exp_avg_slows, strict=True)
            ]
        torch.ops.ademamix.step_(params, grads, *moments, *rest, torch.stack(coefficients, dim=1), sign, *rounding)
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(params)  # kernels write behind autograd's back


def _call_core(
    params: list[Tensor],
    grads: list[Tensor],
    fasts: list[Tensor],
    slows: list[Tensor],
    squares: list[Tensor],
    fast_scales: list[Tensor],
    slow_scales: list[Tensor],
    square_scales: list[Tensor],
    skipped: list[Tensor],
    coefficients: list[Coefficients],
    factor: float,
    rounding: Rounding,
) -> None:
    assert core is not None
    rows = {c: i for i, c in enumerate(dict.fromkeys(coefficients))}
    rest = (
        *(fast_scales, slow_scales, square_scales, skipped),
        [_row_size(x) for x in params] if storage.is_reduced(slows[0]) else [0] * len(params),
        rounding.indices,
        list(rows),
        [rows[c] for c in coefficients],
        reader,
        factor,
        rounding.stochastic_params,
        rounding.seed,
        torch.get_num_threads(),
    )
    if core.step(params, grads, fasts, slows, squares, *rest):
        return
    columns = [params, grads, slows, squares, *([fasts] if fasts else [])]
    arranged = [in_one_order(*row, row_major=rounding.stochastic_params) for row in zip(*columns, strict=True)]
    copies = [list(column) for column in zip(*arranged, strict=True)]
    params_, grads_, slows_, squares_, fasts_ = [*([in_memory(x) for x in column] for column in copies), []][:5]
    core.step(params_, grads_, fasts_, slows_, squares_, *rest)
    for originals, own in zip(columns, copies, strict=True):
        if originals is not grads:
            copy_back(originals, own)


def _row_size(param: Tensor) -> int:
    """Return the number of elements for each index of the first dimension."""
    return param.numel() // param.shape[0] if param.numel() else 0


# The same call as an operator that torch.compile can see. `coefficients` has a row for each tensor.
_library = torch.library.Library("ademamix", "FRAGMENT")
_library.define(
    "step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_slows, "
    "Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] exp_avg_scales, Tensor(f!)[] exp_avg_slow_scales, "
    "Tensor(g!)[] exp_avg_sq_scales, Tensor(h!)[] skipped, Tensor coefficients, float factor, "
    "int seed, int[] indices, int[] first_rows, bool stochastic_params) -> ()"
)


@torch.library.impl(_library, "step_", "CPU")
@torch.library.impl(_library, "step_", "CUDA")
def _step_eagerly(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_slows: list[Tensor],
    exp_avg_sqs: list[Tensor],
    exp_avg_scales: list[Tensor],
    exp_avg_slow_scales: list[Tensor],
    exp_avg_sq_scales: list[Tensor],
    skipped: list[Tensor],
    coefficients: Tensor,
    factor: float,
    seed: int,
    indices: list[int],
    first_rows: list[int],
    stochastic_params: bool,
) -> None:
    moments = (exp_avgs, exp_avg_slows, exp_avg_sqs)
    scales = (exp_avg_scales, exp_avg_slow_scales, exp_avg_sq_scales)
    rounding = Rounding(seed, list(indices), list(first_rows), stochastic_params)
    if runs_on_triton(params[0]):
        vectors = Coefficients(*coefficients.unbind(1))
        step_triton.update(
            params, grads, *moments, *scales, skipped, vectors, rounding=rounding, maximize=factor < 0, grad_scale=None
        )
    else:
        rows = [Coefficients(*row) for row in coefficients.tolist()]
        _call_core(params, grads, *moments, *scales, skipped, rows, factor, rounding)


@torch.library.register_fake("ademamix::step_", lib=_library)  # type: ignore[untyped-decorator]
def _step_on_nothing(*args: Any) -> None:
    return None
