"""Checkpoints of torch.distributed.checkpoint, saved by one number of processes and loaded by others.

The first group of processes saves, the others load what it has saved. All compare with an optimizer of whole tensors.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from sharded_steps import assert_same_part, gradients, values
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from ademamix import AdEMAMix
from ademamix.pytorch.distributed_checkpoint import AnyStorage
from ademamix.pytorch.parameter_state import values_of
from ademamix.pytorch.shards import local
from cases import make

SHAPES: list[tuple[int, ...]] = [(66, 512), (3, 2048), (9,), (128, 300)]  # uneven parts, empty ones, both
STEPS = 3


class Case(NamedTuple):
    saved: str  # the storage that the checkpoint has
    loaded: str  # and the one that it is loaded into
    flat: bool = False
    asynchronous: bool = False
    masters: tuple[str | None, str | None] = (None, None)  # of bf16 parameters: those saved, and those asked for

    @property
    def planner(self) -> Any:
        return AnyStorage() if self.saved != self.loaded or self.masters[0] != self.masters[1] else None

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if any(self.masters) else torch.float32

    @property
    def options(self) -> StateDictOptions:
        return StateDictOptions(flatten_optimizer_state_dict=self.flat)


CASES = [
    Case("compact", "compact"),
    Case("compact", "compact", flat=True, asynchronous=True),
    Case("compact", "fp32", asynchronous=True),
    Case("fp32", "compact"),
    Case("bf16", "bf16"),
    Case("bf16", "compact"),
    Case("fp32", "fp32", flat=True, asynchronous=True),
    Case("compact", "compact", masters=("24bit", "24bit")),
    Case("fp32", "fp32", flat=True, masters=("24bit", "24bit")),
    Case("compact", "fp32", masters=("24bit", None)),
    Case("compact", "compact", masters=(None, "24bit")),
]


class Weights(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(values(i, shape, -1).to(dtype) for i, shape in enumerate(SHAPES))

    def forward(self) -> torch.Tensor:
        return torch.stack([weight.sum() for weight in self.weights]).sum()


def sharded_model(columns: bool = False, dtype: torch.dtype = torch.float32) -> Weights:
    """Shard a model by rows, or by columns: those of the last weight are then cut through blocks."""
    model = Weights(dtype)
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    by_columns = (lambda param: Shard(1) if param.dim() > 1 else Shard(0)) if columns else None
    fully_shard(model, mesh=mesh, shard_placement_fn=by_columns)
    return model


def optimizer_of(model: torch.nn.Module, storage: str, *, flat: bool = False, master: str | None = None) -> AdEMAMix:
    """Return an optimizer with two groups, and one without parameters, which torch cannot flatten."""
    first, *others = model.parameters()
    groups = [{"params": [first], "lr": 0.02}, {"params": others}]
    return make(
        groups if flat else [groups[0], {"params": []}, groups[1]],
        lr=0.01,
        betas=(0.9, 0.99, 0.999),
        state_storage=storage,
        master=master,
    )


def take_steps(model: torch.nn.Module, optimizer: AdEMAMix, steps: range) -> None:
    for step in steps:
        dtype = next(model.parameters()).dtype
        for param, grad in zip(model.parameters(), gradients(SHAPES, step, dtype, with_nan=False), strict=True):
            param.grad = grad if not isinstance(param, DTensor) else part_of(grad, param)
        optimizer.step()
        optimizer.zero_grad()


def part_of(whole: torch.Tensor, like: DTensor) -> DTensor:
    return torch.distributed.tensor.distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def folder_of(folder: Path, case: Case) -> str:
    return str(folder / f"{case.saved}-{case.flat}-{case.asynchronous}-{case.loaded}-{case.masters}")


def save(folder: Path, case: Case) -> tuple[torch.nn.Module, AdEMAMix]:
    model = sharded_model(dtype=case.dtype)
    optimizer = optimizer_of(model, case.saved, flat=case.flat, master=case.masters[0])
    take_steps(model, optimizer, range(STEPS))
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=case.options),
    }
    if case.asynchronous:
        saving = checkpoint.async_save(state, checkpoint_id=folder_of(folder, case))
        take_steps(model, optimizer, range(STEPS, STEPS + 2))  # training continues, and must not reach what is saved
        saving.result()
    else:
        checkpoint.save(state, checkpoint_id=folder_of(folder, case))
    return model, optimizer


def load(folder: Path, case: Case, model: torch.nn.Module, planner: Any) -> AdEMAMix:
    optimizer = optimizer_of(model, case.loaded, flat=case.flat, master=case.masters[1])
    before = [param.detach().clone() for param in model.parameters()]
    state = {"optimizer": get_optimizer_state_dict(model, optimizer, options=case.options)}
    for param, old in zip(model.parameters(), before, strict=True):  # torch has taken a step to create state
        assert torch.equal(param.detach(), old)
        assert optimizer.state[param]["step"] == optimizer.state[param]["slow_step"] == 0
    state["model"] = get_model_state_dict(model)
    checkpoint.load(state, checkpoint_id=folder_of(folder, case), planner=planner)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=case.options)
    return optimizer


def compare(folder: Path, case: Case, model: torch.nn.Module) -> None:
    """Load a checkpoint, and compare it with a state_dict of whole tensors that was loaded; then step both."""
    optimizer = load(folder, case, model, case.planner)
    whole = Weights(case.dtype)
    before = optimizer_of(whole, case.saved, master=case.masters[0])
    take_steps(whole, before, range(STEPS))
    reference = optimizer_of(whole, case.loaded, master=case.masters[1])
    reference.load_state_dict(before.state_dict())
    for more in (0, 1):
        if more:
            take_steps(model, optimizer, range(STEPS, STEPS + 1))
            take_steps(whole, reference, range(STEPS, STEPS + 1))
        for i, (param, other) in enumerate(zip(model.parameters(), whole.parameters(), strict=True)):
            same(param.detach(), other.detach(), (case, i))
            state, expected = optimizer.state[param], reference.state[other]
            assert set(state) == set(expected), (case, i)
            assert ("correction" in state) == any(case.masters), (case, i)
            for key in expected:
                assert state[key].dtype == expected[key].dtype, (case, i, key)
                same(state[key], expected[key], (case, i, key, more))


def same(found: Any, expected: torch.Tensor, what: Any) -> None:
    if isinstance(found, DTensor):
        assert_same_part(found, expected, what)
    else:
        assert torch.equal(found, expected), what


def resharded(folder: Path) -> None:
    is_first = not (folder / "saved").exists()
    for case in CASES:
        if is_first:
            save(folder, case)
        compare(folder, case, sharded_model(dtype=case.dtype))
        if distributed.get_world_size() == 1:
            compare(folder, case, Weights(case.dtype))
    distributed.barrier()
    (folder / "saved").touch()


def codes_without_scales(folder: Path) -> None:
    """Without the planner, codes would become values."""
    case = Case("compact", "fp32")
    save(folder, case)
    with pytest.raises(ValueError, match="AnyStorage"):
        load(folder, case, sharded_model(), None)


def corrections_that_were_not_loaded(folder: Path) -> None:
    """Without the planner, corrections that the optimizer does not expect are passed over, which is said."""
    case = Case("fp32", "fp32", masters=("24bit", None))
    save(folder, case)
    with pytest.warns(UserWarning, match="masters begin at the values of the parameters"):
        optimizer = load(folder, case, sharded_model(dtype=case.dtype), None)
    assert not any(local(state["correction"]).any() for state in optimizer.state.values())


class Killing(DefaultSavePlanner):
    """Kills this process when half of the tensors that it has to save are written."""

    def resolve_data(self, write_item: Any) -> Any:
        self.left = getattr(self, "left", len(self.plan.items)) - 1
        if self.left < len(self.plan.items) // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().resolve_data(write_item)


def torn(folder: Path) -> None:
    """The first group saves, and one of it is killed in the midst of the next save; the second group continues."""
    case = Case("compact", "compact")
    newer = folder / "newer"
    if newer.exists():
        assert list(newer.glob("__1_*"))  # what was written
        assert not (newer / ".metadata").exists()
        compare(folder, case, sharded_model())
        return
    model, optimizer = save(folder, case)
    distributed.barrier()
    take_steps(model, optimizer, range(STEPS, STEPS + 1))
    is_victim = distributed.get_rank() == 1
    with pytest.raises((RuntimeError, checkpoint.CheckpointException), match=r"Connection closed|reset by peer"):
        checkpoint.save(
            {"optimizer": get_optimizer_state_dict(model, optimizer)},
            checkpoint_id=str(newer),
            planner=Killing() if is_victim else None,
        )
    assert not is_victim
    os._exit(0)  # the group is broken, and has nothing to wait for


def columns(folder: Path) -> None:
    """Load what was sharded by rows into parameters that are cut by columns, some of them through blocks."""
    for case in (Case("compact", "compact"), Case("fp32", "compact")):
        save(folder, case)
        model = sharded_model(columns=True)
        optimizer = load(folder, case, model, AnyStorage())
        whole = Weights()
        saved = optimizer_of(whole, case.saved)
        take_steps(whole, saved, range(STEPS))
        expected = optimizer_of(whole, case.loaded)
        expected.load_state_dict(saved.state_dict())
        is_cut = distributed.get_world_size() > 1
        assert optimizer.state[model.weights[0]]["exp_avg_sq"].dtype == torch.uint8
        assert optimizer.state[model.weights[3]]["exp_avg_sq"].dtype == (torch.float32 if is_cut else torch.uint8)
        for param, other in zip(model.parameters(), whole.parameters(), strict=True):
            source = saved if is_cut and param is model.weights[3] else expected
            for key in ("exp_avg", "exp_avg_slow", "exp_avg_sq"):
                same(values_of(optimizer.state[param], key), values_of(source.state[other], key), (case, key))


def one_optimizer_each(folder: Path) -> None:
    """Optimizers of one parameter each are saved together, as torchtitan does, and resume with their random words."""
    flat = StateDictOptions(flatten_optimizer_state_dict=True)

    def optimizers_of(model: torch.nn.Module) -> list[AdEMAMix]:
        return [AdEMAMix([param], lr=0.01, total_steps=9, state_storage="compact") for param in model.parameters()]

    def train(model: torch.nn.Module, optimizers: list[AdEMAMix], step: int) -> None:
        for param, grad in zip(model.parameters(), gradients(SHAPES, step, torch.float32, with_nan=False), strict=True):
            param.grad = part_of(grad, param)
        for optimizer in optimizers:
            optimizer.step()

    model, resumed = sharded_model(), sharded_model()
    optimizers = optimizers_of(model)
    train(model, optimizers, step=0)
    saved = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizers, options=flat),
    }
    checkpoint.save(saved, checkpoint_id=folder / "each")
    train(model, optimizers, step=1)

    continued = optimizers_of(resumed)
    state = {
        "model": get_model_state_dict(resumed),
        "optimizer": get_optimizer_state_dict(resumed, continued, options=flat),
    }
    checkpoint.load(state, checkpoint_id=folder / "each")
    set_model_state_dict(resumed, state["model"])
    set_optimizer_state_dict(resumed, continued, state["optimizer"], options=flat)
    seeds = [[own.param_groups[0]["rounding_seed"] for own in group] for group in (optimizers, continued)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == len(SHAPES)
    train(resumed, continued, step=1)
    for first, second, param, other in zip(
        optimizers, continued, model.parameters(), resumed.parameters(), strict=True
    ):
        assert torch.equal(local(param.detach()), local(other.detach()))
        for key, value in first.state[param].items():
            assert torch.equal(local(value), local(second.state[other][key])), key
