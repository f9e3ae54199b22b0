"""The optimizers that a run can name: built from a config, and switched in the middle of a run."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from ademamix import AdEMAMix
from ademamix.lab.bench.measure import state_bytes
from ademamix.lab.config import ConfigError, Optimizer
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.optimizers.registry import build, constructor, switch
from ademamix.pytorch.core import core
from ademamix.reference import ReferenceAdEMAMix


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


@pytest.mark.parametrize("name", ["ademamix", "convex-mix", "ad3emamix", "adamw-scheduled-beta1"])
def test_the_horizon_is_passed_unless_the_settings_give_it(name):
    def horizon(settings: dict) -> int:
        config = Optimizer(name=name, lr=0.1, settings=settings)
        return build(config, one_group(), total_steps=20_000).param_groups[0]["total_steps"]

    assert horizon({}) == 20_000
    assert horizon({"total_steps": 30_000}) == 30_000


@pytest.mark.parametrize("storage", ["fp32", "bf16", "compact"])
def test_ademamix_in_every_storage(storage):
    config = Optimizer(name="ademamix", lr=0.1, settings={"state_storage": storage})
    (group,) = groups = one_group()
    optimizer = build(config, groups, total_steps=100)
    group["params"][0].grad = torch.ones(70, 70)
    optimizer.step()
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "compact": torch.int16}
    assert optimizer.state[group["params"][0]]["exp_avg_slow"].dtype == dtypes[storage]


@pytest.mark.parametrize("name", ["ademamix", "convex-mix"])
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


def test_switch_to_ademamix_and_back():
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(3, 4)), random.normal(size=(90, 3, 4))
    point = torch.tensor(start, dtype=torch.float32)
    groups = [{"params": [point], "weight_decay": 0.1}]
    optimizer = build(Optimizer(name="adamw", lr=0.01), groups, total_steps=90)
    settings = {"alpha": 3.0, "beta3": 0.9, "alpha_warmup": 10}
    to_ademamix = Optimizer(name="ademamix", lr=0.005, settings=settings)
    oracle = ReferenceAdEMAMix(start, lr=0.01, alpha=0.0, weight_decay=0.1)
    for step in range(90):
        if step == 30:
            optimizer = switch(optimizer, to_ademamix, total_steps=60)
            assert isinstance(optimizer, AdEMAMix)
            assert optimizer.param_groups[0]["total_steps"] == 60
            oracle.lr, oracle.alpha, oracle.T_alpha, oracle.betas = 0.005, 3.0, 10, (0.9, 0.999, 0.9)
            oracle.slow_step, oracle.m2 = 0, np.zeros_like(start)
        if step == 60:
            optimizer = switch(optimizer, Optimizer(name="adamw", lr=0.002), total_steps=30)
            assert type(optimizer) is torch.optim.AdamW
            oracle.lr, oracle.alpha = 0.002, 0.0
        point.grad = torch.tensor(gradients[step], dtype=torch.float32)
        optimizer.step()
        assert_allclose(point, oracle.update(gradients[step]), rtol=1e-5, atol=1e-5)


def test_settings_of_a_switch():
    adamw_to = build(Optimizer(name="adamw", lr=0.1), one_group(), total_steps=100)
    with pytest.raises(ConfigError, match="optimizer 'ademamix' has no setting 'betas': it takes alpha, alpha_warmup"):
        switch(adamw_to, Optimizer(name="ademamix", lr=0.1, settings={"betas": [0.9, 0.99]}), total_steps=50)
    with pytest.raises(ConfigError, match="optimizer 'ademamix': alpha must be a finite number >= 0, got -1"):
        switch(adamw_to, Optimizer(name="ademamix", lr=0.1, settings={"alpha": -1}), total_steps=50)
    with pytest.raises(ConfigError, match="alpha must not be a truth value"):
        switch(adamw_to, Optimizer(name="ademamix", lr=0.1, settings={"alpha": True}), total_steps=50)
    optimizer = build(Optimizer(name="ademamix", lr=0.1), one_group(), total_steps=100)
    with pytest.raises(ConfigError, match="optimizer 'adamw' has no setting 'eps': here it takes none"):
        switch(optimizer, Optimizer(name="adamw", lr=0.1, settings={"eps": 1e-6}), total_steps=50)
    own_horizon = Optimizer(name="ademamix", lr=0.1, settings={"total_steps": 70, "alpha_warmup": None})
    (group,) = switch(adamw_to, own_horizon, total_steps=50).param_groups
    assert (group["total_steps"], group["alpha_warmup"], group["beta3_warmup"]) == (70, 70, 0)


@pytest.mark.parametrize(("old", "new"), [("adamw", "adamw"), ("adamw", "lion"), ("lion", "ademamix")])
def test_other_switches_are_refused(old, new):
    optimizer = build(Optimizer(name=old, lr=0.1), one_group(), total_steps=100)
    with pytest.raises(ConfigError, match=rf"cannot switch from \w+ to '{new}': .* from 'ademamix' to 'adamw'"):
        switch(optimizer, Optimizer(name=new, lr=0.1), total_steps=50)


def test_a_refused_switch_leaves_the_optimizer_as_it_is():
    (group,) = groups = one_group()
    optimizer = build(Optimizer(name="adamw", lr=0.1), groups, total_steps=100)
    with pytest.raises(ConfigError):
        switch(optimizer, Optimizer(name="lion", lr=0.1), total_steps=50)
    group["params"][0].grad = torch.ones(70, 70)
    optimizer.step()
    assert state_bytes(optimizer) == 2 * 4 * 70 * 70 + 4


def test_adamw_in_low_precision_is_refused():
    bf16 = [{"params": [torch.ones(2, dtype=torch.bfloat16)]}]
    with pytest.raises(ConfigError, match=r"AdamW takes fp32 .*got torch\.bfloat16.* alpha=0"):
        build(Optimizer(name="adamw", lr=0.1), bf16, total_steps=100)
    optimizer = build(Optimizer(name="ademamix", lr=0.1), bf16, total_steps=100)
    with pytest.raises(ConfigError, match="optimizer 'adamw': AdamW takes fp32"):
        switch(optimizer, Optimizer(name="adamw", lr=0.1), total_steps=50)
    bf16[0]["params"][0].grad = torch.ones(2, dtype=torch.bfloat16)
    optimizer.step()
