"""Models under FSDP2, tensor parallelism, DDP and ZeroRedundancyOptimizer, with gradients from their own backward.

The same steps are taken on whole copies of the parameters, with the gradients that the processes have agreed on.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sharded_steps import assert_same_part
from torch import Tensor, distributed, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from ademamix import AdEMAMix
from ademamix.pytorch.gradient_release import gradient_release
from ademamix.pytorch.shards import local
from cases import make

STEPS = 3
BYTES = {"fp32": 12.0, "bf16": 6.2, "compact": 4.2}  # for each parameter; biases are fp32
STORAGES = tuple(BYTES)


class Model(nn.Sequential):
    """A hidden layer of 512: by tensor parallelism, the second weight is cut by columns, into whole blocks."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(96, 512, dtype=dtype), nn.ReLU(), nn.Linear(512, 66, dtype=dtype))


def batch(step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return this process's own part of a batch."""
    generator = torch.Generator().manual_seed(100 * step + distributed.get_rank())
    return torch.randn(8, 96, generator=generator).to(dtype)


def ways_to_shard() -> Iterator[tuple[str, nn.Module]]:
    world = distributed.get_world_size()
    line = init_device_mesh("cpu", (world,))
    yield "FSDP2", fully_sharded(Model(), line)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    yield "FSDP2 in mixed precision", fully_sharded(Model(), line, mp_policy=precision)
    yield "FSDP2 in bf16", fully_sharded(Model(torch.bfloat16), line)
    yield "FSDP2 with CPU offload", fully_sharded(Model(), line, offload_policy=CPUOffloadPolicy(pin_memory=False))
    yield "tensor parallel", tensor_parallel(Model(), line)
    if world == 4:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        yield "FSDP2 and tensor parallel", fully_sharded(tensor_parallel(Model(), square["tensor"]), square["data"])
        yield "FSDP2 with copies", fully_sharded(Model(), square)


def fully_sharded(model: Model, mesh: DeviceMesh, **policies: Any) -> nn.Module:
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **policies)
    fully_shard(model, mesh=mesh, **policies)
    return model


def tensor_parallel(model: Model, mesh: DeviceMesh) -> Model:
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


def loss_of(model: nn.Module, step: int, name: str) -> Tensor:
    dtype = next(model.parameters()).dtype
    own = batch(step, dtype)
    if "tensor parallel" in name:  # the processes that share a weight see the same examples
        own = torch.ones_like(own) * (step + 1)
    return model(own).float().square().mean()


def whole_copies(model: nn.Module) -> list[Tensor]:
    return [whole(param.detach()).clone().requires_grad_() for param in model.parameters()]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def follow(model: nn.Module, optimizer: Any, copies: list[Tensor], reference: Any, what: str) -> None:
    """Take steps, with clipped gradients, and the same on whole tensors."""
    for step in range(STEPS):
        loss_of(model, step, what).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for own, param in zip(copies, model.parameters(), strict=True):
            own.grad = whole(param.grad).clone()
        reference.step()
        with CommDebugMode() as communication:
            optimizer.step()
        assert communication.get_total_counts() == 0, what
        optimizer.zero_grad()
        for i, (param, own) in enumerate(zip(model.parameters(), copies, strict=True)):
            if isinstance(param, DTensor):
                assert_same_part(param.detach(), own.detach(), (what, step, i))
            else:
                assert torch.equal(param, own), (what, step, i)


def sharded(folder: Path) -> None:
    for storage, path in itertools.product(STORAGES, ({}, {"foreach": True})):
        for name, model in ways_to_shard():
            copies = whole_copies(model)
            settings = {"lr": 1e-2, "state_storage": storage, **path}
            optimizer, reference = make(model.parameters(), **settings), make(copies, **settings)
            follow(model, optimizer, copies, reference, f"{name}, {storage}, {path}")
            is_coded = optimizer.state[next(iter(model.parameters()))]["exp_avg_sq"].dtype == torch.uint8
            assert is_coded == (storage == "compact"), name
            elements = sum(local(param).numel() for param in model.parameters())
            found = optimizer.diagnostics()[0]
            assert found["reduced_bytes"] + found["full_bytes"] <= BYTES[storage] * elements, (name, storage)


