"""Accelerate with FSDP2: its own loop over sharded parameters, clipped and accumulated, saved and resumed.

Accelerate takes FSDP for GPUs alone, and DDP for CPUs. All that it does for FSDP2 runs on a CPU as well, once it is
told that this is such a run: that is the one thing that is done in its place here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from sharded_models import Model, whole, whole_copies
from sharded_steps import assert_same_part
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from ademamix import AdEMAMix
from ademamix.pytorch.integrations.accelerate import total_steps
from ademamix.pytorch.shards import local
from cases import STORAGES, make

EPOCHS, ACCUMULATED, LARGEST_NORM = 3, 2, 0.5


def prepared(storage: str) -> tuple[Any, ...]:
    """A model, its optimizer and its batches, as Accelerate prepares them."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"  # asked for, although the processes are connected already
    AcceleratorState._reset_state()
    PartialState._reset_state()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000, cpu_ram_efficient_loading=False
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    accelerator.state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    data = TensorDataset(torch.randn(48, 96, generator=torch.Generator().manual_seed(0)))
    dataloader = accelerator.prepare(DataLoader(data, 4))
    steps = total_steps(accelerator, dataloader, EPOCHS)
    model = Model()
    optimizer = AdEMAMix(model.parameters(), lr=1e-2, total_steps=steps, state_storage=storage)
    return accelerator, *accelerator.prepare(model, optimizer), dataloader


def train(accelerator: Any, model: Any, optimizer: Any, dataloader: Any, epochs: int, copies: Any = None) -> None:
    """Train, and take the same steps on whole copies of the parameters with the gradients that were agreed on."""
    for _ in range(epochs):
        for (batch,) in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), LARGEST_NORM)
                if accelerator.sync_gradients and copies is not None:
                    params, reference = copies
                    for own, param in zip(params, model.parameters(), strict=True):
                        own.grad = whole(param.grad).clone()
                    reference.step()
                optimizer.step()
                optimizer.zero_grad()


def trained_and_resumed(folder: Path) -> None:
    for storage in STORAGES:
        accelerator, model, optimizer, dataloader = parts = prepared(storage)
        assert all(isinstance(param, DTensor) for group in optimizer.param_groups for param in group["params"])
        copies = whole_copies(model)
        steps = EPOCHS * len(dataloader) // ACCUMULATED
        reference = make(copies, lr=1e-2, total_steps=steps, state_storage=storage)
        train(*parts, epochs=1, copies=(copies, reference))
        saved = folder / storage
        accelerator.save_state(str(saved))
        train(*parts, epochs=EPOCHS - 1, copies=(copies, reference))
        (schedule,) = optimizer.optimizer.schedule()
        assert schedule["step"] == steps == optimizer.param_groups[0]["total_steps"]

        parts = prepared(storage)
        _, resumed, continued, _ = parts
        parts[0].load_state(str(saved))
        assert continued.optimizer.schedule()[0]["step"] == steps // EPOCHS
        train(*parts, epochs=EPOCHS - 1)
        for own, param, other in zip(copies, model.parameters(), resumed.parameters(), strict=True):
            assert_same_part(param.detach(), own.detach(), storage)
            assert torch.equal(local(param.detach()), local(other.detach())), storage
            state, expected = continued.optimizer.state[other], reference.state[own]
            for key in filter(lambda key: key.startswith("exp_avg"), expected):
                assert state[key].dtype == expected[key].dtype, (storage, key)
                assert_same_part(state[key], expected[key], (storage, key))
