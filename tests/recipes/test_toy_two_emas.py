"""The recipe toy-two-emas: what the paper says of convergence-toy, in caption and text, held to its numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from ademamix.lab.recipes import toy_two_emas
from ademamix.reference import ReferenceAdEMAMix


@pytest.fixture(scope="module")
def study():
    return toy_two_emas.run_study()


def test_gradient_is_that_of_the_function():
    points = torch.tensor([toy_two_emas.START, (-1.7, 9.0)], dtype=torch.float64, requires_grad=True)
    toy_two_emas.steep_and_flat(*points.T).sum().backward()
    assert_allclose(toy_two_emas.gradient(points.detach().numpy()), points.grad, rtol=1e-12)


@pytest.mark.parametrize("method", toy_two_emas.METHODS)
def test_runs_have_the_settings_of_the_paper(method):
    points = toy_two_emas.descend(method, lr=0.01, steps=300).points
    for case, momentum in enumerate([(-3.0, 0.0), (-0.8, -3.0)]):
        betas, alpha = ((0.9, 0.999, 0.999), 5.0) if method == "AdEMAMix" else ((0.999, 0.999, 0.0), 0.0)
        oracle = ReferenceAdEMAMix([0.3, -1.5], lr=0.01, betas=betas, alpha=alpha, weight_decay=0.0)
        oracle.m1 = oracle.m2 = np.array(momentum)
        expected = [oracle.theta]
        for _ in range(300):
            expected.append(oracle.update(toy_two_emas.gradient(oracle.theta[None])[0]))
        assert_allclose(points[:, case], expected, rtol=1e-8, atol=1e-10)


def test_adam_follows_its_first_momentum_and_comes_to_rest_at_no_rate(study):
    assert [run.lr for run in study["Adam"]] == list(toy_two_emas.RATES)
    assert min(run.unrest.max() for run in study["Adam"]) > 1
    assert min(run.unrest.min() for run in study["Adam"]) > 0.5
    adam = toy_two_emas.drawn(study)["Adam"]
    for case, momentum in enumerate(toy_two_emas.MOMENTA):
        first = adam.points[10, case] - toy_two_emas.START
        cosine = first @ -np.array(momentum) / np.linalg.norm(first) / np.linalg.norm(momentum)
        assert cosine > 0.95
    assert adam.points[:, 0, 0].max() == pytest.approx(3.9, abs=0.05)
    assert adam.points[:, 1, 1].max() == pytest.approx(20.8, abs=0.05)


def test_ademamix_overshoots_then_converges(study):
    mix = toy_two_emas.drawn(study)["AdEMAMix"]
    assert mix.points[:, 0].max(axis=0) == pytest.approx((1.2, 5.9), abs=0.05)
    assert mix.points[:, 1].max(axis=0) == pytest.approx((1.1, 10.1), abs=0.05)
    assert mix.distances[-1].max() < 0.003
    assert mix.unrest.max() < toy_two_emas.AT_REST
    assert mix.distances[300].min() > 1  # only when m2 of the start has faded


def test_the_rate_is_the_smallest_at_which_ademamix_comes_to_rest(study):
    at_rest = [run.lr for run in study["AdEMAMix"] if run.unrest.max() < toy_two_emas.AT_REST]
    assert at_rest == [0.01, 0.03, 0.1]
    assert at_rest[0] == toy_two_emas.RATE


def test_adam_without_bias_correction_does_not_come_to_rest_either():
    # both momenta and all rates at once: rows are independent
    rates = np.repeat(toy_two_emas.RATES, 2)[:, None]
    m = np.array(toy_two_emas.MOMENTA * len(toy_two_emas.RATES))
    points, nu = np.full_like(m, toy_two_emas.START), np.zeros_like(m)
    farthest = np.zeros(len(m))
    for t in range(1, 3001):
        g = toy_two_emas.gradient(points)
        m = 0.999 * m + 0.001 * g
        nu = 0.999 * nu + 0.001 * g**2
        points = points - rates * m / (np.sqrt(nu / (1 - 0.999**t)) + 1e-8)
        if t > 2700:
            farthest = np.maximum(farthest, np.linalg.norm(points - toy_two_emas.MINIMUM, axis=1))
    assert farthest.min() > 0.35


def test_report_says_so(study):
    rows = [line.split() for line in toy_two_emas.table(study).splitlines()[2:]]
    assert [row[:2] for row in rows[2::5]] == [["Adam", "0.01*"], ["AdEMAMix", "0.01*"]]
    assert rows[7][2:] == ["3.4e-06", "9.1e-05", "0.0028", "0.031"]
    assert "in (a) along x to 3.9, in (b) along y to 20.8" in toy_two_emas.reading(study)
    assert "overshoots too, to y = 5.9 and 10.1, and comes to rest as m2(0) fades" in toy_two_emas.reading(study)
