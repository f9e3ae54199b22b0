"""Optimizers that take over from one another in the middle of a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from ademamix import AdEMAMix
from ademamix.lab.config import ConfigError, Optimizer
from ademamix.lab.optimizers.construction import build
from ademamix.lab.optimizers.memory import state_bytes
from ademamix.lab.optimizers.transitions import switch
from ademamix.reference import ReferenceAdEMAMix
from ademamix.schedules import beta3_at


def one_group(**settings):
    return [{"params": [torch.ones(70, 70)], **settings}]


def _half_way(optimizer, config):
    return switch(optimizer, config, one_group(), step=50, steps=100)


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
            optimizer = switch(optimizer, to_ademamix, groups, step=30, steps=90)
            assert isinstance(optimizer, AdEMAMix)
            assert optimizer.param_groups[0]["total_steps"] == 60
            oracle.lr, oracle.alpha, oracle.T_alpha, oracle.betas = 0.005, 3.0, 10, (0.9, 0.999, 0.9)
            oracle.slow_step, oracle.m2 = 0, np.zeros_like(start)
        if step == 60:
            optimizer = switch(optimizer, Optimizer(name="adamw", lr=0.002), groups, step=60, steps=90)
            assert type(optimizer) is torch.optim.AdamW
            oracle.lr, oracle.alpha = 0.002, 0.0
        point.grad = torch.tensor(gradients[step], dtype=torch.float32)
        optimizer.step()
        assert_allclose(point, oracle.update(gradients[step]), rtol=1e-5, atol=1e-5)


def test_settings_of_a_switch():
    adamw_to = build(Optimizer(name="adamw", lr=0.1), one_group(), total_steps=100)
    with pytest.raises(ConfigError, match="optimizer 'ademamix' has no setting 'betas': it takes alpha, alpha_warmup"):
        switch(
            adamw_to,
            Optimizer(name="ademamix", lr=0.1, settings={"betas": [0.9, 0.99]}),
            one_group(),
            step=50,
            steps=100,
        )
    with pytest.raises(ConfigError, match="optimizer 'ademamix': alpha must be a finite number >= 0, got -1"):
        _half_way(adamw_to, Optimizer(name="ademamix", lr=0.1, settings={"alpha": -1}))
    with pytest.raises(ConfigError, match="alpha must not be a truth value"):
        _half_way(adamw_to, Optimizer(name="ademamix", lr=0.1, settings={"alpha": True}))
    optimizer = build(Optimizer(name="ademamix", lr=0.1), one_group(), total_steps=100)
    with pytest.raises(ConfigError, match="optimizer 'adamw' has no setting 'eps': here it takes none"):
        _half_way(optimizer, Optimizer(name="adamw", lr=0.1, settings={"eps": 1e-6}))
    own_horizon = Optimizer(name="ademamix", lr=0.1, settings={"total_steps": 70, "alpha_warmup": None})
    (group,) = _half_way(adamw_to, own_horizon).param_groups
    assert (group["total_steps"], group["alpha_warmup"], group["beta3_warmup"]) == (70, 70, 0)


@pytest.mark.parametrize(
    ("old", "new"), [("adamw", "lion"), ("lion", "ademamix"), ("ademamix", "adamw-scheduled-beta1")]
)
def test_other_switches_are_refused(old, new):
    optimizer = build(Optimizer(name=old, lr=0.1), one_group(), total_steps=100)
    with pytest.raises(ConfigError, match=rf"cannot switch from \w+ to '{new}': .* from 'ademamix' to 'adamw'"):
        _half_way(optimizer, Optimizer(name=new, lr=0.1))


def test_a_refused_switch_leaves_the_optimizer_as_it_is():
    (group,) = groups = one_group()
    optimizer = build(Optimizer(name="adamw", lr=0.1), groups, total_steps=100)
    with pytest.raises(ConfigError):
        _half_way(optimizer, Optimizer(name="lion", lr=0.1))
    group["params"][0].grad = torch.ones(70, 70)
    optimizer.step()
    assert state_bytes(optimizer) == 2 * 4 * 70 * 70 + 4


def test_a_switch_to_low_precision_adamw_is_refused():
    bf16 = [{"params": [torch.ones(2, dtype=torch.bfloat16)]}]
    optimizer = build(Optimizer(name="ademamix", lr=0.1), bf16, total_steps=100)
    with pytest.raises(ConfigError, match="optimizer 'adamw': AdamW takes fp32"):
        switch(optimizer, Optimizer(name="adamw", lr=0.1), bf16, step=50, steps=100)
    bf16[0]["params"][0].grad = torch.ones(2, dtype=torch.bfloat16)
    optimizer.step()


def _groups(point):
    return [{"params": [point], "weight_decay": 0.1}]


def _trace(optimizer, point, gradients, change):
    """Take a step with each gradient; `change(optimizer, step)` may return another optimizer before it."""
    for step, gradient in enumerate(gradients):
        optimizer = change(optimizer, step)
        point.grad = torch.tensor(gradient)
        optimizer.step()
    return point


def _adamw_by_hand(start, gradients, beta1_of):
    """AdamW in double precision, beta1 a function of the step: the weights of all gradients add up to `weight`."""
    point, average, weight, square = start.copy(), np.zeros_like(start), 0.0, np.zeros_like(start)
    for step, gradient in enumerate(gradients, start=1):
        beta1 = beta1_of(step)
        average = beta1 * average + (1 - beta1) * gradient
        weight = beta1 * weight + (1 - beta1)
        square = 0.999 * square + 0.001 * gradient**2
        point -= 0.01 * (average / weight / (np.sqrt(square / (1 - 0.999**step)) + 1e-8) + 0.1 * point)
    return point


def test_a_beta1_that_rises_in_mid_run_starts_from_what_adamw_has():
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=4), random.normal(size=(60, 4))
    point = torch.tensor(start)
    rising = Optimizer(name="adamw-scheduled-beta1", lr=0.01, settings={"betas": [0.99, 0.999], "total_steps": 20})
    adamw = build(Optimizer(name="adamw", lr=0.01), _groups(point), total_steps=60)

    def change(optimizer, step):
        return switch(optimizer, rising, _groups(point), step=30, steps=60) if step == 30 else optimizer

    found = _trace(adamw, point, gradients, change)
    expected = _adamw_by_hand(start, gradients, lambda step: 0.9 if step <= 30 else beta3_at(step - 30, 0.99, 0.9, 20))
    assert_allclose(found, expected, rtol=1e-9)


def test_a_larger_beta1_in_mid_run_keeps_averages_and_clocks():
    random = np.random.default_rng(0)
    gradients = random.normal(size=(40, 4))

    def trained(change):
        point = torch.ones(4, dtype=torch.float64)
        adamw = build(Optimizer(name="adamw", lr=0.01), _groups(point), total_steps=40)
        return _trace(adamw, point, gradients, lambda optimizer, step: change(optimizer) if step == 20 else optimizer)

    def by_switch(optimizer):
        larger = Optimizer(name="adamw", lr=0.01, settings={"betas": [0.99, 0.999]})
        return switch(optimizer, larger, _groups(optimizer.param_groups[0]["params"][0]), step=20, steps=40)

    def by_hand(optimizer):
        optimizer.param_groups[0]["betas"] = (0.99, 0.999)
        return optimizer

    assert torch.equal(trained(by_switch), trained(by_hand))