def switched(folder: Path) -> None:
    """Switch a sharded run from AdamW and back, live and by a checkpoint."""
    line = init_device_mesh("cpu", (distributed.get_world_size(),))
    for storage in ("fp32", "compact"):
        model = fully_sharded(Model(), line)
        copies = whole_copies(model)
        adamws = [torch.optim.AdamW(params, lr=1e-2) for params in (model.parameters(), copies)]
        follow(model, adamws[0], copies, adamws[1], "AdamW")
        saved = get_optimizer_state_dict(model, adamws[0]), adamws[1].state_dict()
        loaded = [make(params, state_storage=storage) for params in (model.parameters(), copies)]
        set_optimizer_state_dict(model, loaded[0], saved[0])
        loaded[1].load_state_dict(saved[1])
        follow(model, loaded[0], copies, loaded[1], f"loaded from AdamW, {storage}")
        live = [AdEMAMix.from_adamw(adamw, total_steps=100, state_storage=storage) for adamw in adamws]
        follow(model, live[0], copies, live[1], f"from AdamW, {storage}")
        back = [optimizer.to_adamw() for optimizer in live]
        assert all(isinstance(state["exp_avg"], DTensor) for state in back[0].state.values())
        follow(model, back[0], copies, back[1], f"to AdamW, {storage}")


def whole_state_in_shards(folder: Path) -> None:
    """A state_dict of whole tensors, as one process saves it, loads into sharded parameters."""
    line = init_device_mesh("cpu", (distributed.get_world_size(),))
    for storage, dtype in itertools.product(STORAGES, (torch.float32, torch.bfloat16)):
        model = fully_sharded(Model(dtype), line)
        copies = whole_copies(model)
        settings = {"lr": 1e-2, "state_storage": storage, "master": "24bit"}
        reference = make(copies, **settings)
        for own in copies:
            own.grad = torch.ones_like(own)
        reference.step()
        for own, param in zip(copies, model.parameters(), strict=True):
            own.data.copy_(whole(param.detach()))
        optimizer = make(model.parameters(), **settings)
        optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
        follow(model, optimizer, copies, reference, storage)


