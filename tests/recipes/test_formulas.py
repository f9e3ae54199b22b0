"""The arithmetic behind the recipes that need no training, held to closed forms, recursions and the oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from ademamix import beta3_at, half_life
from ademamix.lab.recipes import ema_weights
from ademamix.lab.recipes.formulas import averages, mixes, rosenbrock, schedules, steep_and_flat
from ademamix.lab.recipes.formulas.descents import METHODS, Descent
from ademamix.reference import ReferenceAdEMAMix


class TestAverages:
    """Captions of limitation-EMA and dema."""

    def test_weights_are_those_of_the_recursion(self):
        for beta in ema_weights.BETAS:
            average, weights = 0.0, []
            for age in range(50):  # a single gradient of 1, seen `age` steps later
                average = beta * average + (1 - beta) * (age == 0)
                weights.append(average)
            assert_allclose(averages.ema_weights(beta, steps=49), weights, rtol=1e-12)

    def test_larger_beta_is_more_uniform(self):
        decays = [np.ptp(np.log(averages.ema_weights(beta, steps=500))) for beta in ema_weights.BETAS]
        assert decays == sorted(decays, reverse=True)

    def test_half_of_the_weight_is_on_the_last_gradients(self):
        assert (round(half_life(0.9)), round(half_life(0.9999))) == (6, 6930)
        for beta in ema_weights.BETAS:
            newest = math.ceil(half_life(beta)) + 1
            assert averages.ema_weights(beta)[:newest].sum() == pytest.approx(0.5, abs=1 - beta)

    def test_admeta_is_the_algorithm(self):
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
        assert_allclose(averages.admeta(beta2)[:steps] * total, weights, rtol=1e-9)

    def test_nested_and_double_emas_have_their_closed_forms(self):
        age, found = np.arange(200), averages.methods()
        nested = 0.1**2 * (age + 1) * 0.9**age
        assert_allclose(found["EMA of EMA"][:200], nested, rtol=1e-9)
        assert_allclose(found["DEMA"][:200], 2 * 0.1 * 0.9**age - nested, rtol=1e-9, atol=1e-16)

    def test_nesting_takes_weight_from_all_recent_steps_and_dema_gives_them_more(self):
        found = averages.methods()
        assert (found["EMA of EMA"][:8] < found["EMA"][:8]).all()
        assert (found["DEMA"][:9] > found["EMA"][:9]).all()
        assert (found["DEMA"][20:100] < 0).all()
        assert (found["AdEMAMix"] > found["EMA"]).all()


class TestBeta3Schedule:
    """Caption of beta_scheduler."""

    def test_it_is_the_schedule_of_the_optimizer(self):
        assert schedules.betas("AdEMAMix", 0.9999)[249] == beta3_at(250, beta3=0.9999, start=0.9, T=1000)

    @pytest.mark.parametrize("end", [schedules.LOW, schedules.HIGH])
    def test_both_schedules_end_where_they_should(self, end):
        for name in schedules.SCHEDULES:
            betas = schedules.betas(name, end)
            assert len(betas) == schedules.STEPS
            assert 0.9 < betas[0] < 0.951
            assert betas[-1] == pytest.approx(end, rel=1e-15)
            assert (np.diff(betas) > 0).all()

    @pytest.mark.parametrize("end", [schedules.LOW, schedules.HIGH])
    def test_half_life_grows_linearly_under_the_paper_only(self, end):
        rises = {name: np.diff(schedules.half_lives(name, end)) for name in schedules.SCHEDULES}
        assert_allclose(rises["AdEMAMix"], (half_life(end) - half_life(0.9)) / 1000, rtol=1e-6)
        assert rises["linear"].max() > 1000 * rises["linear"].min()


class TestMixes:
    """Captions of weights-m1-m2 and schedulers-convex."""

    STEPS = range(1, mixes.STEPS + 1)

    def test_schedules_are_a_cosine_and_a_line_to_the_final_alphas(self):
        mu = np.array(self.STEPS) / mixes.STEPS
        etas, alphas = mixes.over_time(mixes.schedules)
        assert_allclose(etas, 0.01 + 0.99 * (1 + np.cos(np.pi * mu)) / 2, rtol=1e-12)
        assert_allclose(alphas, 8 * mu, rtol=1e-12)
        fast, slow = mixes.over_time(lambda t: mixes.added(*mixes.schedules(t)))
        assert_allclose(slow / fast, alphas, rtol=1e-12)
        fast, slow = mixes.over_time(lambda t: mixes.convex(*mixes.schedules(t, 0.9)))
        assert_allclose(fast + slow, etas, rtol=1e-12)
        assert_allclose(slow / (fast + slow), 0.9 * mu, rtol=1e-12)

    def test_other_schedules_make_the_convex_mix_equal(self):
        for t in self.STEPS:
            equal = mixes.convex(*mixes.equal_schedules(t))
            assert_allclose(equal, mixes.added(*mixes.schedules(t)), rtol=1e-13)


def oracle_path(gradient, start, steps, momentum=(0.0, 0.0), **settings):
    oracle = ReferenceAdEMAMix(list(start), weight_decay=0.0, **settings)
    oracle.m1 = oracle.m2 = np.array(momentum)
    path = [oracle.theta]
    for _ in range(steps):
        path.append(oracle.update(gradient(oracle.theta)))
    return path


ADAM = {"alpha": 0.0}
"""Of the oracle: with alpha = 0, AdEMAMix is Adam."""


class TestRosenbrock:
    """Caption of toy_rosenbrock."""

    def test_gradient_is_that_of_the_function(self):
        for start in (rosenbrock.START, rosenbrock.MINIMUM, (0.3, -1.7)):
            point = torch.tensor(start, dtype=torch.float64, requires_grad=True)
            rosenbrock.rosenbrock(*point).backward()
            assert_allclose(rosenbrock.gradient(np.array(start)), point.grad, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(
        ("method", "beta", "lr", "settings"),
        [
            ("AdEMAMix", 0.99, 0.05, {"betas": (0.9, 0.999, 0.99), "alpha": 9.0}),
            ("Adam", 0.99, 0.2, {"betas": (0.99, 0.999, 0.0), **ADAM}),
        ],
    )
    def test_runs_have_the_settings_of_the_paper(self, method, beta, lr, settings):
        expected = oracle_path(rosenbrock.gradient, (-3.0, 5.0), 300, lr=lr, **settings)
        assert_allclose(rosenbrock.descend(method, beta, lr, steps=300).points, expected, rtol=1e-9)

    def test_measures_of_a_descent(self):
        run = Descent("Adam", 0.9, 0.1, np.array([[1.0, 5.0], [1.0, 2.0], [1.0, 3.0], [1.0, 1.5]]), (1.0, 1.0))
        assert run.steps == 3
        assert run.distances.tolist() == [4.0, 1.0, 2.0, 0.5]
        assert run.path_length == 3 + 1 + 1.5
        assert (run.first_within(3.0), run.first_within(1.0), run.first_within(0.5)) == (1, 3, math.inf)

    def test_rule_for_the_learning_rate(self):
        way = rosenbrock.valley_length()
        runs = [
            Descent("Adam", 0.9, lr, np.array([[0.0, 0.0], [stretch * way, 0.0]]), (1.0, 1.0))
            for lr, stretch in ((0.1, 0.5), (0.2, 1.33), (0.5, 1.34))
        ]
        assert rosenbrock.choose_rate(runs).lr == 0.2


class TestSteepAndFlat:
    """Caption of convergence-toy."""

    def test_gradient_is_that_of_the_function(self):
        points = torch.tensor([steep_and_flat.START, (-1.7, 9.0)], dtype=torch.float64, requires_grad=True)
        steep_and_flat.steep_and_flat(*points.T).sum().backward()
        assert_allclose(steep_and_flat.gradient(points.detach().numpy()), points.grad, rtol=1e-12)

    @pytest.mark.parametrize("method", METHODS)
    def test_runs_have_the_settings_of_the_paper(self, method):
        runs = steep_and_flat.descend(method, lr=0.01, steps=300)
        slow = {"betas": (0.9, 0.999, 0.999), "alpha": 5.0}
        settings = slow if method == "AdEMAMix" else {"betas": (0.999, 0.999, 0.0), **ADAM}
        for case, momentum in {"a": (-3.0, 0.0), "b": (-0.8, -3.0)}.items():
            expected = oracle_path(
                lambda point: steep_and_flat.gradient(point[None])[0], (0.3, -1.5), 300, momentum, lr=0.01, **settings
            )
            assert_allclose(runs[case].points, expected, rtol=1e-8, atol=1e-10)

    def test_the_rate_is_the_smallest_at_which_ademamix_comes_to_rest(self):
        runs = [steep_and_flat.descend("AdEMAMix", lr) for lr in steep_and_flat.RATES]
        at_rest = [
            cases["a"].lr for cases in runs if max(run.unrest for run in cases.values()) < steep_and_flat.AT_REST
        ]
        assert at_rest == [0.01, 0.03, 0.1]
        assert at_rest[0] == steep_and_flat.RATE

    def test_adam_without_bias_correction_does_not_come_to_rest_either(self):
        # both momenta and all rates at once: rows are independent
        rates = np.repeat(steep_and_flat.RATES, 2)[:, None]
        m = np.array([*steep_and_flat.MOMENTA.values()] * len(steep_and_flat.RATES))
        points, nu = np.full_like(m, steep_and_flat.START), np.zeros_like(m)
        farthest = np.zeros(len(m))
        for t in range(1, 3001):
            g = steep_and_flat.gradient(points)
            m = 0.999 * m + 0.001 * g
            nu = 0.999 * nu + 0.001 * g**2
            points = points - rates * m / (np.sqrt(nu / (1 - 0.999**t)) + 1e-8)
            if t > 2700:
                farthest = np.maximum(farthest, np.linalg.norm(points - steep_and_flat.MINIMUM, axis=1))
        assert farthest.min() > 0.35
