"""Bad input is named, open settings are filled in, and settings that often diverge are warned about."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from ademamix import AdEMAMix

BAD = [
    ({"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
    ({"lr": math.nan}, "lr must be a finite number >= 0, got nan"),
    ({"lr": math.inf}, "lr must be a finite number >= 0, got inf"),
    ({"lr": 10**400}, "lr must be a finite number >= 0, got 1000"),
    ({"eps": 10**400}, "eps must be a finite number >= 0, got 1000"),
    ({"slow_clip": 10**400}, "slow_clip must be .*, got 1000"),
    ({"lr": "fast"}, "lr must be a number or a 1-element Tensor, got 'fast'"),
    ({"lr": torch.ones(2)}, r"Tensor lr must be 1-element, got shape \(2,\)"),
    ({"lr": torch.tensor(math.nan)}, r"lr must be a finite number >= 0, got tensor\(nan\)"),
    ({"betas": (0.9,)}, r"betas must be \(beta1, beta2\) or \(beta1, beta2, beta3\), got \(0.9,\)"),
    ({"betas": (0.9, 0.99, 0.999, 0.9999)}, "betas must be .*, got .*0.9999"),
    ({"betas": 0.9}, "betas must be .*, got 0.9"),
    ({"betas": (1.0, 0.999)}, r"beta1 must be a number in \[0, 1\), got 1.0"),
    ({"betas": (-0.1, 0.999)}, r"beta1 must be a number in \[0, 1\), got -0.1"),
    ({"betas": (0.9, math.nan)}, r"beta2 must be a number in \[0, 1\), got nan"),
    ({"betas": (0.9, 0.999, 1.0)}, r"beta3 must be a number in \[0, 1\), got 1.0"),
    ({"betas": (0.9, 0.999, "x")}, r"beta3 must be a number in \[0, 1\), got 'x'"),
    ({"beta3_start": 1.0}, r"beta3_start must be a number in \[0, 1\), got 1.0"),
    ({"alpha": -1.0}, "alpha must be a finite number >= 0, got -1.0"),
    ({"alpha": math.nan}, "alpha must be a finite number >= 0, got nan"),
    ({"eps": -1e-8}, "eps must be a finite number >= 0, got -1e-08"),
    ({"weight_decay": -1}, "weight_decay must be a finite number >= 0, got -1"),
    ({"slow_clip": True}, "slow_clip must be a finite number > 0, or None for no bound, got True"),
    ({"slow_clip": 0.0}, "slow_clip must be a finite number > 0, or None for no bound, got 0.0"),
    ({"slow_clip": math.nan}, "slow_clip must be a finite number > 0, or None for no bound, got nan"),
    ({"total_steps": 0}, "total_steps must be an integer >= 1 or None, got 0"),
    ({"total_steps": -5}, "total_steps must be an integer >= 1 or None, got -5"),
    ({"total_steps": 1e4 + 0.5}, "total_steps must be an integer >= 1 or None, got 10000.5"),
    ({"total_steps": math.nan}, "total_steps must be an integer >= 1 or None, got nan"),
    ({"total_steps": -math.inf}, "total_steps must be an integer >= 1 or None, got -inf"),
    (
        {"total_steps": "opened"},
        "total_steps must be an integer >= 1, None, or 'open' for a run whose end is not planned yet, got 'opened'",
    ),
    (
        {"total_steps": 10**400},
        "total_steps must be at most 9,007,199,254,740,992, where clocks end, got 1000",
    ),
    ({"total_steps": True}, "total_steps must be an integer >= 1 or None, got True"),
    ({"alpha_warmup": -1}, "alpha_warmup must be an integer >= 0 or None, got -1"),
    ({"beta3_warmup": 2.5}, "beta3_warmup must be an integer >= 0 or None, got 2.5"),
    ({"nonfinite": "ignore"}, r"nonfinite must be one of \('propagate', 'skip'\), got 'ignore'"),
    ({"state_storage": "int4"}, "state_storage must be one of .*, got 'int4'"),
    ({"rounding_seed": -1}, r"rounding_seed must be an integer in \[0, 2\*\*63\), got -1"),
    ({"rounding_seed": 0.5}, r"rounding_seed must be an integer in \[0, 2\*\*63\), got 0.5"),
    ({"stochastic_rounding": "yes"}, "stochastic_rounding must be True, False or None, got 'yes'"),
    ({"stochastic_rounding": True, "differentiable": True}, "cannot be used with differentiable=True"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input_is_named(settings, message):
    param = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        AdEMAMix([param], **settings)
    optimizer = AdEMAMix([param], total_steps=100)
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [torch.ones(2, requires_grad=True)], **settings})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fused": True, "foreach": True}, "`fused` and `foreach` cannot be `True` together"),
        ({"fused": True, "differentiable": True}, "`fused` does not support `differentiable`"),
    ],
)
def test_paths_that_exclude_each_other(settings, message):
    with pytest.raises(RuntimeError, match=message):
        AdEMAMix([torch.ones(2, requires_grad=True)], total_steps=10, **settings)


def group_of(**settings):
    return AdEMAMix([torch.ones(2, requires_grad=True)], **settings).param_groups[0]


def test_a_horizon_fills_in_what_is_open():
    group = group_of(total_steps=10_000)
    assert group["betas"] == (0.9, 0.999, 0.9975)
    assert (group["alpha_warmup"], group["beta3_warmup"], group["beta3_start"]) == (10_000, 10_000, 0.9)
    group = group_of(total_steps=np.int64(10_000), betas=(0.8, 0.99, 0.9), alpha_warmup=0)
    assert group["betas"] == (0.8, 0.99, 0.9)
    assert (group["alpha_warmup"], group["beta3_warmup"], group["beta3_start"]) == (0, 10_000, 0.8)


def test_a_group_has_its_own_horizon():
    first, second = (torch.ones(2, requires_grad=True) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "total_steps": 2_000, "betas": (0.5, 0.9)}]
    optimizer = AdEMAMix(groups, total_steps=10_000, alpha=3.0)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999, 0.9975)
    assert optimizer.param_groups[1]["betas"] == (0.5, 0.9, 1 - 1 / 80)
    assert optimizer.param_groups[1]["alpha_warmup"] == 2_000


def test_no_horizon_warns_once_and_says_what_to_pass():
    groups = [{"params": [torch.ones(2, requires_grad=True)]} for _ in range(3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        AdEMAMix(groups)
    assert len(caught) == 1
    assert "total_steps=" in str(caught[0].message)
    assert "alpha_warmup=0" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_memory_that_outlives_the_run_warns():
    with pytest.warns(UserWarning, match=r"beta3 = 0.9999 remembers about 10,000 steps.*total_steps = 5,000.*0.995"):
        group_of(betas=(0.9, 0.999, 0.9999), total_steps=5_000)


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha_warmup": 0, "beta3_warmup": 0},
        {"alpha": 0.0},
        {"total_steps": 5},
        {"total_steps": 20_000, "betas": (0.9, 0.999, 0.9999)},
    ],
    ids=str,
)
def test_settings_that_need_no_warning(settings):
    group_of(**settings)  # pytest turns warnings into errors


@pytest.mark.parametrize(("betas", "beta3", "warmup"), [((0.9, 0.999), 0.9999, 100_000), ((0, 0.95, 0.99), 0.99, 1000)])
def test_an_open_run_warms_up_over_ten_times_its_memory(betas, beta3, warmup):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = group_of(betas=betas, total_steps="open", alpha_warmup=7)
    assert group["betas"] == (*betas[:2], beta3)
    assert (group["total_steps"], group["alpha_warmup"], group["beta3_warmup"]) == ("open", 7, warmup)
