"""Steps on DTensors, compared bit for bit with the same steps on whole tensors in one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from ademamix.formats import LEAST_VECTOR
from ademamix.pytorch import shards
from cases import STORAGES, make, on_paths

PATHS = {
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "chosen": {},
    "fused-capturable": {"fused": True, "capturable": True},
}
# Rows that 4 processes do not share evenly, fewer rows than processes, three dimensions, a bias, and a slice of many.
SHAPES: list[tuple[int, ...]] = [(66, 512), (3, 2048), (12, 4, 128), (9,), (LEAST_VECTOR,)]
STEPS = 3


def layouts() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield meshes and placements for as many processes as there are."""
    world = distributed.get_world_size()
    line = init_device_mesh("cpu", (world,), mesh_dim_names=("all",))
    yield "rows", line, (Shard(0),)
    yield "columns", line, (Shard(1),)
    yield "copies", line, (Replicate(),)
    if world == 4:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        yield "rows and columns", square, (Shard(0), Shard(1))
        yield "rows of rows", square, (Shard(0), Shard(0))
        yield "copies of columns", square, (Replicate(), Shard(1))


def spread(whole: Tensor, mesh: Any, placements: tuple[Any, ...]) -> DTensor:
    """Return a whole tensor, the same in all processes, as a DTensor. Dimensions that it does not have are not cut.

    It is a copy: one that is not cut at all would otherwise share its memory.
    """
    own = tuple(Replicate() if getattr(p, "dim", 0) >= whole.dim() else p for p in placements)
    return distribute_tensor(whole.clone(), mesh, own, src_data_rank=None)


def values(index: int, shape: tuple[int, ...], step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * index + step)
    return torch.randn(shape, generator=generator) * 0.1


def gradients(shapes: list[tuple[int, ...]], step: int, dtype: torch.dtype, *, with_nan: bool) -> list[Tensor]:
    found = [values(i, shape, step).to(dtype) for i, shape in enumerate(shapes)]
    if with_nan:
        found[0][-1, 5], found[0][0, 200], found[1][1, 1000] = torch.nan, torch.inf, -torch.inf
    return found


def assert_same_part(sharded: DTensor, whole: Tensor, what: Any) -> None:
    expected = shards.local(distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None))
    assert torch.equal(shards.local(sharded), expected), what


def compare_steps(mesh: Any, placements: tuple[Any, ...], dtype: torch.dtype, what: str, **settings: Any) -> None:
    """Step sharded and whole parameters side by side, one whole one among the sharded ones."""
    skips = settings.get("nonfinite") == "skip"
    whole = [values(i, shape, -1).to(dtype).requires_grad_() for i, shape in enumerate(SHAPES)]
    sharded = [torch.nn.Parameter(spread(param.detach(), mesh, placements)) for param in whole]
    sharded[3] = whole[3].detach().clone().requires_grad_()
    optimizers = [make(params, lr=1e-2, **settings) for params in (whole, sharded)]
    for step in range(STEPS):
        for i, grad in enumerate(gradients(SHAPES, step, dtype, with_nan=skips)):
            whole[i].grad = grad
            sharded[i].grad = grad.clone() if i == 3 else spread(grad, mesh, placements)
        optimizers[0].step()
        versions = {param: param._version for param in sharded if shards.is_sharded(param)}
        with CommDebugMode() as communication:
            optimizers[1].step()
        assert communication.get_total_counts() == 0, what
        assert all(param._version > before for param, before in versions.items()), what
    for i, (param, other) in enumerate(zip(whole, sharded, strict=True)):
        state, others = optimizers[0].state[param], optimizers[1].state[other]
        if i == 3:
            assert torch.equal(param, other), what
            continue
        assert_same_part(other.detach(), param.detach(), (what, i))
        assert set(state) == set(others), what
        for key in state:
            if key.startswith("exp_avg") or key == "correction":
                assert state[key].dtype == others[key].dtype, (what, i, key)
                assert_same_part(others[key], state[key], (what, i, key))
            elif key != "skipped":
                assert torch.equal(state[key], others[key]), (what, i, key)


def every_layout(folder: Path) -> None:
    for name, mesh, placements in layouts():
        for path, storage in on_paths(PATHS, STORAGES):
            what = f"{name}, {storage}, {path}"
            compare_steps(mesh, placements, torch.float32, what, state_storage=storage, **PATHS[path])
            if path in ("single", "foreach", "fused"):
                settings = {"state_storage": storage, "nonfinite": "skip", **PATHS[path]}
                for master in (None, "24bit"):
                    in_bf16 = f"{what}, bf16, master {master}"
                    compare_steps(mesh, placements, torch.bfloat16, in_bf16, master=master, **settings)


def cut_through_blocks(folder: Path) -> None:
    """A block cannot have two scales: moments that a cut goes through stay fp32, and words are still the whole's."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for path, dtype in itertools.product(("single", "foreach", "fused"), (torch.float32, torch.bfloat16)):
        whole = values(0, (64, 300), -1).to(dtype).requires_grad_()
        sharded = torch.nn.Parameter(spread(whole.detach(), mesh, (Shard(1),)))
        reference = make([whole], lr=1e-2, master="24bit", **PATHS[path])
        optimizer = make([sharded], lr=1e-2, state_storage="compact", master="24bit", **PATHS[path])
        for step in range(STEPS):
            whole.grad = values(0, (64, 300), step).to(dtype)
            sharded.grad = spread(whole.grad, mesh, (Shard(1),))
            reference.step()
            optimizer.step()
        assert_same_part(sharded.detach(), whole.detach(), (path, dtype))
        for master, expected in zip(optimizer.master_parameters(), reference.master_parameters(), strict=True):
            assert_same_part(master, expected, (path, dtype, "master"))
        found = optimizer.diagnostics()[0]
        assert (found["reduced_bytes"], found["full_bytes"]) == (0, 12 * sharded.to_local().numel())


def partial_gradients(folder: Path) -> None:
    """The gradient of a replicated parameter may be a sum that has not been taken, as in sequence parallelism."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    whole = values(0, (66, 512), -1).requires_grad_()
    sharded = torch.nn.Parameter(spread(whole.detach(), mesh, (Replicate(),)))
    reference, optimizer = make([whole]), make([sharded])
    own = values(distributed.get_rank(), (66, 512), 0)
    sharded.grad = DTensor.from_local(own, mesh, (Partial(),))
    whole.grad = sum(values(rank, (66, 512), 0) for rank in range(distributed.get_world_size()))
    reference.step()
    optimizer.step()
    assert_same_part(sharded.detach(), whole.detach(), "summed")


def foreign_gradients(folder: Path) -> None:
    mesh, other = (init_device_mesh("cpu", shape) for shape in ((2,), (2, 1)))
    param = torch.nn.Parameter(spread(torch.ones(4, 4), mesh, (Shard(0),)))
    optimizer = make([param])
    param.grad = spread(torch.ones(4, 4), other, (Shard(0), Replicate()))
    with pytest.raises(RuntimeError, match="Give it a DTensor on the same mesh"):
        optimizer.step()
    assert not optimizer.state
    param.grad = spread(torch.ones(4, 4), mesh, (Shard(0),))
    optimizer.step()
    param.grad = spread(torch.ones(4, 4), other, (Shard(0), Replicate()))
    with pytest.raises(RuntimeError, match="Give it a DTensor on the same mesh"):
        optimizer.step()
    assert optimizer.state[param]["step"] == 1