def replicated(folder: Path) -> None:
    """DDP, with the state in each process, or divided among them parameter by parameter."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # which warns when it is imported

    for storage, divided in itertools.product(STORAGES, (False, True)):
        model = DistributedDataParallel(Model(torch.bfloat16))
        copies = whole_copies(model)
        settings = {"lr": 1e-2, "state_storage": storage, "alpha_warmup": 0, "beta3_warmup": 0}
        if divided:
            optimizer = ZeroRedundancyOptimizer(model.parameters(), AdEMAMix, **settings)
            for step in range(STEPS):
                loss_of(model, step, "DDP").backward()
                optimizer.step()
                optimizer.zero_grad()
            agreed = [param.detach().clone() for param in model.parameters()]
            for param in agreed:
                distributed.broadcast(param, src=0)
            assert all(map(torch.equal, agreed, model.parameters()))
            assert any((own != param).any() for own, param in zip(copies, agreed, strict=True))
        else:
            follow(model, make(model.parameters(), **settings), copies, make(copies, **settings), f"DDP, {storage}")


def released(folder: Path) -> None:
    """FSDP2 runs the hooks of sharded parameters when their gradients have been reduced."""
    line = init_device_mesh("cpu", (distributed.get_world_size(),))
    for storage, master in itertools.product(STORAGES, (None, "24bit")):
        ordinary, releasing = (fully_sharded(Model(torch.bfloat16), line) for _ in range(2))
        settings = {"lr": 1e-2, "state_storage": storage, "master": master}
        optimizers = [make(model.parameters(), **settings) for model in (ordinary, releasing)]
        gradient_release(releasing, optimizers[1])
        for step in range(STEPS):
            loss_of(ordinary, step, "FSDP2").backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            loss_of(releasing, step, "FSDP2").backward()
            assert all(param.grad is None for param in releasing.parameters())
        for param, other in zip(ordinary.parameters(), releasing.parameters(), strict=True):
            assert torch.equal(local(param.detach()), local(other.detach())), (storage, master)
            assert optimizers[1].state[other]["step"] == STEPS


def with_masters(folder: Path) -> None:
    """bf16 parameters of FSDP2 and DDP have the masters of whole ones, which other models of the kind take up."""
    line = init_device_mesh("cpu", (distributed.get_world_size(),))
    kinds = {
        "FSDP2": lambda model: fully_sharded(model, line),
        "FSDP2 with CPU offload": lambda model: fully_sharded(
            model, line, offload_policy=CPUOffloadPolicy(pin_memory=False)
        ),
        "DDP": DistributedDataParallel,
    }
    for storage, kind in itertools.product(STORAGES, kinds):
        models = [kinds[kind](Model(torch.bfloat16)) for _ in range(2)]
        copies = whole_copies(models[0])
        settings = {"lr": 1e-2, "state_storage": storage, "master": "24bit"}
        first, second, reference = (make(x, **settings) for x in (*(x.parameters() for x in models), copies))
        follow(models[0], first, copies, reference, f"{kind}, {storage}, with masters")
        second.load_master_parameters(first.master_parameters())
        for optimizer in (first, second):
            masters = [whole(master) for master in optimizer.master_parameters()]
            assert all(map(torch.equal, masters, reference.master_parameters())), (kind, storage)
        assert any((master != master.bfloat16()).any() for master in masters)
        second.load_master_parameters(reference.master_parameters())  # whole tensors are cut
        for param, own in zip(models[1].parameters(), copies, strict=True):
            assert torch.equal(whole(param.detach()), own.detach())


PATHS = ({"foreach": False, "fused": False}, {"foreach": True}, {"fused": True}, {})


def compiled(folder: Path) -> None:
    """A compiled step works on the local parts as well, in at most two graphs, and has the bits of whole tensors."""
    line = init_device_mesh("cpu", (distributed.get_world_size(),))
    master = {"master": "24bit"}
    for storage, path in {
        "fp32": {"foreach": True, **master},
        "bf16": {},
        "compact": {"fused": True, **master},
    }.items():
        model = fully_sharded(Model(torch.bfloat16), line)
        follow_compiled(model, "FSDP2", "aot_eager", {"state_storage": storage, **path})
    fused = {"state_storage": "compact", "fused": True}
    follow_compiled(tensor_parallel(Model(), line), "tensor parallel", "aot_eager", fused)
    follow_compiled(fully_sharded(Model(), line), "FSDP2", "inductor", fused)


def compiled_on_every_path(folder: Path) -> None:
    line = init_device_mesh("cpu", (distributed.get_world_size(),))
    for storage, path, dtype in itertools.product(STORAGES, PATHS, (torch.float32, torch.bfloat16)):
        follow_compiled(fully_sharded(Model(dtype), line), "FSDP2", "aot_eager", {"state_storage": storage, **path})


def follow_compiled(model: nn.Module, name: str, backend: str, settings: dict[str, Any]) -> None:
    what = f"{name}, {backend}, {settings}"
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    copies = whole_copies(model)
    optimizer, reference = (make(params, lr=1e-2, **settings) for params in (model.parameters(), copies))
    step = torch.compile(optimizer.step, fullgraph=True, backend=counter)
    for number in range(STEPS):
        loss_of(model, number, name).backward()
        for own, param in zip(copies, model.parameters(), strict=True):
            own.grad = whole(param.grad).clone()
        reference.step()
        step()
        optimizer.zero_grad()
    assert 1 <= counter.frame_count <= 2, what
    targets = {str(node.target) for graph in counter.graphs for node in graph.graph.nodes}
    assert not any("c10d" in target or "redistribute" in target for target in targets), what
    for param, own in zip(model.parameters(), copies, strict=True):
        same = (
            torch.equal if backend == "aot_eager" else torch.allclose
        )  # inductor computes coefficients in other digits
        assert same(whole(param.detach()), own.detach()), what
        assert optimizer.state[param]["step"] == STEPS, what
