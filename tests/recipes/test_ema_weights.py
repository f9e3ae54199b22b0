"""The recipe ema-weights: the paper's claims held to its numbers (caption of limitation-EMA, and section 3)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from ademamix import half_life
from ademamix.lab.recipes import ema_weights


def test_weights_are_those_of_the_recursion():
    for beta in ema_weights.BETAS:
        average, weights = 0.0, []
        for age in range(50):  # a single gradient of 1, seen `age` steps later
            average = beta * average + (1 - beta) * (age == 0)
            weights.append(average)
        assert_allclose(ema_weights.ema_weights(beta, steps=49), weights, rtol=1e-12)


def test_small_beta_sees_only_the_immediate_past():
    split = ema_weights.Split.of(0.9)
    assert split.recent > 0.6
    assert split.old < 1e-200


def test_large_beta_is_nearly_uniform_and_neglects_nothing():
    weights = ema_weights.ema_weights(0.9999)
    assert len(weights) == 10_001
    assert weights.max() / weights.min() < 3
    assert weights.min() > 1e-5


def test_larger_beta_is_more_uniform():
    decays = [np.ptp(np.log(ema_weights.ema_weights(beta, steps=500))) for beta in ema_weights.BETAS]
    assert decays == sorted(decays, reverse=True)


def test_no_beta_gives_weight_to_both():
    betas = 1 - np.geomspace(1e-6, 0.5, 500)
    splits = [ema_weights.Split.of(float(beta)) for beta in betas]
    assert max(min(split.recent, split.old) for split in splits) < 0.01
    assert max(split.recent for split in splits) > 0.99
    assert max(split.old for split in splits) > 0.2


def test_half_of_the_weight_is_on_the_last_gradients():
    assert (round(half_life(0.9)), round(half_life(0.9999))) == (6, 6930)
    for beta in ema_weights.BETAS:
        newest = math.ceil(half_life(beta)) + 1
        assert ema_weights.ema_weights(beta)[:newest].sum() == pytest.approx(0.5, abs=1 - beta)


def test_table_says_so():
    rows = [line.split() for line in ema_weights.table().splitlines()[2:]]
    assert [row[0] for row in rows] == ["0.9", "0.99", "0.999", "0.9999"]
    assert rows[0] == ["0.9", "5.6", "0.1000", "0.6513", "1.5e-229", "1.000"]
    assert rows[3] == ["0.9999", "6,930.1", "0.0001", "0.0010", "0.24", "0.632"]
    assert "gives 65% of its weight to the last 10 gradients" in ema_weights.reading()
