"""Models under DeepSpeed's ZeRO 1, 2 and 3, whose slices of flattened parameters are on a CPU.

Each run is compared with an unsharded one of the same batches, and each step of a slice with that of a plain tensor.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor.debug import CommDebugMode

from ademamix import AdEMAMix
from ademamix.pytorch.integrations.deepspeed import ademamix_of
from cases import make

deepspeed.utils.logger.setLevel("ERROR")
STEPS = 3
ACCUMULATED = 2
CLIP = 0.5
BYTES = {"fp32": 12.0, "bf16": 6.2, "compact": 4.2}  # for each parameter; biases are fp32
# How far the parameters may be from those of an unsharded run with fp32 state, over the way that these have gone.
# Processes add gradients up in another order; reduced storage rounds, and so does a model in bf16.
DISTANCES = {"fp32": 3e-6, "bf16": 0.01, "compact": 0.03}
ROUNDED = {"bf16": 0.005}
SETTINGS = {"lr": 1e-2, "total_steps": 50, "alpha": 8.0}
# Beside the stage: what is to be trained in bf16, with fp32 copies in the slices, and what is offloaded.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    },
    "offload": {"zero_force_ds_cpu_optimizer": False},
}


class Model(nn.Sequential):
    """The slice of a process of four is large enough to be coded."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__(nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 256))

    def groups(self) -> list[dict[str, Any]]:
        """Return two groups: biases do not decay."""
        named = dict(self.named_parameters())
        return [
            {"params": [param for name, param in named.items() if "weight" in name], "weight_decay": 0.1},
            {"params": [param for name, param in named.items() if "bias" in name], "weight_decay": 0.0},
        ]


def batch(step: int, part: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10_000 * step + 100 * part + rank)
    return torch.randn(4, 512, generator=generator)


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return (model(inputs).float() - inputs[:, :256].float().abs()).square().mean()


def started(stage: int, way: str, storage: str, seed: int = 0) -> Any:
    model = Model(seed)
    zero: dict[str, Any] = {"stage": stage}
    if way == "offload":
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": ACCUMULATED,
        "gradient_clipping": CLIP,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
        **WAYS[way],
    }
    optimizer = make(model.groups(), state_storage=storage, **SETTINGS)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def step(engine: Any, number: int) -> int:
    """Take a step, and return the number of collectives that follow the backward pass."""
    dtype = engine.module[0].weight.dtype
    for part in range(ACCUMULATED):
        engine.backward(loss_of(engine, batch(number, part, distributed.get_rank()).to(dtype)))
        with CommDebugMode() as communication:
            engine.step()
    return communication.get_total_counts()


def parameters_of(engine: Any) -> list[Tensor]:
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        return [param.detach().float().clone() for param in engine.module.parameters()]


