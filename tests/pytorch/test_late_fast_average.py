"""A beta1 that is raised from 0 in the middle of a run: m1 begins then, and its bias correction counts from there."""

from __future__ import annotations

import copy

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from ademamix import AdEMAMix
from ademamix.optax import ademamix, from_torch
from ademamix.optax.convert import nodes
from ademamix.optax.transform import ScaleByAdemamixState
from cases import PATHS, gradients, make
from database import assert_same

SHAPE = (4, 3)
BETA2, BETA3, ALPHA, LR, DECAY = 0.99, 0.999, 2.0, 0.01, 0.1
every_path = pytest.mark.parametrize("path", PATHS)

# beta1 by step: raised once, and raised again after a while at 0, where an m1 of before would be stale.
PLANS = {"raised": [0.0] * 20 + [0.9] * 15, "twice": [0.9] * 8 + [0.0] * 8 + [0.9] * 8 + [0.0] * 3 + [0.5] * 8}


def trajectory(plan):
    """The paper's Algorithm 1 in double precision, with a clock for m1 that restarts when beta1 has been 0."""
    theta, m1, m2, nu, own_step = gradients(9, SHAPE, 0), 0.0, 0.0, 0.0, 0
    for t, beta1 in enumerate(plan, start=1):
        g = gradients(0, SHAPE, t)
        if beta1 == 0:
            m1, own_step = 0.0, 0
            m1_hat = g
        else:
            own_step += 1
            m1 = beta1 * m1 + (1 - beta1) * g
            m1_hat = m1 / (1 - beta1**own_step)
        m2 = BETA3 * m2 + (1 - BETA3) * g
        nu = BETA2 * nu + (1 - BETA2) * g**2
        step = (m1_hat + ALPHA * m2) / (np.sqrt(nu / (1 - BETA2**t)) + 1e-8) + DECAY * theta
        theta = theta - LR * step
    return theta


def started(plan, **settings):
    param = torch.tensor(gradients(9, SHAPE, 0), requires_grad=True)
    betas = (plan[0], BETA2, BETA3)
    return param, make([param], lr=LR, betas=betas, alpha=ALPHA, weight_decay=DECAY, **settings)


def follow(param, optimizer, plan, first=1, step=None):
    for t, beta1 in enumerate(plan, start=first):
        optimizer.param_groups[0]["betas"] = (beta1, BETA2, BETA3)
        param.grad = torch.tensor(gradients(0, SHAPE, t))
        (step or optimizer.step)()


@pytest.mark.parametrize("plan", PLANS)
@every_path
def test_m1_counts_its_own_updates(path, plan):
    plan = PLANS[plan]
    param, optimizer = started(plan, **PATHS[path])
    follow(param, optimizer, plan)
    np.testing.assert_allclose(param.detach().numpy(), trajectory(plan), rtol=1e-12)
    assert optimizer.schedule()[0]["step"] == len(plan)


@every_path
def test_parameters_of_a_group_may_differ(path):
    """One whose first gradient comes when beta1 has been raised has an m1 that is not late."""
    plan = PLANS["raised"]
    param = torch.tensor(gradients(9, SHAPE, 0), requires_grad=True)
    first, second = (torch.tensor(gradients(9, SHAPE, 0), requires_grad=True) for _ in range(2))
    together = make([first, second], lr=LR, betas=(0.0, BETA2, BETA3), alpha=ALPHA, weight_decay=DECAY, **PATHS[path])
    alone = make([param], lr=LR, betas=(0.9, BETA2, BETA3), alpha=ALPHA, weight_decay=DECAY, **PATHS[path])
    follow(first, together, plan[:20])
    for t in range(21, 30):
        param.grad = second.grad = torch.tensor(gradients(5, SHAPE, t))
        follow(first, together, [0.9], first=t)
        alone.step()
    np.testing.assert_allclose(first.detach().numpy(), trajectory(plan[:29]), rtol=1e-12)
    assert_same(second, param)
    assert "fast_start" not in together.state[second]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("path", ["single", "fused"])
