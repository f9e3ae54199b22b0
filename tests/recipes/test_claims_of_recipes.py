"""Claims of recipes, on outcomes that were made up: what each looks at, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ademamix.lab.recipes import load
from ademamix.lab.reproduction.claims import FAILS, HOLDS, OPEN, Claim, Decision
from ademamix.lab.reproduction.outcome import Outcome, TrainedArm
from ademamix.lab.reproduction.panel import Panel
from ademamix.lab.reproduction.scale import SCALES
from ademamix.lab.runs.record import RunFolder
from lab_runs import result

LAPTOP = SCALES["laptop"]


def claims_of(name: str, scale: str = "laptop") -> list[Claim]:
    return [claim for panel in load(name)(SCALES[scale]) for claim in panel.claims]


def made_up(panel: Panel, curves: Mapping[str, Mapping[int, float]], root: Path) -> Outcome:
    """Return an outcome in which arms have these validation losses by step, on three seeds."""
    arms = {}
    for name, curve in curves.items():
        folders = [RunFolder(root, panel.arms[name].changed(seed=seed)) for seed in LAPTOP.seeds]
        for folder in folders:
            with folder.locked(), folder.open_metrics() as append:
                for step, loss in curve.items():
                    append({"step": step, "validation_loss": loss})
        arms[name] = TrainedArm(name, panel.arms[name], [result(curve[max(curve)])] * 3, folders)
    return Outcome(arms, LAPTOP.seeds)


def decided(panel: Panel, found: Outcome) -> dict[str, Decision]:
    return {claim.text: claim.decide(found) for claim in panel.claims}


def test_what_the_paper_does_not_say_is_ours() -> None:
    for name, count in {"toy-rosenbrock": 1, "beta3-schedule": 1}.items():
        assert sum(claim.ours for claim in claims_of(name)) == count


def test_a_drop_after_a_switch_is_one_from_before_it(tmp_path: Path) -> None:
    (panel,) = load("switch-to-adamw")(LAPTOP)
    adamw, only, switched = panel.arms
    before, soon, between, later = 10_000, 10_400, 11_200, 12_000
    curves = {
        adamw: {before: 2.1, soon: 2.1, between: 2.1, later: 2.1},
        only: {before: 2.0, soon: 1.7, between: 1.7, later: 1.7},
        switched: {before: 2.0, soon: 1.9, between: 1.95, later: 1.8},
    }
    drops, rises, *_ = decided(panel, made_up(panel, curves, tmp_path / "drop")).values()
    assert (drops.verdict, rises.verdict) == (HOLDS, HOLDS)
    curves[switched] = {before: 1.6, soon: 1.65, between: 1.64, later: 1.63}
    curves[only] = {before: 2.0, soon: 1.7, between: 1.8, later: 1.6}
    drops, rises, *_ = decided(panel, made_up(panel, curves, tmp_path / "none")).values()
    assert (drops.verdict, rises.verdict) == (FAILS, FAILS)


def test_images_that_are_seen_once_show_no_overfitting(tmp_path: Path) -> None:
    """Two losses that are the same decide nothing then."""
    panel = next(load("vit")(LAPTOP))
    arms = {}
    for name, run in panel.arms.items():
        folders = [RunFolder(tmp_path, run.changed(seed=seed)) for seed in LAPTOP.seeds]
        for folder in folders:
            with folder.locked(), folder.open_metrics() as append:
                append({"step": run.steps, "validation_loss": 1.5, "training_loss": 1.5, "accuracy": 0.5})
        arms[name] = TrainedArm(name, run, [result(1.5)] * 3, folders)
    decisions = decided(panel, Outcome(arms, LAPTOP.seeds))
    similar = decisions["Training and test loss are very similar at the end of all runs, within 0.1"]
    assert (similar.verdict, similar.reason[:27]) == (OPEN, "No image is seen twice, so ")


def test_the_state_without_a_fast_average_is_as_large_as_that_of_adamw() -> None:
    _, panel = load("beta1-zero")(LAPTOP)
    (claim,) = (claim for claim in panel.claims if "memory complexity" in claim.text)
    for bytes_of_state, verdict in ((80, HOLDS), (120, FAILS)):
        results = {name: result(1.0) for name in panel.arms}
        results["beta1=0"] = replace(results["beta1=0"], state_bytes=bytes_of_state)
        arms = {name: TrainedArm(name, run, [results[name]] * 3, []) for name, run in panel.arms.items()}
        assert claim.decide(Outcome(arms, LAPTOP.seeds)).verdict == verdict


def test_sentences_about_tied_warm_ups_stay_with_them() -> None:
    tied, alone = load("sensitivity-warmup")(LAPTOP)
    assert ["either diverge or converge" in claim.source for claim in tied.claims] == [True, False]
    assert [claim.text.startswith("A warm-up of alpha is necessary") for claim in alone.claims] == [True, False]
    assert not any("either diverge" in claim.source for claim in alone.claims)
