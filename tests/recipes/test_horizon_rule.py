"""The study of lengths: what its arms are, and how a speed-up is read off."""

from __future__ import annotations

import math

import pytest
import torch

from ademamix import AdEMAMix
from ademamix.lab.comparison.worth import SpeedUp, speed_up
from ademamix.lab.optimizers.construction import build
from ademamix.lab.recipes import load
from ademamix.lab.recipes.horizon_rule import ADAMW_ALONE, ALPHAS, LENGTHS, LENGTHS_LARGER, MOST_STEPS, SHARES
from ademamix.lab.reproduction.claims import FAILS, HOLDS, OPEN
from ademamix.lab.reproduction.lengths import Arms
from ademamix.lab.reproduction.outcome import Outcome, TrainedArm
from ademamix.lab.reproduction.scale import SCALES
from lab_runs import result

PANELS = list(load("horizon-rule")(SCALES["laptop"]))


def test_two_models_and_two_texts_at_eight_lengths() -> None:
    for panel in PANELS:
        lengths = LENGTHS_LARGER if panel.figure == "larger-code" else LENGTHS["laptop"]
        longest = ADAMW_ALONE.get(panel.figure, ())
        assert sorted({run.steps for run in panel.arms.values()}) == [*lengths, *longest]
        assert {run.optimizer.name for run in panel.arms.values() if run.steps in longest} <= {"adamw"}
        assert len(lengths) == 8
        assert len({(run.model, run.data) for run in panel.arms.values()}) == 1
    first = [next(iter(panel.arms.values())) for panel in PANELS]
    assert (len({run.model for run in first}), len({run.data for run in first})) == (2, 2)


@pytest.mark.parametrize("steps", LENGTHS["laptop"])
def test_our_rule_is_what_the_constructor_chooses(steps: int) -> None:
    arms = Arms(SCALES["laptop"].lm("110m"), LENGTHS["laptop"], SHARES, ALPHAS, MOST_STEPS)
    run = arms.runs()[arms.ademamix(steps)]
    param = torch.nn.Parameter(torch.zeros(2))
    stated = build(run.optimizer, [{"params": [param]}], total_steps=run.steps).param_groups[0]
    chosen = AdEMAMix([param], lr=run.optimizer.lr, total_steps=run.steps).param_groups[0]
    for name in ("betas", "alpha", "alpha_warmup", "beta3_warmup", "beta3_start"):
        assert stated[name] == pytest.approx(chosen[name], rel=1e-12)


def test_every_arm_is_measured_by_an_adamw_of_its_length_that_is_searched() -> None:
    for panel in PANELS:
        for name, run in panel.arms.items():
            baseline = panel.baseline_of(name)
            assert panel.arms[baseline].optimizer.name == "adamw"
            assert panel.arms[baseline].steps == run.steps
            assert baseline in panel.tune
            assert (name in panel.tune) != (name in panel.follow)
            if name in panel.follow:
                assert panel.arms[panel.follow[name]].steps == run.steps


@pytest.mark.parametrize("scale", SCALES)
def test_every_claim_is_about_runs_that_are_trained(scale: str) -> None:
    for panel in load("horizon-rule")(SCALES[scale]):
        losses = [2.0, 2.1, 2.2]
        arms = {name: TrainedArm(name, run, [*map(result, losses)], []) for name, run in panel.arms.items()}
        decided = [claim.decide(Outcome(arms, (1, 2, 3))) for claim in panel.claims]
        assert {one.verdict for one in decided} <= {HOLDS, FAILS, OPEN}


def test_adamw_is_shared_with_the_comparison() -> None:
    comparison = next(iter(load("lm-comparison")(SCALES["laptop"]))).arms
    assert {run.key for name, run in comparison.items() if name.startswith("AdamW")} <= {
        run.key for run in PANELS[0].arms.values()
    }


def test_a_speed_up_is_read_off_seed_by_seed() -> None:
    adamw = {500: [2.0, 2.2], 1000: [1.8, 2.0], 2000: [1.6, 1.8]}
    assert speed_up(500, [1.8, 1.8], adamw).by_seed == pytest.approx([2.0, 4.0])
    assert speed_up(1000, [1.7, 1.9], adamw).by_seed == pytest.approx([math.sqrt(2)] * 2)
    slower = speed_up(1000, [1.9, 2.1], adamw)
    assert slower.mean == pytest.approx(1 / math.sqrt(2))


def test_what_is_not_known_is_said() -> None:
    assert str(SpeedUp([math.inf] * 3, largest=4.0)) == "over 4"
    assert str(SpeedUp([2.0, math.inf, 2.0], largest=4.0)) == "at least 2.52"
    assert str(SpeedUp([0.0, math.inf, 2.0], largest=4.0)) == "not known"
    assert str(SpeedUp([0.0, 1.0, 1.0], largest=4.0)) == "not known"
    assert math.isnan(SpeedUp([0.0, 1.0, 1.0], largest=4.0).mean)


def test_runs_of_two_lengths_may_end_alike() -> None:
    assert speed_up(500, [2.0], {500: [2.0], 1000: [2.0]}).by_seed == [1.0]