def test_compiled(path):
    plan = PLANS["raised"]
    param, optimizer = started(plan, **PATHS[path])
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    follow(param, optimizer, plan, step=torch.compile(optimizer.step, fullgraph=True, backend=counter))
    np.testing.assert_allclose(param.detach().numpy(), trajectory(plan), rtol=1e-12)
    assert counter.frame_count <= 4  # two for each beta1, with and without a state to begin with


def test_only_a_late_m1_has_a_start():
    plan = PLANS["raised"]
    names = {"step", "slow_step", "exp_avg_slow", "exp_avg_sq"}
    param, optimizer = started(plan)
    follow(param, optimizer, plan[:20])
    assert set(optimizer.state[param]) == names
    follow(param, optimizer, plan[20:], first=21)
    assert set(optimizer.state[param]) == names | {"exp_avg", "fast_start"}
    assert optimizer.state[param]["fast_start"] == 20
    follow(param, optimizer, [0.0], first=36)
    assert set(optimizer.state[param]) == names
    param, optimizer = started([0.9])
    follow(param, optimizer, [0.9, 0.9])
    assert set(optimizer.state[param]) == names | {"exp_avg"}


@pytest.mark.parametrize("saved_at", [20, 25])
@every_path
def test_checkpoints(path, saved_at):
    """Saved with beta1 = 0 and continued with 0.9, or saved while m1 was young."""
    plan = PLANS["raised"]
    param, optimizer = started(plan, **PATHS[path])
    follow(param, optimizer, plan[:saved_at])
    saved = copy.deepcopy(optimizer.state_dict())
    other = param.detach().clone().requires_grad_()
    saved["param_groups"][0]["betas"] = (0.9, BETA2, BETA3)
    resumed = make([other], **PATHS[path])
    resumed.load_state_dict(saved)
    resumed.diagnostics()
    follow(other, resumed, plan[saved_at:], first=saved_at + 1)
    follow(param, optimizer, plan[saved_at:], first=saved_at + 1)
    assert_same(other, param)
    assert_same(resumed.state_dict()["state"], optimizer.state_dict()["state"])


def test_diagnostics():
    plan = PLANS["raised"][:23]
    param, optimizer = started(plan)
    follow(param, optimizer, plan[:-1])
    before = param.detach().clone()
    follow(param, optimizer, plan[-1:], first=23)
    change = param.detach() - before * (1 - LR * DECAY)
    assert optimizer.diagnostics()[0]["update_norm"] == pytest.approx(float(change.norm()), rel=1e-9)


def test_to_adamw_keeps_the_corrected_average():
    """AdamW has one clock: its m1, corrected by that clock, is what the corrected m1 was here."""
    plan = PLANS["raised"][:23]
    param, optimizer = started(plan)
    follow(param, optimizer, plan)
    corrected = optimizer.state[param]["exp_avg"] / (1 - 0.9**3)
    adamw = optimizer.to_adamw()
    state = adamw.state[param]
    torch.testing.assert_close(state["exp_avg"] / (1 - 0.9**23), corrected, rtol=1e-12, atol=0)
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    back = AdEMAMix.from_adamw(adamw, total_steps=100)
    assert "fast_start" not in back.state[param]


def test_from_torch_keeps_the_corrected_average():
    plan = PLANS["raised"][:23]
    param, optimizer = started(plan)
    follow(param, optimizer, plan)
    corrected = optimizer.state[param]["exp_avg"] / (1 - 0.9**3)
    fresh = ademamix(LR, b3=BETA3, alpha_warmup=0, beta3_warmup=0).init([jnp.zeros(SHAPE)])
    (state,) = nodes(from_torch(optimizer.state_dict(), fresh, names=[0]), ScaleByAdemamixState)
    np.testing.assert_allclose(np.asarray(state.mu[0]) / (1 - 0.9**23), corrected.numpy(), rtol=1e-6)
