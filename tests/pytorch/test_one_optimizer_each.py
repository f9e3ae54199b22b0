"""One optimizer for each parameter, as for steps in backward hooks or on the host: each has random words of its own."""

from __future__ import annotations

import copy
import io
import subprocess
import sys

import pytest
import torch
from torch import nn

from ademamix import AdEMAMix
from cases import STORAGES

SETTINGS = {"lr": 1e-2, "total_steps": 100}


def layers(count=3, width=64):
    """Layers that begin with the same values, so that only random words tell them apart."""
    torch.manual_seed(0)
    first = nn.Linear(width, width, bias=False, dtype=torch.bfloat16)
    return nn.Sequential(*[copy.deepcopy(first) for _ in range(count)])


def optimizers_of(model, storage, **settings):
    """Construct them as torchao's CPUOffloadOptimizer does."""
    return [AdEMAMix([{"params": p}], state_storage=storage, **SETTINGS, **settings) for p in model.parameters()]


def in_hooks(model, optimizers):
    by_param = dict(zip(model.parameters(), optimizers, strict=True))

    def step(param):
        by_param[param].step()
        param.grad = None

    for param in by_param:
        param.register_post_accumulate_grad_hook(step)


def train(model, steps):
    for step in steps:
        torch.manual_seed(step)
        model(torch.randn(8, 64, dtype=torch.bfloat16)).square().mean().backward()


@pytest.mark.parametrize("storage", STORAGES)
def test_each_has_words_of_its_own(storage):
    model = layers()
    for param, optimizer in zip(model.parameters(), optimizers_of(model, storage), strict=True):
        param.grad = torch.ones_like(param)
        optimizer.step()
    first, *others = (param.detach() for param in model.parameters())
    assert all((first != other).float().mean() > 0.1 for other in others)
    shared = layers()
    for param, optimizer in zip(shared.parameters(), optimizers_of(shared, storage, rounding_seed=0), strict=True):
        param.grad = torch.ones_like(param)
        optimizer.step()
    first, *others = (param.detach() for param in shared.parameters())
    assert all(torch.equal(first, other) for other in others)  # or the test above would prove nothing


@pytest.mark.parametrize("storage", STORAGES)
def test_a_resumed_run_has_the_same_bits(storage):
    """Although its optimizers were not the first ones that the process has constructed."""
    model = layers()
    optimizers = optimizers_of(model, storage)
    in_hooks(model, optimizers)
    train(model, range(3))
    saved = io.BytesIO()
    torch.save([model.state_dict(), *(optimizer.state_dict() for optimizer in optimizers)], saved)
    train(model, range(3, 6))

    saved.seek(0)
    weights, *states = torch.load(saved, weights_only=True)
    resumed = layers()
    resumed.load_state_dict(weights)
    continued = optimizers_of(resumed, storage)
    for optimizer, own, state in zip(continued, optimizers, states, strict=True):
        assert optimizer.param_groups[0]["rounding_seed"] != own.param_groups[0]["rounding_seed"]
        optimizer.load_state_dict(state)
    in_hooks(resumed, continued)
    train(resumed, range(3, 6))
    for param, own in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(param, own)


def test_a_program_has_the_same_seeds_every_time_and_the_first_is_that_of_all_other_optimizers():
    program = """
import torch
from ademamix import AdEMAMix

def seeds(*groups, **settings):
    optimizer = AdEMAMix([{"params": [torch.ones(2) for _ in range(g)]} for g in groups], total_steps=9, **settings)
    return [group["rounding_seed"] for group in optimizer.param_groups]

print(seeds(2), seeds(1), seeds(1, 1), seeds(0, 1), seeds(1), seeds(3), seeds(1, rounding_seed=0), seeds(1))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    ordinal = 1 << 32
    assert said == f"[0] [0] [0, 0] [0, {ordinal}] [{2 * ordinal}] [0] [0] [{3 * ordinal}]\n"


def test_a_seed_that_was_stated_stays():
    def seed(group=(), **settings):
        (own,) = AdEMAMix([{"params": torch.ones(2), **dict(group)}], total_steps=9, **settings).param_groups
        return own["rounding_seed"]

    assert seed(rounding_seed=0) == seed(group={"rounding_seed": 0}) == 0
    assert seed(rounding_seed=5) == seed(group={"rounding_seed": 5}) == 5


def test_groups_that_are_added_later_have_the_seed_of_the_constructor():
    optimizer = AdEMAMix([torch.ones(2)], total_steps=9)
    optimizer.add_param_group({"params": torch.ones(2)})
    assert optimizer.param_groups[1]["rounding_seed"] == 0
    assert {type(group["rounding_seed"]) for group in optimizer.param_groups} == {int}
    assert type(optimizer.defaults["rounding_seed"]) is int


def test_a_switch_from_adamw_gives_each_words_of_its_own():
    switched = [AdEMAMix.from_adamw(torch.optim.AdamW([torch.ones(2)]), total_steps=9) for _ in range(2)]
    first, second = (optimizer.param_groups[0]["rounding_seed"] for optimizer in switched)
    assert first != second
