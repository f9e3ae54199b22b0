"""Parameters that several processes share: the part that this process has, and its place in the whole.

A DTensor, as FSDP2 and tensor parallelism make them, is a whole parameter of which each process has a part. State is
sharded like its parameter, and a step works on the local parts alone, without communication. What is coded is decided
by the whole, and random words are those of the whole, so that the bits do not depend on the number of processes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ademamix.formats import BLOCK
from ademamix.pytorch import block_codes
from ademamix.pytorch.memory_order import PLAIN_TYPES, are_plain, completed
from ademamix.pytorch.tensors import Place, Tensors


def is_sharded(tensor: Any) -> bool:
    """Tell whether a tensor is a DTensor."""
    if type(tensor) in PLAIN_TYPES:
        return False
    module = sys.modules.get("torch.distributed.tensor")  # whoever has a DTensor has imported it, which takes long
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has: all of it unless it is sharded."""
    if not is_sharded(tensor):
        return tensor
    # What `to_local` returns where there is nothing to differentiate, ten times as quickly.
    is_quick = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    part: Tensor = tensor._local_tensor if is_quick else tensor.to_local()  # type: ignore[attr-defined]
    return part


def parts_of(state: Mapping[str, Any], param: Tensor, grad: Tensor) -> tuple[Mapping[str, Any], Tensor, Tensor]:
    """Return the local parts of a parameter, its state and its gradient, to be looked at."""
    if not is_sharded(param) or not on_its_mesh(grad, param):
        return state, param, grad
    return {key: local(value) for key, value in state.items()}, local(param), local(grad)


def on_its_mesh(grad: Any, param: Tensor) -> bool:
    """Tell whether a gradient is a DTensor over the processes of its parameter."""
    return is_sharded(grad) and bool(_spread(grad)[0] == _spread(param)[0])


def are_alike(param: Tensor, *others: Any) -> bool:
    """Tell whether `others` are spread over the processes as `param` is, so that their local parts belong together."""
    if not is_sharded(param):
        return not any(is_sharded(other) for other in others)
    return all(is_sharded(other) and _spread(other) == _spread(param) for other in others)


def is_scale_of(scale: Any, param: Tensor) -> bool:
    """Tell whether the scales of a coded moment are spread as its parameter is."""
    if not is_sharded(param):
        return not is_sharded(scale)
    return is_sharded(scale) and _spread(scale) == _spread_of_scales(param)


def keeps_blocks(param: Tensor) -> bool:
    """Tell whether no block of 128 elements in a row of the whole `param` is divided between processes."""
    return not is_sharded(param) or _keeps_blocks(tuple(param.shape), *_spread(param))


def localised(tensors: Tensors) -> Tensors:
    """Return the local parts of tensors, with their places in the whole.

    A gradient that is spread in another way than its parameter, such as one that is still to be summed, is brought into
    its form first. This alone communicates, and not even this where gradients come from FSDP2.
    """
    if are_plain(tensors.params) or not any(map(is_sharded, tensors.params)):
        return tensors
    columns = [
        [_local_gradient(grad, param) for grad, param in zip(column, tensors.params, strict=True)]
        if column is tensors.grads
        else [local(tensor) for tensor in column]
        for column in tensors.columns
    ]
    places = [
        Place(place.param_index, _offsets(param), tuple(param.shape)) if is_sharded(param) else place
        for place, param in zip(tensors.places, tensors.params, strict=True)
    ]
    return Tensors(places, *columns)


def wrapped(part: Tensor, param: Tensor) -> Tensor:
    """Return the local part of a tensor as that of a whole that is like `param`."""
    if not is_sharded(param):
        return part
    stride = _stride(param.shape) if part.is_contiguous() else param.stride()
    return _wrapped(part, _spread(param), param.shape, stride)


def wrapped_scale(part: Tensor, param: Tensor) -> Tensor:
    """Return the local part of the scales of a coded moment of `param` as that of a whole."""
    if not is_sharded(param):
        return part
    shape = torch.Size(block_codes.scale_shape(param.shape))
    return _wrapped(part, _spread_of_scales(param), shape, _stride(shape))


