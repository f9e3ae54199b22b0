"""Schedules, half-lives and the choice of beta3, as plain floats and as tensors."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ademamix import alpha_at, beta3_at, beta_from_half_life, half_life
from ademamix.pytorch.coefficients import Settings, next_step
from ademamix.pytorch.tensors import Tensors
from ademamix.schedules import beta3_for_horizon

betas = st.floats(0.01, 0.999999)


@given(t=st.integers(1, 2000), start=betas, beta3=betas, T=st.integers(1, 1000))
def test_beta3_is_the_formula_of_the_paper(t, start, beta3, T):
    value = beta3_at(t, beta3, start, T)
    with mpmath.workdps(40):
        mu = min(mpmath.mpf(t) / T, mpmath.mpf(1))
        ln_start, ln_end = mpmath.log(start), mpmath.log(beta3)
        expected = min(mpmath.exp(ln_start * ln_end / ((1 - mu) * ln_end + mu * ln_start)), mpmath.mpf(beta3))
        assert abs(value - expected) <= 1e-14
        assert abs((1 - mpmath.mpf(value)) - (1 - expected)) <= 1e-9 * (1 - expected)


@given(start=st.floats(0.0, 0.99), beta3=betas, T=st.integers(1, 300))
def test_beta3_rises_to_its_final_value_and_stays(start, beta3, T):
    values = [beta3_at(t, beta3, start, T) for t in range(1, T + 3)]
    assert all(a <= b for a, b in itertools.pairwise(values))
    assert values[T - 1 :] == [beta3] * 3


def test_half_life_rises_linearly():
    lives = [half_life(beta3_at(t, 0.9999, 0.9, 1000)) for t in range(1, 1000)]
    steps = [b - a for a, b in itertools.pairwise(lives)]
    expected = (half_life(0.9999) - half_life(0.9)) / 1000
    assert all(step == pytest.approx(expected, rel=1e-6) for step in steps)


def test_start_zero_is_the_limit():
    for t in (1, 7, 99):
        assert beta3_at(t, 0.999, 0.0, 100) == pytest.approx(0.999 ** (100 / t), rel=1e-12)
        assert beta3_at(t, 0.999, 1e-300, 100) == pytest.approx(beta3_at(t, 0.999, 0.0, 100), abs=2e-2)


@given(t=st.integers(1, 500), alpha=st.floats(0, 100), T=st.integers(0, 300))
def test_alpha_is_linear_then_constant(t, alpha, T):
    assert alpha_at(t, alpha, T) == (alpha if t >= T else pytest.approx(alpha * t / T, rel=1e-15))


@given(beta=st.floats(0.01, 0.9999999))
def test_half_life_and_its_inverse(beta):
    assert beta_from_half_life(half_life(beta)) == pytest.approx(beta, rel=1e-12)


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, math.nan])
def test_half_life_refuses(beta):
    with pytest.raises(ValueError, match=r"beta must be in \(0, 1\), got"):
        half_life(beta)


@pytest.mark.parametrize("t", [0, -1, math.nan])
def test_steps_count_from_one(t):
    with pytest.raises(ValueError, match="t counts steps from 1, got"):
        alpha_at(t, 5.0, 10)
    with pytest.raises(ValueError, match="t counts steps from 1, got"):
        beta3_at(t, 0.999, 0.9, 10)
    with pytest.raises(ValueError, match="steps must be a finite number > -1, got"):
        beta_from_half_life(-math.inf)


def test_horizon_rule():
    assert beta3_for_horizon(32_000, 0.9) == pytest.approx(1 - 1 / 1280)
    assert beta3_for_horizon(256_000, 0.9) == 0.9999
    assert beta3_for_horizon(10, 0.9) == 0.9
    assert beta3_for_horizon(1, 0.0) == 0.0
    assert beta3_for_horizon(None, 0.9) == 0.9999


@given(
    t=st.integers(1, 400),
    beta1=st.sampled_from([0.0, 0.5, 0.9]),
    beta3=st.sampled_from([0.0, 0.9, 0.99, 0.9999]),
    T=st.integers(0, 300),
)
def test_tensors_give_what_floats_give(t, beta1, beta3, T):
    settings = Settings(1e-3, (beta1, 0.999, beta3), 5.0, T, T, beta1, 1e-8, 0.1)
    tensors = Tensors.none()._replace(steps=[torch.tensor(t - 1.0)], slow_steps=[torch.tensor(t - 1.0)])
    (floats,), _ = next_step(tensors, {}, settings, as_tensors=False)
    vectors, advance = next_step(tensors, {}, settings, as_tensors=True)
    assert [float(vector) for vector in vectors] == pytest.approx(list(floats), rel=1e-13)
    assert floats.slow_rate == pytest.approx(1 - beta3_at(t, beta3, beta1, T), rel=1e-9, abs=1e-15)
    advance()
    assert tensors.steps == tensors.slow_steps == [torch.tensor(float(t))]
