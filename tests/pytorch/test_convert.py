"""Switching between AdamW and AdEMAMix in the middle of a run, and starting the slow average again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ademamix import AdEMAMix
from cases import distance, gradients, make, oracle_of


def run(params, optimizer, first, last):
    for step in range(first, last + 1):
        for seed, param in enumerate(params):
            param.grad = torch.tensor(gradients(seed, tuple(param.shape), step)).to(param.dtype)
        optimizer.step()


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("warmup", [0, 30])
def test_from_adamw_follows_the_oracle(fused, warmup):
    """The oracle is AdamW up to the switch, then AdEMAMix with an empty m2 and a slow clock at 0."""
    param = torch.tensor(gradients(9, (6, 5), 0), requires_grad=True)
    start = param.detach().clone().numpy()
    adamw = torch.optim.AdamW([param], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1, fused=fused)
    run([param], adamw, 1, 50)
    moments = adamw.state[param]["exp_avg"], adamw.state[param]["exp_avg_sq"]
    optimizer = AdEMAMix.from_adamw(adamw, beta3=0.999, alpha=3.0, alpha_warmup=warmup, beta3_warmup=warmup)
    assert optimizer.state[param]["exp_avg"] is moments[0]
    assert optimizer.state[param]["exp_avg_sq"] is moments[1]
    oracle = oracle_of(start, optimizer)
    oracle.alpha, oracle.T_alpha = 0.0, 0
    for step in range(1, 101):
        if step == 51:
            oracle.m2[...], oracle.slow_step, oracle.alpha, oracle.T_alpha = 0.0, 0, 3.0, warmup
        oracle.update(gradients(0, (6, 5), step))
    run([param], optimizer, 51, 100)
    assert distance(param, oracle.theta) <= 1e-12 * np.linalg.norm(oracle.theta)
    assert optimizer.schedule()[0]["step"] == 100
    assert optimizer.schedule()[0]["slow_step"] == 50


def test_from_adamw_takes_over_groups_and_schedulers():
    weight, bias = torch.ones(4, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    groups = [{"params": [("w", weight)], "lr": 0.1}, {"params": [("b", bias)], "lr": 0.2, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, maximize=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(adamw, gamma=0.5)
    run([weight, bias], adamw, 1, 2)
    scheduler.step()
    optimizer = AdEMAMix.from_adamw(adamw, total_steps=50_000)
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.05]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    assert [group["param_names"] for group in optimizer.param_groups] == [["w"], ["b"]]
    assert all(group["maximize"] for group in optimizer.param_groups)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999, 0.9995)
    assert (optimizer.param_groups[0]["alpha"], optimizer.param_groups[0]["alpha_warmup"]) == (2.0, 0)
    with pytest.raises(RuntimeError, match=r"this optimizer was retired.*AdEMAMix\.from_adamw"):
        adamw.step()
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.0125
    run([weight, bias], optimizer, 3, 4)


def test_from_adamw_before_the_first_step():
    param = torch.ones(3, requires_grad=True)
    adamw = torch.optim.AdamW([param])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(adamw, gamma=0.5)
    optimizer = AdEMAMix.from_adamw(adamw)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999, 0.9999)
    run([param], optimizer, 1, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.0005


@pytest.mark.parametrize("fused", [None, False, True])
def test_the_kernel_of_adamw_chooses_none_of_ours(fused):
    """On CUDA, fused=True would choose one that nobody has asked for."""
    adamw = torch.optim.AdamW([torch.ones(3, requires_grad=True)], fused=fused)
    assert AdEMAMix.from_adamw(adamw, total_steps=100).param_groups[0]["fused"] is None


def test_adam_of_older_torch_is_refused_by_its_class():
    """Its groups do not say that its weight decay is an L2 penalty."""
    param = torch.ones(3, requires_grad=True)
    adam, adamw = (torch.optim.Adam([param], weight_decay=0.1), torch.optim.AdamW([param], weight_decay=0.1))
    for optimizer in (adam, adamw):
        del optimizer.param_groups[0]["decoupled_weight_decay"]
    with pytest.raises(ValueError, match="Adam with L2 weight decay"):
        AdEMAMix.from_adamw(adam)
    assert AdEMAMix.from_adamw(adamw).param_groups[0]["weight_decay"] == 0.1


def test_bf16_state_of_adamw_becomes_fp32_and_back():
    param = torch.ones(8, dtype=torch.bfloat16, requires_grad=True)
    adamw = torch.optim.AdamW([param])
    run([param], adamw, 1, 5)
    optimizer = AdEMAMix.from_adamw(adamw, total_steps=100)
    assert {optimizer.state[param][name].dtype for name in ("exp_avg", "exp_avg_slow", "exp_avg_sq")} == {torch.float32}
    run([param], optimizer, 6, 10)
    back = optimizer.to_adamw()
    assert back.state[param]["exp_avg"].dtype == torch.bfloat16
    run([param], back, 11, 12)


def test_refusals():
    param = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="amsgrad=True is not possible"):
        AdEMAMix.from_adamw(torch.optim.AdamW([param], amsgrad=True))
    with pytest.raises(ValueError, match="Adam with L2 weight decay"):
        AdEMAMix.from_adamw(torch.optim.Adam([param], weight_decay=0.1))
    with pytest.raises(TypeError, match=r"from_adamw takes a torch\.optim\.AdamW, got SGD"):
        AdEMAMix.from_adamw(torch.optim.SGD([param]))
    adamw = torch.optim.AdamW([param])
    with pytest.raises(ValueError, match="alpha must be a finite number"):
        AdEMAMix.from_adamw(adamw, alpha=-1.0)
    run([param], adamw, 1, 1)  # still alive: nothing was taken over


@pytest.mark.parametrize("beta1", [0.9, 0.0])
def test_there_and_back_is_adamw(beta1):
    """With alpha = 0 a detour through AdEMAMix leaves AdamW's trajectory unchanged."""
    straight = torch.tensor(gradients(4, (5,), 0), requires_grad=True)
    detour = straight.detach().clone().requires_grad_()
    expected = torch.optim.AdamW([straight], lr=0.05, betas=(beta1, 0.99))
    optimizer = torch.optim.AdamW([detour], lr=0.05, betas=(beta1, 0.99))
    run([straight], expected, 1, 30)
    run([detour], optimizer, 1, 10)
    optimizer = AdEMAMix.from_adamw(optimizer, alpha=0.0)
    run([detour], optimizer, 11, 20)
    optimizer = optimizer.to_adamw()
    assert type(optimizer) is torch.optim.AdamW
    assert set(optimizer.param_groups[0]) == set(expected.param_groups[0])
    run([detour], optimizer, 21, 30)
    assert torch.allclose(straight, detour, rtol=1e-12, atol=0)


def test_to_adamw_keeps_schedulers():
    param = torch.ones(3, requires_grad=True)
    optimizer = make([param], lr=0.1, total_steps=100)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    run([param], optimizer, 1, 1)
    adamw = optimizer.to_adamw()
    scheduler.step()
    assert adamw.param_groups[0]["lr"] == 0.05
    with pytest.raises(RuntimeError, match=r"this optimizer was retired.*to_adamw"):
        optimizer.step()


def test_reset_slow_restarts_the_slow_average_alone():
    param = torch.tensor(gradients(0, (7,), 0), requires_grad=True)
    optimizer = make([param], total_steps=20)
    oracle = oracle_of(param.detach().numpy(), optimizer)
    for step in range(1, 41):
        if step == 15:
            optimizer.reset_slow()
            oracle.m2[...], oracle.slow_step = 0.0, 0
        oracle.update(gradients(0, (7,), step))
        run([param], optimizer, step, step)
    assert distance(param, oracle.theta) <= 1e-12
    assert optimizer.schedule()[0]["slow_step"] == 26
