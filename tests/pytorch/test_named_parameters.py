"""Checkpoints whose parameters have names: they load by name, in whatever order the optimizer has them."""

from __future__ import annotations

import copy

import pytest
import torch

from ademamix import AdEMAMix
from cases import make
from database import assert_same, params_of, run

NAMES = ("a.weight", "b.weight", "a.bias", "b.bias")


def named(order=NAMES, prefix=""):
    """Parameters of two shapes, so that a wrong match is not always one of shape."""
    found = dict(zip(NAMES, params_of((3, 2), (3, 2), (4,), (4,)), strict=True))
    return [(prefix + name, found[name]) for name in order]


def grouped(*groups, prefix=""):
    found = dict(named())
    return [
        {"params": [(prefix + name, found[name]) for name in names], "weight_decay": 0.1 * i}
        for i, names in enumerate(groups)
    ]


def params_by_name(groups):
    return {name.split("_orig_mod.")[-1]: param for group in groups for name, param in group["params"]}


def checkpoint(groups, build=make, **settings):
    groups = copy.deepcopy(groups)
    params = params_by_name(groups)
    optimizer = build(groups, **settings)
    run([params[name] for name in NAMES], optimizer)
    return {name: optimizer.state[param] for name, param in params.items()}, optimizer.state_dict()


ARRANGEMENTS = {
    "another order": (grouped(NAMES), grouped(NAMES[::-1])),
    "in two groups": (grouped(NAMES[:2], NAMES[2:]), grouped(NAMES[1::-1], NAMES[:1:-1])),
    "groups swapped": (grouped(NAMES[:2], NAMES[2:]), grouped(NAMES[2:], NAMES[:2])),
    "wrapped": (grouped(NAMES, prefix="module._orig_mod."), grouped(NAMES[::-1])),
}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("build", [make, torch.optim.AdamW])
def test_states_follow_the_names(arrangement, build):
    saved_groups, own_groups = ARRANGEMENTS[arrangement]
    states, saved = checkpoint(saved_groups, build)
    own_groups = copy.deepcopy(own_groups)
    params = params_by_name(own_groups)
    optimizer = make(own_groups)
    before = copy.deepcopy(saved)
    optimizer.load_state_dict(saved)
    assert_same(saved, before)
    for name, state in states.items():
        for key, value in state.items():
            assert_same(optimizer.state[params[name]][key], value)
    decays = {name: group["weight_decay"] for group in saved["param_groups"] for name in group["param_names"]}
    for group in optimizer.param_groups:
        for name in group["param_names"]:
            assert group["weight_decay"] == decays.get(name, 0.0)


def test_names_that_disagree_are_refused():
    _, saved = checkpoint(grouped(NAMES))
    renamed = [(name.replace("b.", "c."), param) for name, param in named()]
    optimizer = make(renamed)
    with pytest.raises(ValueError, match=r"b.bias, b.weight there alone: c.bias, c.weight here alone.*param_names"):
        optimizer.load_state_dict(saved)
    assert not optimizer.state
    del saved["param_groups"][0]["param_names"]
    optimizer.load_state_dict(saved)  # by position
    assert optimizer.schedule()[0]["step"] == 5


def test_other_groups_and_shapes_are_refused():
    _, saved = checkpoint(grouped(NAMES[:2], NAMES[2:]))
    with pytest.raises(ValueError, match="same parameters in other groups"):
        make(grouped(NAMES[:3], NAMES[3:])).load_state_dict(saved)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        make(grouped(NAMES)).load_state_dict(saved)
    _, saved = checkpoint(grouped(NAMES))
    resized = [(name, torch.nn.Parameter(torch.ones(7)) if name == "a.bias" else param) for name, param in named()]
    with pytest.raises(ValueError, match=r"shape \(4,\) but its parameter has \(7,\)"):
        make(resized[::-1]).load_state_dict(saved)


def test_groups_may_use_the_same_names():
    layers = [torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)]
    optimizer = make([{"params": layer.named_parameters()} for layer in layers])
    run([param for layer in layers for param in layer.parameters()], optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    other = AdEMAMix([{"params": list(layer.named_parameters())[::-1]} for layer in layers], total_steps=10, alpha=5.0)
    with pytest.warns(UserWarning, match="schedule was replaced"):
        other.load_state_dict(saved)
    for layer in layers:
        assert_same(other.state[layer.bias]["exp_avg_slow"], optimizer.state[layer.bias]["exp_avg_slow"])
