"""A model on several processes: copies that average their gradients (DDP), or one divided among them (FSDP2).

A checkpoint has whole tensors, whoever writes it, so that a run continues on any number of processes.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from ademamix import AdEMAMix
from ademamix.pytorch import shards


def copied(model: nn.Module) -> nn.Module:
    """Return the model as DDP calls it: backward passes average the gradients of all processes."""
    device = next(model.parameters()).device
    return nn.parallel.DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def averages(model: nn.Module, *, now: bool) -> contextlib.AbstractContextManager[None]:
    """Have gradients of the block averaged at its end; if not `now`, together with those of a later block.

    A sharded model averages those of each block.
    """
    if now or not isinstance(model, nn.parallel.DistributedDataParallel):
        return contextlib.nullcontext()
    later: contextlib.AbstractContextManager[None] = model.no_sync()
    return later


def shard(model: nn.Module) -> None:
    """Divide the parameters of a model among the processes, each layer for itself."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (torch.distributed.get_world_size(),))
    for layers in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(value: Any, *, keep: bool = True) -> Any:
    """Return nested dicts and lists with whole tensors in place of sharded ones, None in place of those not to `keep`.

    All processes must call it, for it gathers one tensor after another.

    >>> whole({"weights": [torch.ones(2)], "step": 3})
    {'weights': [tensor([1., 1.])], 'step': 3}
    """
    if isinstance(value, dict):
        return {key: whole(entry, keep=keep) for key, entry in value.items()}
    if isinstance(value, list):
        return [whole(entry, keep=keep) for entry in value]
    if not shards.is_sharded(value):
        return value
    gathered = _gathered(value)
    return gathered if keep else None


def _gathered(value: Any) -> Tensor:
    """Return a whole tensor. Its bytes are gathered, for gloo knows no 16-bit integers, which compact state has."""
    from torch.distributed.tensor import DTensor

    if any(placement.is_partial() for placement in value.placements):  # a norm, of which each process has its part
        summed: Tensor = value.full_tensor()
        return summed
    parts = shards.local(value.detach()).contiguous().unsqueeze(-1).view(torch.uint8)
    shape = (*value.shape, value.element_size())
    stride = torch.empty(shape, device="meta").stride()
    spread = DTensor.from_local(
        parts, value.device_mesh, value.placements, run_check=False, shape=torch.Size(shape), stride=stride
    )
    return spread.full_tensor().view(value.dtype).squeeze(-1)


def like(param: Tensor, value: Tensor) -> Tensor:
    """Return a tensor of the shape of `param`, sharded as that is: if it is not, the tensor itself."""
    if not shards.is_sharded(param) or shards.is_sharded(value):
        return value
    return shards.wrapped(shards.part_for(param, value), param)


def load_model(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a state_dict of whole tensors."""
    own = model.state_dict()
    if not any(map(shards.is_sharded, own.values())):
        model.load_state_dict(state)
        return
    model.load_state_dict({name: like(own[name], value) if name in own else value for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state_dict of whole tensors; AdEMAMix divides them itself, for it knows those that are coded."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if not isinstance(optimizer, AdEMAMix) and any(map(shards.is_sharded, params)):
        state = {
            **state,
            "state": {i: _entries_like(params[i], entries) for i, entries in state["state"].items()},
        }
    optimizer.load_state_dict(state)


def _entries_like(param: Tensor, entries: dict[str, Any]) -> dict[str, Any]:
    return {
        name: like(param, value) if isinstance(value, Tensor) and value.shape == param.shape else value
        for name, value in entries.items()
    }
