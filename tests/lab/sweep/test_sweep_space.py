"""What a sweep tries, as written on the command line, and as runs."""

from __future__ import annotations

import math

import optuna
import pytest

from ademamix.lab.comparison.defaults import DEFAULT, STARTING_POINTS
from ademamix.lab.config import ConfigError, Run
from ademamix.lab.settings import changed
from ademamix.lab.sweep.space import Between, Values, described, dimension, ladder, space

ADEMAMIX = DEFAULT.changed(optimizer=STARTING_POINTS["ademamix"])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("alpha=2,4,8", (2, 4, 8)),
        ("clip=none,0.5", (None, 0.5)),
        ("state_storage=fp32,compact", ("fp32", "compact")),
        ("stochastic_rounding=true,false", (True, False)),
        ("lr=1e-3..16e-3:5", (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)),
        ("beta3=0.9..0.9999:4", (0.9, 0.99, 0.999, 0.9999)),
        ("alpha=2..8:4", (2, 4, 6, 8)),
        ("alpha=2..8:log:3", (2, 4, 8)),
        ("warmup=100..201:3", (100, 150, 201)),
    ],
)
def test_lists(text: str, values: tuple[object, ...]) -> None:
    assert dimension(text) == Values(text.partition("=")[0], values)


@pytest.mark.parametrize(
    ("text", "scale"),
    [("lr=1e-3..1", "log"), ("beta3=0..0.9", "memory"), ("alpha=0..9", "even"), ("lr=0..1:even", "even")],
)
def test_ranges_have_the_scale_that_suits_the_setting(text: str, scale: str) -> None:
    found = dimension(text)
    assert isinstance(found, Between)
    assert found.scale == scale
    assert dimension(str(found)) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "a setting is given as NAME=A,B,C or NAME=A..B, got 'lr'"),
        ("lr=", "a setting is given as"),
        ("lr=1,", "a comma too many, got 'lr=1,'"),
        ("lr=1,1.0", "has a value twice"),
        ("lr=2..1", "numbers A < B, got 'lr=2..1'"),
        ("lr=1..1", "numbers A < B, got 'lr=1..1'"),
        ("lr=low..high", "numbers A < B, got"),
        ("lr=1..inf", "numbers A < B, got"),
        ("lr=0..1", "begins above 0, got 'lr=0..1': lr=0..1:even spreads it evenly"),
        ("beta1=0.5..1", "beta1 must be in"),
        ("lr=1..2:1", "a number of values from 2 on, got 'lr=1..2:1'"),
        ("lr=1..2:steep", "comes log, even, memory or a number"),
    ],
)
def test_what_is_no_list_or_range_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        dimension(text)
    assert message in str(refused.value)


def test_a_space_has_a_setting_once_and_a_grid_no_ranges() -> None:
    with pytest.raises(ConfigError, match="lr is given twice"):
        space(["lr=1,2", "lr=3,4"])
    with pytest.raises(ConfigError, match=r"say how many, lr=1\.\.2:5"):
        space(["lr=1..2"], finite=True)


def test_a_grid_has_every_combination_once() -> None:
    found = space(["lr=1e-3,2e-3", "clip=none,1", "alpha=2..8:3"])
    points = [tuple(found.point(stored).values()) for stored in found.grid()]
    assert len(found) == len(points) == len(set(points)) == 12
    assert points[0] == (1e-3, None, 2)


def test_a_sampler_stays_within_the_ranges_and_draws_short_numbers() -> None:
    found = space(["lr=1e-4..1e-1", "beta3=0.9..0.9999", "alpha=1..2", "warmup=1..5", "clip=none,1"])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = []
    for _ in range(200):
        trial = study.ask()
        drawn.append(found.suggested(trial))
        assert found.point(trial.params) == drawn[-1]
    for point in drawn:
        assert 1e-4 <= point["lr"] <= 1e-1
        assert 0.9 <= point["beta3"] <= 0.9999
        assert 1 <= point["alpha"] <= 2
        assert isinstance(point["warmup"], int)
        assert len(f"{point['lr']:g}".replace("0.", "").lstrip("0").partition("e")[0].replace(".", "")) <= 3
    below = sum(math.log10(1 - point["beta3"]) < -2.5 for point in drawn)
    assert 60 < below < 140  # half of them, in the logarithm of 1 - beta3
    assert {point["clip"] for point in drawn} == {None, 1}


def test_edges() -> None:
    assert dimension("lr=1e-3,2e-3,4e-3").at_edge(1e-3)
    assert not dimension("lr=1e-3,2e-3,4e-3").at_edge(2e-3)
    assert not dimension("state_storage=fp32,compact").at_edge("fp32")
    assert dimension("beta3=0.9..0.9999").at_edge(0.9999)
    assert not dimension("beta3=0.9..0.9999").at_edge(0.999)


def test_points_become_runs() -> None:
    point = {"lr": 1e-3, "beta1": 0.8, "beta2": 0.95, "beta3": 0.99, "clip": None, "batch": 4, "warmup": 7}
    run = changed(ADEMAMIX, **point, schedule="constant")
    assert run.optimizer.settings == {"weight_decay": 0.1, "alpha": 8, "betas": [0.8, 0.95], "beta3": 0.99}
    assert (run.optimizer.lr, run.clip, run.batch, run.schedule.kind, run.schedule.warmup) == (
        1e-3,
        None,
        4,
        "constant",
        7,
    )
    assert described(point).startswith("lr=0.001 beta1=0.8")


def test_the_defaults_as_a_point_are_the_run_itself() -> None:
    same = {"lr": 4e-3, "beta1": 0.9, "alpha": 8, "schedule": "cosine", "warmup": 200, "clip": 1.0}
    without_beta1 = {name: value for name, value in same.items() if name != "beta1"}
    assert changed(ADEMAMIX, **without_beta1, beta2=0.999).key == ADEMAMIX.key
    written_out = changed(ADEMAMIX, betas=[0.9, 0.999])
    assert changed(written_out, **same, beta2=0.999).key == written_out.key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth=1,2", "optimizer 'ademamix' has no setting 'depth': it takes"),
        ("alpha=2,-1", "alpha must be a finite number >= 0, got -1"),
        ("seed=1,2", "seed cannot be swept: it can be lr, batch, "),
        ("alpha=-1..1", "alpha must be a finite number >= 0, got -1"),
    ],
)
def test_impossible_values_are_found_before_anything_is_trained(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        space(["lr=1e-3..1e-2", text]).check(ADEMAMIX)
    assert message in str(refused.value)


def test_the_rates_of_a_search_are_a_ladder() -> None:
    for start in (4e-3, 1e-4, 0.016):
        assert ladder(start / 4, 2.0, 5) == [start * 2.0**power for power in range(-2, 3)]


def test_keys_of_trials_are_keys_of_runs() -> None:
    assert isinstance(changed(ADEMAMIX, lr=2e-3), Run)
    assert (
        changed(ADEMAMIX, lr=2e-3).key
        == ADEMAMIX.changed(optimizer=STARTING_POINTS["ademamix"].model_copy(update={"lr": 2e-3})).key
    )
