"""The recipes that need no training: their files, and the claims of the paper's captions held to their numbers."""

from __future__ import annotations

import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from PIL import Image

from ademamix import beta3_at, half_life
from ademamix.lab.recipes import (
    NO_TRAINING,
    RECIPES,
    beta3_schedule,
    ema_weights,
    load,
    mix_weights,
    nested_emas,
    toy_two_emas,
)
from ademamix.lab.report import figures
from ademamix.reference import ReferenceAdEMAMix

FILES = {  # toy-rosenbrock has tests of its own
    "toy-two-emas": ["toy-two-emas"],
    "ema-weights": ["ema-weights"],
    "beta3-schedule": ["beta3-schedule"],
    "mix-weights": ["mix-weights", "mix-weights-schedules"],
    "nested-emas": ["nested-emas"],
}


@pytest.mark.parametrize("name", FILES)
def test_recipe_writes_whole_files_and_the_same_every_time(name, tmp_path):
    report = load(name)(tmp_path, "smoke")
    files = [tmp_path / f"{file}.{kind}" for file in FILES[name] for kind in ("png", "svg")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    for file in files:
        assert str(file) in report
        if file.suffix == ".png":
            with Image.open(file) as image:
                image.load()
                assert min(image.size) > 500
        else:
            assert ElementTree.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    before = [file.read_bytes() for file in files]

    assert ("they show nothing" in report) != (NO_TRAINING in report)
    scale = "paper" if NO_TRAINING in report else "smoke"
    assert load(name)(tmp_path, scale) == report
    assert [file.read_bytes() for file in files] == before


def test_listing_the_recipes_loads_no_framework():
    code = (
        "import sys, ademamix.lab.recipes as recipes\n"
        "assert recipes.RECIPES and recipes.SCALES == ('smoke', 'laptop', 'paper')\n"
        "print([name for name in ('torch', 'matplotlib', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {"toy-rosenbrock", "lm-comparison", *FILES} == set(RECIPES)


class TestFigures:
    def test_series_differ_in_black_and_white(self):
        for looks in (figures.ADAM + figures.ADEMAMIX, figures.SERIES):
            assert len({(str(look.line), look.marker, look.hollow) for look in looks}) == len(looks)

    def test_figure_that_cannot_be_drawn_leaves_the_old_files(self, tmp_path):
        figures.save(Figure(), tmp_path, "figure")
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        assert set(before) == {"figure.png", "figure.svg"}
        broken = Figure()
        broken.text(0, 0, "$\\frac$")
        with pytest.raises(ValueError, match="frac"):
            figures.save(broken, tmp_path, "figure")
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

    def test_saving_leaves_matplotlib_as_it_was(self, tmp_path):
        before = dict(matplotlib.rcParams)
        figures.save(Figure(), tmp_path, "figure")
        assert dict(matplotlib.rcParams) == before

    def test_shifted_markers_stay_on_the_line(self):
        axes = Figure().subplots()
        for shift in (0.0, 0.5, 0.99):
            figures.draw_line(axes, range(101), range(101), figures.SERIES[0], "line", shift=shift)
        assert [line.get_markevery() for line in axes.lines] == [(10, 10), (5, 10), (1, 10)]
        figures.draw_line(axes, [0, 1], [0, 1], figures.SERIES[0], "short")
        assert axes.lines[-1].get_markevery() == (1, 1)


class TestEmaWeights:
    """Caption of limitation-EMA, and section 3."""

    def test_weights_are_those_of_the_recursion(self):
        for beta in ema_weights.BETAS:
            average, weights = 0.0, []
            for age in range(50):  # a single gradient of 1, seen `age` steps later
                average = beta * average + (1 - beta) * (age == 0)
                weights.append(average)
            assert_allclose(ema_weights.ema_weights(beta, steps=49), weights, rtol=1e-12)

    def test_small_beta_sees_only_the_immediate_past(self):
        split = ema_weights.Split.of(0.9)
        assert split.recent > 0.6
        assert split.old < 1e-200

    def test_large_beta_is_nearly_uniform_and_neglects_nothing(self):
        weights = ema_weights.ema_weights(0.9999)
        assert len(weights) == 10_001
        assert weights.max() / weights.min() < 3
        assert weights.min() > 1e-5

    def test_larger_beta_is_more_uniform(self):
        decays = [np.ptp(np.log(ema_weights.ema_weights(beta, steps=500))) for beta in ema_weights.BETAS]
        assert decays == sorted(decays, reverse=True)

    def test_no_beta_gives_weight_to_both(self):
        betas = 1 - np.geomspace(1e-6, 0.5, 500)
        splits = [ema_weights.Split.of(float(beta)) for beta in betas]
        assert max(min(split.recent, split.old) for split in splits) < 0.01
        assert max(split.recent for split in splits) > 0.99
        assert max(split.old for split in splits) > 0.2

    def test_half_of_the_weight_is_on_the_last_gradients(self):
        assert (round(half_life(0.9)), round(half_life(0.9999))) == (6, 6930)
        for beta in ema_weights.BETAS:
            newest = math.ceil(half_life(beta)) + 1
            assert ema_weights.ema_weights(beta)[:newest].sum() == pytest.approx(0.5, abs=1 - beta)

    def test_table_says_so(self):
        rows = [line.split() for line in ema_weights.table().splitlines()[2:]]
        assert [row[0] for row in rows] == ["0.9", "0.99", "0.999", "0.9999"]
        assert rows[0] == ["0.9", "5.6", "0.1000", "0.6513", "1.5e-229", "1.000"]
        assert rows[3] == ["0.9999", "6,930.1", "0.0001", "0.0010", "0.24", "0.632"]
        assert "gives 65% of its weight to the last 10 gradients" in ema_weights.reading()


class TestBeta3Schedule:
    """Caption of beta_scheduler, and section 3."""

    def test_it_is_the_schedule_of_the_optimizer(self):
        assert beta3_schedule.paper_schedule(250, 0.9999) == beta3_at(250, beta3=0.9999, start=0.9, T=1000)

    @pytest.mark.parametrize("end", beta3_schedule.ENDS)
    def test_both_schedules_end_where_they_should(self, end):
        for name in beta3_schedule.SCHEDULES:
            betas = beta3_schedule.betas(name, end)
            assert len(betas) == beta3_schedule.STEPS
            assert 0.9 < betas[0] < 0.951
            assert betas[-1] == pytest.approx(end, rel=1e-15)
            assert (np.diff(betas) > 0).all()

    @pytest.mark.parametrize("end", beta3_schedule.ENDS)
    def test_half_life_grows_linearly_under_the_paper_only(self, end):
        rises = {name: np.diff(beta3_schedule.half_lives(name, end)) for name in beta3_schedule.SCHEDULES}
        assert_allclose(rises["AdEMAMix"], (half_life(end) - half_life(0.9)) / 1000, rtol=1e-6)
        assert rises["linear"].max() > 1000 * rises["linear"].min()

    @pytest.mark.parametrize("end", beta3_schedule.ENDS)
    def test_it_increases_fast_for_small_betas_and_slowly_for_large_ones(self, end):
        rises = np.diff(beta3_schedule.betas("AdEMAMix", end))
        assert (np.diff(rises) < 0).all()
        linear = (end - 0.9) / 1000
        assert rises[0] > 5 * linear
        assert rises[-1] < linear / 50

    def test_the_linear_schedules_look_the_same_and_the_others_do_not(self):
        apart = {
            name: abs(beta3_schedule.betas(name, 0.9999) - beta3_schedule.betas(name, 0.999)).max()
            for name in beta3_schedule.SCHEDULES
        }
        assert apart["linear"] < 0.00091
        assert apart["AdEMAMix"] > 0.05

    def test_same_increment_has_another_effect_on_another_beta(self):
        assert half_life(0.9001) - half_life(0.9) < 0.01
        assert round(half_life(0.9991) - half_life(0.999)) == 77

    def test_table_says_so(self):
        rows = [line.split() for line in beta3_schedule.table().splitlines()[2:]]
        assert [row[:2] + row[6:] for row in rows] == [
            ["AdEMAMix", "0.999", "177.1", "348.7", "520.2", "691.8"],
            ["linear", "0.999", "7.9", "12.4", "25.6", "691.8"],
            ["AdEMAMix", "0.9999", "1,736.7", "3,467.9", "5,199.0", "6,930.1"],
            ["linear", "0.9999", "7.9", "12.5", "26.3", "6,930.1"],
        ]
        reading = beta3_schedule.reading()
        assert "adds 0.007 steps at 0.9, and 77 at 0.999" in reading
        assert "never more than 0.0009 apart" in reading


class TestMixWeights:
    """Captions of weights-m1-m2 and schedulers-convex."""

    STEPS = range(1, mix_weights.STEPS + 1)

    def test_schedules_are_a_cosine_and_a_line_to_the_final_alphas(self):
        etas = np.array([mix_weights.eta_at(t) for t in self.STEPS])
        mu = np.array(self.STEPS) / mix_weights.STEPS
        assert_allclose(etas, 0.01 + 0.99 * (1 + np.cos(np.pi * mu)) / 2, rtol=1e-12)
        fast, slow = np.array([mix_weights.added(t) for t in self.STEPS]).T
        assert_allclose(slow / fast, 8 * mu, rtol=1e-12)
        fast, slow = np.array([mix_weights.convex_as_scheduled(t) for t in self.STEPS]).T
        assert_allclose(fast + slow, etas, rtol=1e-12)
        assert_allclose(slow / (fast + slow), 0.9 * mu, rtol=1e-12)

    def test_no_final_alpha_makes_the_convex_mix_equal(self):
        # equal weights at all steps, up to a factor, would need one value of m2/m1 over t
        for alpha in (0.3, 0.6, 0.9):
            ratios = []
            for t in (250, 1000):
                fast, slow = mix_weights.convex(mix_weights.eta_at(t), mix_weights.alpha_at(t, alpha, 1000))
                ratios.append(slow / fast / t)
            assert ratios[1] > 1.25 * ratios[0]

    def test_other_schedules_make_it_equal(self):
        for t in self.STEPS:
            assert_allclose(mix_weights.convex(*mix_weights.equal_schedules(t)), mix_weights.added(t), rtol=1e-13)

    def test_those_are_neither_a_cosine_nor_a_line(self):
        etas, alphas = np.array([mix_weights.equal_schedules(t) for t in self.STEPS]).T
        assert etas.argmax() == pytest.approx(370, abs=10)
        assert etas.max() > 2.5 * etas[0]
        assert alphas[124] == pytest.approx(0.5)
        assert alphas[-1] == pytest.approx(8 / 9)
        assert 0 < alphas.min() < alphas.max() < 1

    def test_table_says_so(self):
        rows = [line.split() for line in mix_weights.table().splitlines()[2:]]
        assert [row[0] for row in rows] == ["1", "T/8", "T/4", "T/2", "3T/4", "T"]
        assert rows[3][1:] == ["0.505", "2.020", "0.278", "0.227", "0.505", "4.000", "2.525", "0.800"]
        assert "rises to 2.8 times its first value at t = 0.37 T" in mix_weights.reading()


class TestNestedEmas:
    """Caption of dema, and the text before it."""

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
        assert_allclose(nested_emas.admeta(beta2)[:steps] * total, weights, rtol=1e-9)

    def test_nested_and_double_emas_have_their_closed_forms(self):
        age = np.arange(200)
        nested = 0.1**2 * (age + 1) * 0.9**age
        assert_allclose(nested_emas.nested()[:200], nested, rtol=1e-9)
        assert_allclose(nested_emas.dema()[:200], 2 * 0.1 * 0.9**age - nested, rtol=1e-9, atol=1e-16)

    def test_nesting_decreases_the_influence_of_recent_steps(self):
        single, nested = ema_weights.ema_weights(0.9), nested_emas.nested()
        assert (nested[:8] < single[:8]).all()
        assert nested[0] == pytest.approx(0.1 * single[0])
        assert nested.argmax() in (8, 9)
        assert nested_emas.admeta(0.4)[0] < single[0]

    def test_dema_increases_it_and_takes_weight_from_older_steps(self):
        single, double = ema_weights.ema_weights(0.9), nested_emas.dema()
        assert (double[:9] > single[:9]).all()
        assert (double[20:100] < 0).all()

    @pytest.mark.parametrize("beta2", [0.1, 0.4])
    def test_admeta_gives_old_gradients_a_negligible_weight(self, beta2):
        assert nested_emas.admeta(beta2)[1001:].sum() < 1e-40

    def test_a_mixture_keeps_the_recent_weights_and_adds_the_old(self):
        mixture = nested_emas.mixture()
        assert (mixture > ema_weights.ema_weights(0.9)).all()
        assert mixture[1001:].sum() > 2
        assert mixture[1000] > 1e-4

    def test_table_says_so(self):
        rows = {line[:24].strip(): line[24:].split() for line in nested_emas.table().splitlines()[2:]}
        assert rows["EMA of EMA"] == ["0.0100", "1.6e-44", "1.00", "0.0100", "1.6e-44"]
        assert rows["AdMeta-S, beta2 = 0.1"][0] == "0.1235"
        assert rows["AdMeta-S, beta2 = 0.4"] == ["0.0824", "1.6e-46", "1.00", "0.0824", "1.6e-46"]
        assert rows["AdEMAMix"] == ["0.1005", "2.7", "4.16", "0.0242", "0.65"]
        assert "a negative weight from 20 steps ago on" in nested_emas.reading()


@pytest.fixture(scope="module")
def study():
    return toy_two_emas.run_study()


class TestToyTwoEmas:
    """Caption of convergence-toy, and the text before it."""

    def test_gradient_is_that_of_the_function(self):
        points = torch.tensor([toy_two_emas.START, (-1.7, 9.0)], dtype=torch.float64, requires_grad=True)
        toy_two_emas.steep_and_flat(*points.T).sum().backward()
        assert_allclose(toy_two_emas.gradient(points.detach().numpy()), points.grad, rtol=1e-12)

    @pytest.mark.parametrize("method", toy_two_emas.METHODS)
    def test_runs_have_the_settings_of_the_paper(self, method):
        points = toy_two_emas.descend(method, lr=0.01, steps=300).points
        for case, momentum in enumerate([(-3.0, 0.0), (-0.8, -3.0)]):
            betas, alpha = ((0.9, 0.999, 0.999), 5.0) if method == "AdEMAMix" else ((0.999, 0.999, 0.0), 0.0)
            oracle = ReferenceAdEMAMix([0.3, -1.5], lr=0.01, betas=betas, alpha=alpha, weight_decay=0.0)
            oracle.m1 = oracle.m2 = np.array(momentum)
            expected = [oracle.theta]
            for _ in range(300):
                expected.append(oracle.update(toy_two_emas.gradient(oracle.theta[None])[0]))
            assert_allclose(points[:, case], expected, rtol=1e-8, atol=1e-10)

    def test_adam_follows_its_first_momentum_and_comes_to_rest_at_no_rate(self, study):
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

    def test_ademamix_overshoots_then_converges(self, study):
        mix = toy_two_emas.drawn(study)["AdEMAMix"]
        assert mix.points[:, 0].max(axis=0) == pytest.approx((1.2, 5.9), abs=0.05)
        assert mix.points[:, 1].max(axis=0) == pytest.approx((1.1, 10.1), abs=0.05)
        assert mix.distances[-1].max() < 0.003
        assert mix.unrest.max() < toy_two_emas.AT_REST
        assert mix.distances[300].min() > 1  # only when m2 of the start has faded

    def test_the_rate_is_the_smallest_at_which_ademamix_comes_to_rest(self, study):
        at_rest = [run.lr for run in study["AdEMAMix"] if run.unrest.max() < toy_two_emas.AT_REST]
        assert at_rest == [0.01, 0.03, 0.1]
        assert at_rest[0] == toy_two_emas.RATE

    def test_adam_without_bias_correction_does_not_come_to_rest_either(self):
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

    def test_report_says_so(self, study):
        rows = [line.split() for line in toy_two_emas.table(study).splitlines()[2:]]
        assert [row[:2] for row in rows[2::5]] == [["Adam", "0.01*"], ["AdEMAMix", "0.01*"]]
        assert rows[7][2:] == ["3.4e-06", "9.1e-05", "0.0028", "0.031"]
        assert "in (a) along x to 3.9, in (b) along y to 20.8" in toy_two_emas.reading(study)
        assert "overshoots too, to y = 5.9 and 10.1, and comes to rest as m2(0) fades" in toy_two_emas.reading(study)
