"""What a parameter and its gradient have to be, before a step is taken with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ademamix.pytorch import shards
from ademamix.pytorch.memory_order import has_memory
from ademamix.pytorch.storage import MOMENT_DTYPES


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
            f"{param.stride()}), so that an update in place is not defined. Pass one with memory of its own, for "
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
    if shards.is_sharded(param):
        if not shards.on_its_mesh(grad, param):
            raise RuntimeError(
                f"AdEMAMix cannot use a gradient of type {type(grad).__name__} for a parameter that is sharded over "
                f"{param.device_mesh}. Give it a DTensor on the same mesh."  # type: ignore[attr-defined]
            )
    elif has_memory(param) and not has_memory(grad):
        raise RuntimeError(
            f"AdEMAMix cannot use a gradient of type {type(grad).__name__} for a plain parameter. Give both the same "
            "type, or give the parameter the gradient's local tensor."
        )
    if grad.dtype not in MOMENT_DTYPES or grad.is_complex() != param.is_complex() or grad.shape != param.shape:
        raise RuntimeError(
            f"AdEMAMix cannot use a gradient of dtype {grad.dtype} and shape {tuple(grad.shape)} for a parameter of "
            f"dtype {param.dtype} and shape {tuple(param.shape)}. Give it one of the same shape and of a dtype of the "
            "same kind, real or complex floating point."
        )


def check_masters(masters: Sequence[Tensor], params: Sequence[Tensor]) -> None:
    """Raise if `masters` cannot be values of `params`."""
    if len(masters) != len(params):
        raise ValueError(f"there must be a master for each of the {len(params)} parameters, got {len(masters)}")
    for i, (value, param) in enumerate(zip(masters, params, strict=True)):
        if value.shape != param.shape or value.is_complex() != param.is_complex() or value.layout != torch.strided:
            raise ValueError(
                f"master {i} must be a dense tensor of shape {tuple(param.shape)} for its parameter of {param.dtype}, "
                f"got {value.dtype} of shape {tuple(value.shape)}: masters are in the order of the groups"
            )


def _overlaps(tensor: Tensor) -> bool:
    extent = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return True
            extent += stride * (size - 1)
    return False