def unsharded(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], AdEMAMix]:
    """Return parameters before and after a run in this process alone, with the batches of all, and its optimizer.

    The model computes in `dtype`; what is trained are fp32 copies of its parameters.
    """
    model = Model().to(dtype)
    trained = copy.deepcopy(model).float()
    before = [param.detach().clone() for param in trained.parameters()]
    optimizer = make(trained.groups(), **SETTINGS)
    parts = list(itertools.product(range(ACCUMULATED), range(distributed.get_world_size())))
    for number in range(STEPS):
        model.load_state_dict(trained.state_dict())
        for part, rank in parts:
            loss_of(model, batch(number, part, rank).to(dtype)).backward()
            for param, computed in zip(trained.parameters(), model.parameters(), strict=True):
                share = computed.grad.float() / len(parts)
                param.grad = share if param.grad is None else param.grad + share
                computed.grad = None
        nn.utils.clip_grad_norm_(trained.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return before, [param.detach() for param in trained.parameters()], optimizer


class Watched:
    """Steps plain copies of the slices that an optimizer is given, and counts the collectives of its steps."""

    def __init__(self, optimizer: AdEMAMix) -> None:
        self.copies: dict[Tensor, tuple[Tensor, AdEMAMix]] = {}
        self.steps = 0
        self.collectives = 0
        optimizer.register_step_pre_hook(self.before)
        optimizer.register_step_post_hook(self.after)

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for group, slice_ in slices_of(optimizer):
            if slice_ not in self.copies:
                own = slice_.detach().clone()
                names = ("weight_decay", "state_storage")
                self.copies[slice_] = own, make([own], **SETTINGS, **{name: group[name] for name in names})
            self.copies[slice_][0].grad = slice_.grad.clone()
        self.communication = CommDebugMode()
        self.communication.__enter__()

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.communication.__exit__(None, None, None)
        self.collectives += self.communication.get_total_counts()
        for _, slice_ in slices_of(optimizer):
            own, plain = self.copies[slice_]
            plain.step()
            assert slice_.dim() == 1
            assert torch.equal(slice_, own)
            self.steps += 1


def slices_of(optimizer: AdEMAMix) -> Iterator[tuple[dict[str, Any], Tensor]]:
    for group in optimizer.param_groups:
        yield from ((group, param) for param in group["params"] if param.grad is not None)


def cells() -> Iterator[tuple[int, str, str]]:
    for stage, way, storage in itertools.product((1, 2, 3), WAYS, BYTES):
        if way == "plain" or storage != "bf16":
            yield stage, way, storage


def trained(folder: Path) -> None:
    """Every stage takes the steps of an unsharded run, and the optimizer those of plain tensors, on its own."""
    runs = {way: unsharded(torch.bfloat16 if way == "bf16" else torch.float32) for way in WAYS}
    for stage, way, storage in cells():
        what = (stage, way, storage)
        before, after, reference = runs[way]
        engine = started(stage, way, storage)
        watched = Watched(engine.basic_optimizer)
        around_it = sum(step(engine, number) for number in range(STEPS))
        assert around_it > 0 or distributed.get_world_size() == 1, what
        assert (watched.steps, watched.collectives) == (2 * STEPS, 0), what
        assert distance(parameters_of(engine), after, before) < max(DISTANCES[storage], ROUNDED.get(way, 0)), what
        with ademamix_of(engine) as optimizer:
            assert optimizer.schedule() == reference.schedule(), what
            elements = sum(param.numel() for param, _ in states_of(optimizer))
            found = optimizer.diagnostics()
        assert sum(group["reduced_bytes"] + group["full_bytes"] for group in found) <= BYTES[storage] * elements, what
        assert (found[0]["full_bytes"] == 0) == (storage != "fp32"), what
        engine.destroy()


def distance(actual: list[Tensor], expected: list[Tensor], start: list[Tensor]) -> float:
    """Return how far parameters are from those expected, over the way that these have gone."""
    missed, gone = (
        sum(float((one - other).square().sum()) for one, other in zip(expected, others, strict=True))
        for others in (actual, start)
    )
    return (missed / gone) ** 0.5


def resumed(folder: Path) -> None:
    """DeepSpeed's checkpoint continues with the same bits, in another engine that began with other parameters."""
    for stage, way, storage in cells():
        what = (distributed.get_world_size(), stage, way, storage)
        tag = "-".join(map(str, what))
        engine, other = (started(stage, way, storage, seed) for seed in (0, 1))
        for number in range(STEPS):
            step(engine, number)
        engine.save_checkpoint(str(folder), tag=tag)
        other.load_checkpoint(str(folder), tag=tag)
        for number in range(STEPS, 2 * STEPS):
            step(engine, number)
            step(other, number)
        assert all(map(torch.equal, parameters_of(engine), parameters_of(other))), what
        with ademamix_of(engine) as optimizer, ademamix_of(other) as continued:
            for (param, state), (same, same_state) in zip(states_of(optimizer), states_of(continued), strict=True):
                assert torch.equal(param, same), what
                assert state["slow_step"] == 2 * STEPS, what
                assert state.keys() == same_state.keys(), what
                assert all(torch.equal(state[key], same_state[key]) for key in state), what
        engine.destroy()
        other.destroy()


def forgotten(folder: Path) -> None:
    """The slow average can be emptied, also under ZeRO-3, whose groups are empty between steps."""
    for stage in (2, 3):
        engine = started(stage, "plain", "compact")
        step(engine, 0)
        with ademamix_of(engine) as optimizer:
            optimizer.reset_slow()
        step(engine, 1)
        with ademamix_of(engine) as optimizer:
            clocks = {(group["step"], group["slow_step"]) for group in optimizer.schedule()}
        assert clocks == {(2, 1)}, stage
        assert any(group["params"] for group in engine.basic_optimizer.param_groups) == (stage == 2)
        engine.destroy()


def states_of(optimizer: AdEMAMix) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    for group in optimizer.param_groups:
        yield from ((param, optimizer.state[param]) for param in group["params"])
