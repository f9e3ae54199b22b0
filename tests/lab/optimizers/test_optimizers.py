"""The optimizers that a run can name: built from a config."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

from ademamix import formats
from ademamix.lab.config import ConfigError, Optimizer
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.optimizers.construction import build, constructor
from ademamix.pytorch.core import core
from cases import STORAGES


def one_group(**settings) -> list[dict]:
    return [{"params": [torch.ones(70, 70)], **settings}]


def test_every_name_of_the_config_can_be_built():
    for name in OPTIMIZERS:
        optimizer = build(Optimizer(name=name, lr=0.25), one_group(), total_steps=10)
        assert type(optimizer) is constructor(name)
        assert optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_repeat_the_defaults_of_the_constructors(name):
    row, parameters = OPTIMIZERS[name], inspect.signature(constructor(name)).parameters
    if row.betas is not None:
        assert row.betas == parameters["betas"].default
    if name not in ("adamw", "ademamix"):  # whose learning rates were tuned
        assert row.lr == parameters["lr"].default


def test_the_list_loads_no_framework():
    code = "import sys, ademamix.lab.config; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if row.has_schedules])
def test_the_horizon_is_passed_unless_the_settings_give_it(name):
    def horizon(settings: dict) -> int:
        config = Optimizer(name=name, lr=0.1, settings=settings)
        return build(config, one_group(), total_steps=20_000).param_groups[0]["total_steps"]

    assert horizon({}) == 20_000
    assert horizon({"total_steps": 30_000}) == 30_000


@pytest.mark.parametrize("storage", STORAGES)
def test_ademamix_in_every_storage(storage):
    config = Optimizer(name="ademamix", lr=0.1, settings={"state_storage": storage})
    (group,) = groups = one_group()
    optimizer = build(config, groups, total_steps=100)
    group["params"][0].grad = torch.ones(70, 70)
    optimizer.step()
    dtype = getattr(torch, formats.STORAGES[storage].slow)
    assert optimizer.state[group["params"][0]]["exp_avg_slow"].dtype == dtype


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if row.takes_beta3])
@pytest.mark.parametrize(
    ("settings", "betas"),
    [
        ({}, (0.9, 0.999, 0.9975)),
        ({"beta3": 0.99}, (0.9, 0.999, 0.99)),
        ({"betas": [0.8, 0.95], "beta3": 0.99}, (0.8, 0.95, 0.99)),
        ({"betas": [0.8, 0.95, 0.99]}, (0.8, 0.95, 0.99)),
    ],
)
def test_betas(name, settings, betas):
    optimizer = build(Optimizer(name=name, lr=0.1, settings=settings), one_group(), total_steps=10_000)
    assert optimizer.param_groups[0]["betas"] == betas


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lion", {"betas": [0.9, 0.99]}, "optimizer 'lion' has no setting 'betas': it takes alpha, beta, weight_decay"),
        ("adamw", {"alpha": 5.0}, "optimizer 'adamw' has no setting 'alpha': it takes amsgrad, betas, capturable, "),
        ("adamw", {"lr": 0.1}, "optimizer 'adamw' has no setting 'lr'"),
        ("adamw", {"total_steps": 10}, "optimizer 'adamw' has no setting 'total_steps'"),
        ("adamw", {"betas": [0.9, 0.99, 0.999]}, r"optimizer 'adamw': betas must be 2 numbers in \[0, 1\), got \(0.9"),
        ("adamw", {"fused": True, "foreach": True}, "optimizer 'adamw': `fused` and `foreach` cannot be"),
        ("ademamix", {"params": []}, "optimizer 'ademamix' has no setting 'params': it takes .* beta3, beta3_start, "),
        ("ademamix", {"alpha": -1.0}, "optimizer 'ademamix': alpha must be a finite number >= 0, got -1"),
        (
            "ademamix",
            {"betas": [0.9, 0.99, 0.999], "beta3": 0.99},
            r"beta3=0.99 goes with betas of \(beta1, beta2\), got betas=\(0.9, 0.99, 0.999\)",
        ),
        ("adamw", {"weight_decay": True}, "optimizer 'adamw': weight_decay must not be a truth value, got True"),
        ("ademamix", {"beta3": False}, "beta3 must not be a truth value, got False"),
        ("ademamix", {"betas": [True, 0.99]}, r"betas must not be a truth value, got \[True, 0.99\]"),
        ("lion", {"alpha": True}, "alpha must not be a truth value"),
        ("ad3emamix", {"beta3": 0.99}, "optimizer 'ad3emamix' has no setting 'beta3'"),
    ],
)
def test_settings_that_cannot_be(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        build(Optimizer(name=name, lr=0.1, settings=settings), one_group(), total_steps=10)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_weight_decay_of_the_group_wins(name):
    config = Optimizer(name=name, lr=0.1, settings={"weight_decay": 0.5})
    groups = [*one_group(), *one_group(weight_decay=0.0)]
    assert [g["weight_decay"] for g in build(config, groups, total_steps=10).param_groups] == [0.5, 0.0]


def test_adamw_is_fused_where_ademamix_is():
    config = Optimizer(name="adamw", lr=0.1)
    assert build(config, one_group(), total_steps=10).param_groups[0]["fused"] is (True if core else None)
    stated = Optimizer(name="adamw", lr=0.1, settings={"foreach": True})
    assert build(stated, one_group(), total_steps=10).param_groups[0]["fused"] is None


def test_adamw_in_low_precision_is_refused():
    bf16 = [{"params": [torch.ones(2, dtype=torch.bfloat16)]}]
    with pytest.raises(ConfigError, match=r"AdamW takes fp32 .*got torch\.bfloat16.* alpha=0"):
        build(Optimizer(name="adamw", lr=0.1), bf16, total_steps=100)
