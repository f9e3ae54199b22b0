"""Slices of flattened parameters, as FSDP1, ZeRO and Megatron hand them to an optimizer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from ademamix.formats import LEAST_VECTOR
from cases import make

STEPS = 3


def trained(storage: str, *, use_orig_params: bool) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FSDP1 is deprecated, and says so
        model = FullyShardedDataParallel(
            nn.Linear(512, 2 * LEAST_VECTOR // 128), device_id=torch.device("cpu"), use_orig_params=use_orig_params
        )
    optimizer = make(model.parameters(), lr=1e-2, state_storage=storage)
    for step in range(STEPS):
        torch.manual_seed(step)
        model(torch.randn(8, 512)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def fsdp1(folder: Path) -> None:
    """FSDP1 has one slice of all parameters, or a slice of each; the long ones are coded, and trained as in fp32."""
    for use_orig_params in (False, True):
        model, exact = trained("fp32", use_orig_params=use_orig_params)
        other, coded = trained("compact", use_orig_params=use_orig_params)
        (found,), (full,) = coded.diagnostics(), exact.diagnostics()
        elements = sum(param.numel() for param in other.parameters())
        assert found["reduced_bytes"] + found["full_bytes"] < 4.2 * elements
        assert (full["reduced_bytes"], full["full_bytes"]) == (0, 12 * elements)
        assert abs(found["update_norm"] / full["update_norm"] - 1) < 0.01
        for param, expected in zip(other.parameters(), model.parameters(), strict=True):
            distance = (param - expected).norm() / (STEPS * 1e-2 * max(param.numel(), 1) ** 0.5)
            assert distance < 0.02  # of the distance that they can have moved
    assert FullyShardedDataParallel.optim_state_dict(model, exact)["state"]
    with pytest.raises(AssertionError, match="dtype"):  # FSDP1 takes all that is in a state for slices of the parameter
        FullyShardedDataParallel.optim_state_dict(other, coded)


def zero1(folder: Path) -> None:
    """Each process has the state of a slice of all parameters, and sends what has become of it to the others."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    for storage, bytes_per_element in {"fp32": 12.0, "bf16": 6.0, "compact": 4.2}.items():
        generator = torch.Generator().manual_seed(1)
        flat = torch.randn(world * LEAST_VECTOR + 100, generator=generator)
        whole = flat.clone()
        own = torch.tensor_split(flat, world)[rank].clone()
        slices, reference = make([own], lr=1e-2, state_storage=storage), make([whole], lr=1e-2, state_storage="fp32")
        for _ in range(STEPS):
            whole.grad = torch.randn(flat.shape, generator=generator)
            own.grad = torch.tensor_split(whole.grad, world)[rank].clone()
            reference.step()
            slices.step()
        found = slices.diagnostics()[0]
        assert found["full_bytes"] + found["reduced_bytes"] <= bytes_per_element * own.numel()
        assert (found["full_bytes"] == 0) == (storage != "fp32")
        gathered = [torch.empty_like(piece) for piece in torch.tensor_split(flat, world)]
        distributed.all_gather(gathered, own)
        distance = (torch.cat(gathered) - whole).norm() / (whole - flat).norm()
        assert distance == 0 if storage == "fp32" else 0 < distance < 0.02, (storage, distance)
