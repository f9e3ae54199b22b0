"""The oracle itself: against the paper's formulas in 50 digits, and against torch's AdamW at alpha = 0."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from ademamix.reference import ReferenceAdEMAMix, f_alpha, f_beta3


def paper_trace(theta, gradients, lr, betas, alpha_end, T, eps, decay):
    """Algorithm 1 for one number, in mpmath, with f_beta3 through half-lives as in appendix A.1."""
    mp = mpmath.mp
    beta1, beta2, beta3_end = (mp.mpf(repr(beta)) for beta in betas)
    m1 = m2 = nu = mp.mpf(0)
    theta, lr, eps, decay = (mp.mpf(repr(x)) for x in (theta, lr, eps, decay))

    def half_life(beta):
        return mp.log(mp.mpf("0.5")) / mp.log(beta) - 1

    for t, g in enumerate((mp.mpf(repr(g)) for g in gradients), start=1):
        mu = mp.mpf(t) / T
        if beta1 == 0:
            beta3 = beta3_end ** (1 / mu)
        else:
            beta3 = mp.mpf("0.5") ** (1 / ((1 - mu) * half_life(beta1) + mu * half_life(beta3_end) + 1))
        beta3 = min(beta3, beta3_end) if mu < 1 else beta3_end
        alpha = min(mu * alpha_end, mp.mpf(alpha_end))
        m1 = beta1 * m1 + (1 - beta1) * g
        m2 = beta3 * m2 + (1 - beta3) * g
        nu = beta2 * nu + (1 - beta2) * g**2
        update = (m1 / (1 - beta1**t) + alpha * m2) / (mp.sqrt(nu / (1 - beta2**t)) + eps)
        theta = theta - lr * (update + decay * theta)
    return theta, m2


@pytest.mark.parametrize("beta1", [0.9, 0.5, 0.0])
@pytest.mark.parametrize("T", [40, 1000])
def test_against_the_formulas_in_fifty_digits(beta1, T):
    gradients = np.random.default_rng(0).standard_normal(200).round(6).tolist()
    settings = {"lr": 0.01, "betas": (beta1, 0.999, 0.9999), "eps": 1e-8}
    oracle = ReferenceAdEMAMix(0.7, alpha=5.0, T_alpha=T, T_beta3=T, weight_decay=0.1, **settings)
    for gradient in gradients:
        oracle.update(gradient)
    with mpmath.workdps(50):
        theta, m2 = paper_trace(0.7, gradients, alpha_end=5, T=T, decay=0.1, **settings)
        assert abs(theta - float(oracle.theta)) <= 1e-13 * abs(theta)
        assert abs(m2 - float(oracle.m2)) <= 1e-11 * abs(m2)


def test_alpha_zero_is_adamw():
    start = np.random.default_rng(0).standard_normal(50)
    param = torch.tensor(start, requires_grad=True)
    adamw = torch.optim.AdamW([param], lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.2)
    oracle = ReferenceAdEMAMix(start, lr=0.01, betas=(0.9, 0.99, 0.999), alpha=0.0, eps=1e-6, weight_decay=0.2)
    rng = np.random.default_rng(1)
    for _ in range(500):
        gradient = rng.standard_normal(50)
        param.grad = torch.tensor(gradient)
        adamw.step()
        np.testing.assert_allclose(param.detach().numpy(), oracle.update(gradient), rtol=1e-12, atol=1e-14)


def test_schedules_of_the_paper_at_their_ends():
    assert f_alpha(1000, 5.0, 1000) == 5.0
    assert f_beta3(1000, 0.9999, 0.9, 1000) == 0.9999
    assert f_beta3(5, 0.5, 0.9, 10) == 0.5  # min(..., beta3)
