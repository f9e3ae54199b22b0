"""Runs in one process alone, to which those of trainers that hand an optimizer slices of parameters are compared."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor.debug import CommDebugMode

from ademamix import AdEMAMix
from cases import make

STEPS = 3
ACCUMULATED = 2
CLIP = 0.5
BYTES = {"fp32": 12.0, "bf16": 6.2, "compact": 4.2}  # for each parameter; biases are fp32
DECAY = 0.1
SETTINGS = {"lr": 1e-2, "total_steps": 50, "alpha": 8.0}


class Model(nn.Sequential):
    """Four processes have slices that are large enough to be coded, also where parameters are cut one by one."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__(nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 256))

    def groups(self) -> list[dict[str, Any]]:
        """Return two groups: biases do not decay."""
        named = dict(self.named_parameters())
        return [
            {"params": [param for name, param in named.items() if "weight" in name], "weight_decay": DECAY},
            {"params": [param for name, param in named.items() if "bias" in name], "weight_decay": 0.0},
        ]


def batch(step: int, part: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10_000 * step + 100 * part + rank)
    return torch.randn(4, 768, generator=generator)


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return (model(inputs).float() - inputs[:, :256].float().abs()).square().mean()


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
    """Steps plain copies of the tensors that an optimizer steps, and counts the collectives of its steps."""

    def __init__(self, optimizer: AdEMAMix) -> None:
        self.copies: dict[tuple[Tensor, ...], tuple[list[Tensor], AdEMAMix]] = {}
        self.steps = 0
        self.collectives = 0
        optimizer.register_step_pre_hook(self.before)
        optimizer.register_step_post_hook(self.after)

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        stepped = tuple(param for _, param in slices_of(optimizer))
        if stepped not in self.copies:
            copies = [param.detach().clone() for param in stepped]
            names = ("weight_decay", "state_storage", "betas")
            groups = [
                {"params": [own], **{name: group[name] for name in names}}
                for own, (group, _) in zip(copies, slices_of(optimizer), strict=True)
            ]
            self.copies[stepped] = copies, make(groups, **SETTINGS)
        for own, param in zip(self.copies[stepped][0], stepped, strict=True):
            own.grad = param.grad.clone()
        self.communication = CommDebugMode()
        self.communication.__enter__()

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.communication.__exit__(None, None, None)
        self.collectives += self.communication.get_total_counts()
        stepped = tuple(param for _, param in slices_of(optimizer))
        copies, plain = self.copies[stepped]
        plain.step()
        assert all(map(torch.equal, stepped, copies))
        self.steps += len(stepped)


def slices_of(optimizer: AdEMAMix) -> Iterator[tuple[dict[str, Any], Tensor]]:
    for group in optimizer.param_groups:
        yield from ((group, param) for param in group["params"] if param.grad is not None)


def tolerance(storage: str, *, in_bf16: bool) -> float:
    """Return the distance that a run may have from an unsharded one with fp32 state.

    Processes add gradients up in another order, reduced storage rounds, and a model in bf16 computes with parameters
    that are rounded up in one run and down in another.
    """
    return {"fp32": 3e-6, "bf16": 0.01, "compact": 0.03}[storage] + (0.01 if in_bf16 else 0.0)


def distance(actual: list[Tensor], expected: list[Tensor], start: list[Tensor]) -> float:
    """Return how far parameters are from those expected, over the way that these have gone."""
    missed, gone = (
        sum(float((one - other).square().sum()) for one, other in zip(expected, others, strict=True))
        for others in (actual, start)
    )
    return (missed / gone) ** 0.5


def usual_distance(actual: list[Tensor], expected: list[Tensor], start: list[Tensor]) -> float:
    """Return the same without the hundredth of all elements that missed the most.

    After a few steps some second moments are next to nothing. However they are rounded, their parameters then jump, and
    a thousandth of all elements make nine tenths of the distance: how large it is depends on the CPU.
    """
    missed = torch.cat([(one - other).square().flatten() for one, other in zip(expected, actual, strict=True)])
    gone = sum(float((one - other).square().sum()) for one, other in zip(expected, start, strict=True))
    usual = missed.sort().values[: missed.numel() - missed.numel() // 100]
    return (float(usual.sum()) / gone) ** 0.5


def states_of(optimizer: AdEMAMix) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    for group in optimizer.param_groups:
        yield from ((param, optimizer.state[param]) for param in group["params"])
