"""Calls that torch.optim.AdamW understands are understood here, or refused with a sentence that says what to write."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch

from ademamix import AdEMAMix, recommend
from cases import make
from database import params_of, run


def group_of(**settings):
    return AdEMAMix(params_of((2,)), **settings).param_groups[0]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_positional_arguments_after_betas_are_refused_by_name(count):
    positional = (1e-6, 0.1, False)[:count]
    with pytest.raises(TypeError, match=r"after betas by name.*AdEMAMix\(params, lr, betas, eps=1e-06"):
        AdEMAMix(params_of((2,)), 1e-3, (0.9, 0.999), *positional)


def test_the_signature_stays_readable():
    arguments = inspect.signature(AdEMAMix).parameters
    assert list(arguments)[:4] == ["params", "lr", "betas", "alpha"]
    assert all(argument.kind != argument.VAR_POSITIONAL for argument in arguments.values())
    assert arguments["alpha"].kind == inspect.Parameter.KEYWORD_ONLY


def test_amsgrad():
    first, second = params_of((2,), (3,))
    optimizer = make([{"params": [first], "amsgrad": False}], amsgrad=False)
    with pytest.raises(ValueError, match=r"amsgrad=True.*leave it out"):
        make([first], amsgrad=True)
    group = {"params": [second], "amsgrad": True}
    with pytest.raises(ValueError, match=r"amsgrad=True.*leave it out"):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    assert group == {"params": [second], "amsgrad": True}
    run([first], optimizer, range(2))
    other = make([first])
    other.load_state_dict(optimizer.state_dict())


def test_tensor_betas():
    betas = (torch.tensor(0.9, dtype=torch.float64), torch.tensor([0.99], dtype=torch.float64))
    group = group_of(betas=betas, total_steps=1000)
    assert group["betas"] == (0.9, 0.99, 0.975)
    assert all(type(beta) is float for beta in group["betas"])
    with pytest.raises(ValueError, match=r"beta1 must be a number in \[0, 1\), got tensor\(1.5"):
        group_of(betas=(torch.tensor(1.5), 0.99), total_steps=1000)
    with pytest.raises(ValueError, match="beta1 requires grad"):
        group_of(betas=(torch.tensor(0.5, requires_grad=True), 0.99), total_steps=1000)


@pytest.mark.parametrize("steps", [1e4, np.float32(1e4), np.float64(1e4), torch.tensor(10_000)])
def test_whole_floats_count_steps(steps):
    group = group_of(total_steps=steps, alpha_warmup=steps)
    assert group["total_steps"] == group["alpha_warmup"] == group["beta3_warmup"] == 10_000
    assert type(group["total_steps"]) is type(group["alpha_warmup"]) is int
    assert recommend(1e4) == recommend(10_000)


def test_an_infinite_horizon_is_open_and_no_choice_of_the_user():
    """Lightning's `estimated_stepping_batches` is infinite where max_epochs is."""
    optimizer = AdEMAMix(params_of((2,)), total_steps=math.inf)
    group = optimizer.param_groups[0]
    assert group["total_steps"] == "open"
    assert group["betas"][2] == 0.9999
    louder = AdEMAMix(params_of((2,)), total_steps=math.inf, alpha=6.0)
    with pytest.warns(UserWarning, match="schedule was replaced"):
        louder.load_state_dict(optimizer.state_dict())
    assert louder.param_groups[0]["alpha_warmup"] == 100_000
    saved = make(params_of((2,)), total_steps=500).state_dict()
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["total_steps"] == 500
    with pytest.raises(ValueError, match=r"alpha_warmup must be .*, got inf"):
        group_of(total_steps=10, alpha_warmup=math.inf)
    with pytest.raises(ValueError, match=r"total_steps must be .*, got inf"):
        recommend(math.inf)


def test_groups_stay_the_callers_dicts():
    params = params_of((2,), (3,), (4,))
    groups = [{"params": [params[0]], "name": "first"}, {"params": params[1:2], "lr": 0.5}]
    optimizer = make(groups, lr=0.1)
    added = {"params": params[2]}
    optimizer.add_param_group(added)
    assert [group is own for group, own in zip(optimizer.param_groups, [*groups, added], strict=True)] == [True] * 3
    assert groups[0]["name"] == "first"
    before = [param.detach().clone() for param in params]
    for group in (*groups, added):
        group["lr"] = 0.0
    run(params, optimizer, range(1))
    assert all(torch.equal(param, old) for param, old in zip(params, before, strict=True))


def test_a_group_that_is_refused_is_left_as_it_was():
    first, second = params_of((2,), (3,))
    optimizer = make([first])
    unusual = torch.nn.Parameter(torch.ones(2).to(torch.float8_e5m2))
    refused = [
        ({"params": [second], "alpha": -1.0}, "alpha must be"),
        ({"params": [first]}, "some parameters appear in more than one parameter group"),
        ({"params": [second, unusual], "fused": True}, "`fused=True` is not possible"),
    ]
    for group, message in refused:
        before = dict(group)
        with pytest.raises((ValueError, RuntimeError), match=message):
            optimizer.add_param_group(group)
        assert group == before
    assert len(optimizer.param_groups) == 1
    with pytest.raises(TypeError, match="param_group must be a dict"):
        optimizer.add_param_group([second])


def test_groups_that_were_used_before_get_a_horizon_of_their_own():
    groups = [{"params": params_of((2,)), "betas": (0.8, 0.99), "alpha_warmup": 7}]
    make(groups, total_steps=1000)
    (group,) = make(groups, total_steps=2000).param_groups
    assert group["betas"] == (0.8, 0.99, 1 - 1 / 80)
    assert (group["total_steps"], group["alpha_warmup"], group["beta3_warmup"]) == (2000, 7, 2000)


def test_groups_of_adamw_serve_here():
    groups = [{"params": params_of((2,)), "lr": 0.5}]
    torch.optim.AdamW(groups)
    (group,) = make(groups, total_steps=2000).param_groups
    assert (group["lr"], group["betas"]) == (0.5, (0.9, 0.999, 1 - 1 / 80))
    with pytest.raises(ValueError, match="L2 weight decay"):
        make(torch.optim.Adam(params_of((2,)), weight_decay=0.1).param_groups)