def part_for(param: Tensor, whole: Tensor, *, is_scale: bool = False) -> Tensor:
    """Return the local part of a tensor of the shape of `param`, or of its scales, that may be spread in another way.

    A plain tensor is taken for the whole, and cut. Another DTensor is spread anew, which communicates.
    """
    if not is_sharded(param):
        return whole.full_tensor() if is_sharded(whole) else whole  # type: ignore[attr-defined]
    mesh, placements = spread = _spread_of_scales(param) if is_scale else _spread(param)
    if is_sharded(whole):
        if _spread(whole) == spread:
            return local(whole)
        if whole.device_mesh == mesh:  # type: ignore[attr-defined]
            return local(whole.redistribute(placements=placements))  # type: ignore[attr-defined]
        whole = whole.full_tensor()  # type: ignore[attr-defined]
    shape, offsets = _local_shape_and_offsets(tuple(whole.shape), mesh, placements)
    if shape == tuple(whole.shape):
        return whole
    for axis, (start, size) in enumerate(zip(offsets, shape, strict=True)):
        whole = whole.narrow(axis, min(start, whole.shape[axis]), size)
    return whole.clone(memory_format=torch.contiguous_format)  # not a view, which would keep the whole in memory


def _local_gradient(grad: Tensor, param: Tensor) -> Tensor:
    if not is_sharded(grad):
        return grad
    if _spread(grad) != _spread(param):
        grad = grad.redistribute(placements=_spread(param)[1])  # type: ignore[attr-defined]
    part = local(grad)
    return part if torch.compiler.is_compiling() else completed(part)


def _spread(tensor: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the mesh of processes that a DTensor is on, and how it is placed along each of its dimensions."""
    return tensor.device_mesh, tensor.placements


def _spread_of_scales(param: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """Return how the scales of a coded moment are spread: their rows are those of `param`, their columns its blocks."""
    mesh, placements = _spread(param)
    return mesh, _placements_of_scales(placements, is_vector=param.dim() == 1)


@cache
def _placements_of_scales(placements: tuple[Any, ...], *, is_vector: bool) -> tuple[Any, ...]:
    shard = sys.modules["torch.distributed.tensor"].Shard
    rows = None if is_vector else 0
    return tuple(placement if getattr(placement, "dim", rows) == rows else shard(1) for placement in placements)


def _offsets(param: Any) -> tuple[int, ...]:
    return _local_shape_and_offsets(tuple(param.shape), *_spread(param))[1] or (0,) * param.dim()


# torch.compile would make symbols of them, which no kernel takes. This is what torch.compiler.assume_constant_result
# does, but that loads the compiler, for which everyone would wait.
_offsets._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _local_shape_and_offsets(
    shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local_shape, offsets = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)
    return tuple(local_shape), tuple(offsets)


@cache
def _keeps_blocks(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...]) -> bool:
    """Tell whether each part of a row begins with a block. The last part may be shorter, or have none."""
    row_axis = 1 if len(shape) > 1 else 0
    cuts = [
        (placement, mesh.size(i))
        for i, placement in enumerate(placements)
        if getattr(placement, "dim", -1) >= row_axis and mesh.size(i) > 1
    ]
    rest = math.prod(shape[row_axis + 1 :])
    size, blocks = shape[row_axis], -(-math.prod(shape[row_axis:]) // BLOCK)
    for placement, parts in cuts:
        is_even = size % parts == 0 or len(cuts) == 1
        if placement.dim != row_axis or type(placement).__name__ != "Shard" or not is_even:
            return False
        size, blocks = -(-size // parts), -(-blocks // parts)
        if size * rest != blocks * BLOCK:
            return False
    return True


def _stride(shape: torch.Size) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _wrapped(part: Tensor, spread: tuple[Any, tuple[Any, ...]], shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    dtensor = sys.modules["torch.distributed.tensor"].DTensor
    whole: Tensor = dtensor.from_local(part, *spread, run_check=False, shape=shape, stride=stride)
    return whole
