"""The recipe nested-emas: the paper's claims held to its numbers (caption of dema, and the text before it)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from ademamix.lab.recipes import ema_weights, nested_emas


def test_admeta_is_the_algorithm():
    beta1, beta2, steps = 0.9, 0.4, 60
    mu, kappa = 25 - 10 * (beta1 + 1 / beta1), 10 / beta1 - 9
    assert (mu, kappa) == pytest.approx((4.88, 2.11), abs=0.01)
    m1 = m2 = 0.0
    weights = []
    for age in range(steps):  # a single gradient of 1, seen `age` steps later
        g = float(age == 0)
        m1 = beta1 * m1 + g
        m2 = beta2 * m2 + (1 - beta2) * (kappa * g + mu * m1)
        weights.append(m2)
    total = kappa + mu / (1 - beta1)
    assert_allclose(nested_emas.admeta(beta2)[:steps] * total, weights, rtol=1e-9)


def test_nested_and_double_emas_have_their_closed_forms():
    age = np.arange(200)
    nested = 0.1**2 * (age + 1) * 0.9**age
    assert_allclose(nested_emas.nested()[:200], nested, rtol=1e-9)
    assert_allclose(nested_emas.dema()[:200], 2 * 0.1 * 0.9**age - nested, rtol=1e-9, atol=1e-16)


def test_nesting_decreases_the_influence_of_recent_steps():
    single, nested = ema_weights.ema_weights(0.9), nested_emas.nested()
    assert (nested[:8] < single[:8]).all()
    assert nested[0] == pytest.approx(0.1 * single[0])
    assert nested.argmax() in (8, 9)
    assert nested_emas.admeta(0.4)[0] < single[0]


def test_dema_increases_it_and_takes_weight_from_older_steps():
    single, double = ema_weights.ema_weights(0.9), nested_emas.dema()
    assert (double[:9] > single[:9]).all()
    assert (double[20:100] < 0).all()


@pytest.mark.parametrize("beta2", [0.1, 0.4])
def test_admeta_gives_old_gradients_a_negligible_weight(beta2):
    assert nested_emas.admeta(beta2)[1001:].sum() < 1e-40


def test_a_mixture_keeps_the_recent_weights_and_adds_the_old():
    mixture = nested_emas.mixture()
    assert (mixture > ema_weights.ema_weights(0.9)).all()
    assert mixture[1001:].sum() > 2
    assert mixture[1000] > 1e-4


def test_table_says_so():
    rows = {line[:24].strip(): line[24:].split() for line in nested_emas.table().splitlines()[2:]}
    assert rows["EMA of EMA"] == ["0.0100", "1.6e-44", "1.00", "0.0100", "1.6e-44"]
    assert rows["AdMeta-S, beta2 = 0.1"][0] == "0.1235"
    assert rows["AdMeta-S, beta2 = 0.4"] == ["0.0824", "1.6e-46", "1.00", "0.0824", "1.6e-46"]
    assert rows["AdEMAMix"] == ["0.1005", "2.7", "4.16", "0.0242", "0.65"]
    assert "a negative weight from 20 steps ago on" in nested_emas.reading()
