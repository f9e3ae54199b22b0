"""What is stored for a parameter, and in which format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_slow", "exp_avg_sq")
CLOCKS = ("step", "slow_step")

# The moments of a low-precision parameter are fp32: a slow EMA moves by 1e-4 of a gradient a step, less than bf16 or
# fp16 can resolve.
MOMENT_DTYPES = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
}


def check(param: Tensor, grad: Tensor, *, differentiable: bool) -> None:
    """Raise if AdEMAMix cannot train `param` with `grad`, saying what to do."""
    if param.dtype not in MOMENT_DTYPES:
        raise TypeError(
            f"AdEMAMix does not train parameters of dtype {param.dtype}, only "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in MOMENT_DTYPES)}. Keep a copy of the parameter "
            "in one of these and train that."
        )
    if param.device.type == "meta":
        raise RuntimeError(
            "AdEMAMix was given a parameter on the meta device, which has no data. Materialise the model first, for "
            "example with model.to_empty(device=...) and its initialisation."
        )
    if param.numel() > 1 and _overlaps(param):
        raise RuntimeError(
            f"AdEMAMix was given a parameter whose elements share memory (shape {tuple(param.shape)}, strides "
            f"{param.stride()}), so that an update in place is not defined. Pass a parameter of its own memory, for "
            "example torch.nn.Parameter(tensor.contiguous())."
        )
    if differentiable and param.is_leaf and param.requires_grad:
        raise RuntimeError(
            "differentiable=True updates parameters under autograd, which cannot be done to a leaf that requires "
            "grad. Pass clones of the leaves as parameters, and set their gradients with create_graph=True."
        )
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"AdEMAMix does not take sparse gradients, got layout {grad.layout}. Use sparse=False in the embedding "
            "that makes them, or optimize that embedding with torch.optim.SparseAdam."
        )
    if grad.dtype not in MOMENT_DTYPES or grad.is_complex() != param.is_complex() or grad.shape != param.shape:
        raise RuntimeError(
            f"AdEMAMix cannot use a gradient of dtype {grad.dtype} and shape {tuple(grad.shape)} for a parameter of "
            f"dtype {param.dtype} and shape {tuple(param.shape)}. Give it one of the same shape and of a dtype of the "
            "same kind, real or complex floating point."
        )


def is_ready(state: Mapping[str, Any], param: Tensor, grad: Tensor, *, has_fast: bool, skips: bool) -> bool:
    """Tell, quickly, whether a step of `param` needs nothing from :func:`prepare`. False may be a false alarm."""
    slow = state.get("exp_avg_slow")
    dtype = param.dtype
    return (
        slow is not None
        and grad.dtype == dtype
        and slow.dtype == MOMENT_DTYPES.get(dtype)
        and slow.shape == param.shape
        and param.is_contiguous()
        and grad.layout == torch.strided
        and (not has_fast or "exp_avg" in state)
        and (not skips or "skipped" in state)
    )


def prepare(state: dict[str, Any], param: Tensor, group: Mapping[str, Any]) -> None:
    """Put into `state` what is not there yet, and adapt moments whose parameter was converted to another dtype."""
    for moment in MOMENTS:
        if moment in state:
            state[moment] = adopt(moment, state[moment], param, group)
    complete(state, param, group)


@torch.inference_mode(False)  # tensors made in inference mode could never be updated outside of it
def complete(state: dict[str, Any], param: Tensor, group: Mapping[str, Any]) -> None:
    """Put into `state` what is not there yet: clocks at zero, empty moments."""
    clock_device = param.device if group["capturable"] else "cpu"
    for clock in CLOCKS:
        if clock not in state:
            state[clock] = torch.zeros((), dtype=torch.float32, device=clock_device)
    for moment in MOMENTS:
        if moment not in state and not (moment == "exp_avg" and group["betas"][0] == 0):
            state[moment] = empty_moment(param)
    if group["nonfinite"] == "skip" and "skipped" not in state:
        state["skipped"] = torch.zeros((), dtype=torch.int64, device=param.device)


def empty_moment(param: Tensor) -> Tensor:
    """Return zeros of the parameter's shape and memory layout, without gaps, in the dtype of its moments."""
    return torch.zeros_like(param, dtype=MOMENT_DTYPES[param.dtype], memory_format=torch.preserve_format)


def adopt(key: str, value: Any, param: Tensor, group: Mapping[str, Any]) -> Any:
    """Bring a value from elsewhere (a checkpoint, another optimizer) into the form that the state of `param` has.

    Returns `value` itself if it has that form already.
    """
    if key in CLOCKS:
        clock = torch.as_tensor(value, dtype=torch.float32)
        return clock.to(param.device if group["capturable"] else "cpu")
    if key not in MOMENTS or not isinstance(value, Tensor):
        return value.to(param.device) if isinstance(value, Tensor) else value
    if value.shape != param.shape:
        raise ValueError(
            f"the state's {key} has shape {tuple(value.shape)} but its parameter has {tuple(param.shape)}: the state "
            "belongs to another model, its parameters are in another order, or the parameter was resized. After a "
            "resize, delete its entry from optimizer.state."
        )
    if param.dtype not in MOMENT_DTYPES:
        return value  # a step would raise, saying why
    value = value.to(device=param.device, dtype=MOMENT_DTYPES[param.dtype])
    layout = torch.empty_like(param, device="meta").stride()
    return value if value.stride() == layout else empty_moment(param).copy_(value)


def _overlaps(tensor: Tensor) -> bool:
    extent = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return True
            extent += stride * (size - 1)
    return False
