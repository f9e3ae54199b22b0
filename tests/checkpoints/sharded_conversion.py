"""A scenario for groups of processes: what they have written together is converted by one of them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ademamix import AdEMAMix
from ademamix.checkpoints import convert

BEFORE, AFTER = 5, 20


def converted(folder: Path) -> None:
    """AdamW on a sharded model, saved, converted, continued with alpha = 0: the same parameters as without all that."""
    warnings.simplefilter("ignore")
    model, adamw = _sharded(torch.optim.AdamW)
    _steps(model, adamw, BEFORE)
    dcp.save(_states(model, adamw), checkpoint_id=folder / "adamw")
    if distributed.get_rank() == 0:
        convert(folder / "adamw", folder / "ademamix", alpha=0.0)
    distributed.barrier()
    other, ademamix = _sharded(AdEMAMix, alpha_warmup=0, beta3_warmup=0)
    states = _states(other, ademamix)
    dcp.load(states, checkpoint_id=folder / "ademamix")
    set_model_state_dict(other, states["model"])
    set_optimizer_state_dict(other, ademamix, states["optimizer"])
    assert ademamix.param_groups[0]["alpha"] == 0.0
    _steps(model, adamw, AFTER)
    _steps(other, ademamix, AFTER)
    for param, expected in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(param.full_tensor(), expected.full_tensor(), rtol=1e-6, atol=1e-6)


def _sharded(build: Any, **settings: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    return model, build(model.parameters(), lr=1e-2, weight_decay=0.1, **settings)


def _steps(model: nn.Module, optimizer: Any, count: int) -> None:
    inputs = torch.linspace(-1, 1, 48).view(8, 6)
    for _ in range(count):
        model.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def _states(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
