"""The recipe mix-weights: the paper's claims held to its numbers (captions of weights-m1-m2 and schedulers-convex)."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from ademamix.lab.recipes import mix_weights

STEPS = range(1, mix_weights.STEPS + 1)


def test_schedules_are_a_cosine_and_a_line_to_the_final_alphas():
    etas = np.array([mix_weights.eta_at(t) for t in STEPS])
    mu = np.array(STEPS) / mix_weights.STEPS
    assert_allclose(etas, 0.01 + 0.99 * (1 + np.cos(np.pi * mu)) / 2, rtol=1e-12)
    fast, slow = np.array([mix_weights.added(t) for t in STEPS]).T
    assert_allclose(slow / fast, 8 * mu, rtol=1e-12)
    fast, slow = np.array([mix_weights.convex_as_scheduled(t) for t in STEPS]).T
    assert_allclose(fast + slow, etas, rtol=1e-12)
    assert_allclose(slow / (fast + slow), 0.9 * mu, rtol=1e-12)


def test_no_final_alpha_makes_the_convex_mix_equal():
    # equal weights at all steps, up to a factor, would need one value of m2/m1 over t
    for alpha in (0.3, 0.6, 0.9):
        ratios = []
        for t in (250, 1000):
            fast, slow = mix_weights.convex(mix_weights.eta_at(t), mix_weights.alpha_at(t, alpha, 1000))
            ratios.append(slow / fast / t)
        assert ratios[1] > 1.25 * ratios[0]


def test_other_schedules_make_it_equal():
    for t in STEPS:
        assert_allclose(mix_weights.convex(*mix_weights.equal_schedules(t)), mix_weights.added(t), rtol=1e-13)


def test_those_are_neither_a_cosine_nor_a_line():
    etas, alphas = np.array([mix_weights.equal_schedules(t) for t in STEPS]).T
    assert etas.argmax() == pytest.approx(370, abs=10)
    assert etas.max() > 2.5 * etas[0]
    assert alphas[124] == pytest.approx(0.5)
    assert alphas[-1] == pytest.approx(8 / 9)
    assert 0 < alphas.min() < alphas.max() < 1


def test_table_says_so():
    rows = [line.split() for line in mix_weights.table().splitlines()[2:]]
    assert [row[0] for row in rows] == ["1", "T/8", "T/4", "T/2", "3T/4", "T"]
    assert rows[3][1:] == ["0.505", "2.020", "0.278", "0.227", "0.505", "4.000", "2.525", "0.800"]
    assert "rises to 2.8 times its first value at t = 0.37 T" in mix_weights.reading()
