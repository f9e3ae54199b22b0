"""What the engine does with a plan: it searches, trains once, sends outcomes back, and loses nothing when stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import lab_here
from ademamix.lab.config import Run
from ademamix.lab.probes import FollowTrainingBatch, UpdateNorms
from ademamix.lab.recipes import Recipe
from ademamix.lab.report.kinds import Curves, EndAgainst, Forgetting, Gap, HeatMap, Scatter
from ademamix.lab.reproduction.claims import HOLDS, OPEN, Claim, Quantity, lower, measured
from ademamix.lab.reproduction.engine import Reproduction, carry_out, searched
from ademamix.lab.reproduction.outcome import Outcome
from ademamix.lab.reproduction.panel import Panel, Panels, Plan
from ademamix.lab.reproduction.scale import SCALES, Scale, grid
from ademamix.lab.runs.archive import Archive
from ademamix.lab.runs.record import Result, RunError, RunFolder
from lab_here import LabHere
from lab_runs import result

lab, shared_out = lab_here.lab, lab_here.shared_out

TWO_SEEDS = replace(SCALES["smoke"], name="laptop", seeds=(1, 2), rounds=0)
"""Of the size of a test, and yet conclusive."""


def begun(folder: Path, at: Scale = TWO_SEEDS) -> Reproduction:
    return Reproduction("test", Recipe("a test", ("label",), "1 s"), at, folder)


def read(folder: Path, name: str = "verdict.json") -> dict:
    return json.loads((folder / name).read_text())


def two_panels(lr: float) -> Plan:
    def plan(at: Scale) -> Panels:
        lm = SCALES["smoke"].lm("110m")
        first = yield Panel("first", {"AdamW": lm.run("adamw", lr=lr)}, show=[Curves()], claims=[_claim("AdamW")])
        best = first.lowest().run.optimizer.lr
        yield Panel("second", {"AdEMAMix": lm.run("ademamix", lr=best)}, show=[Curves()], claims=[_claim("AdEMAMix")])

    return plan


def _claim(name: str) -> Claim:
    return Claim("the loss is below that of chance", lower(name, measured("the loss of chance", 5.55)))


@dataclass(frozen=True)
class Stopped(LabHere):
    """A lab that is stopped before the second panel."""

    def carry_out(self, runs: Mapping[str, Run], title: str) -> dict[str, Result]:
        if title.startswith("second"):
            raise KeyboardInterrupt
        return super().carry_out(runs, title)


def test_stopped_and_continued(tmp_path: Path, lab: LabHere) -> None:
    stopped, plan = Stopped(lab.options), two_panels(lr=0.0101)
    parts = carry_out(begun(tmp_path), plan, stopped)
    assert "first" in next(parts)
    with pytest.raises(KeyboardInterrupt):
        next(parts)
    assert (tmp_path / "test.png").exists()
    assert "more panels to come" in (tmp_path / "report.md").read_text()
    kept = read(tmp_path)
    assert (kept["complete"], [panel["title"] for panel in kept["panels"]]) == (False, ["first"])

    list(carry_out(begun(tmp_path), plan, lab))
    assert stopped.trained == ["AdamW, seed 1", "AdamW, seed 2"]
    assert lab.trained == ["AdEMAMix, seed 1", "AdEMAMix, seed 2"]
    found = read(tmp_path)
    assert (found["complete"], [panel["title"] for panel in found["panels"]]) == (True, ["first", "second"])
    assert found["panels"][0] == kept["panels"][0]
    assert [panel["claims"][0]["verdict"] for panel in found["panels"]] == [HOLDS, HOLDS]
    assert found["panels"][0]["claims"][0]["seeds"] == [1, 2]


def test_outcomes_come_back_to_the_plan(tmp_path: Path, lab: LabHere) -> None:
    list(carry_out(begun(tmp_path), two_panels(lr=0.0102), lab))
    _, second = read(tmp_path, "panels.json")["panels"]
    assert second["arms"]["AdEMAMix"]["run"]["optimizer"]["lr"] == 0.0102
    assert set(second["arms"]["AdEMAMix"]["keys"]) == {"1", "2"}


def test_arms_that_are_the_same_run_are_trained_once(tmp_path: Path, lab: LabHere) -> None:
    run = SCALES["smoke"].lm("110m").run("adamw", lr=0.0123)

    def plan(at: Scale) -> Panels:
        yield Panel("twins", {"one": run, "other": run}, show=[Curves()])

    list(carry_out(begun(tmp_path), plan, lab))
    assert lab.trained == ["one, seed 1", "one, seed 2"]
    (panel,) = read(tmp_path, "panels.json")["panels"]
    assert panel["arms"]["one"] == panel["arms"]["other"]


def test_search_takes_what_is_best_on_seed_0(tmp_path: Path, lab: LabHere) -> None:
    lm = SCALES["smoke"].lm("110m")

    def plan(at: Scale) -> Panels:
        arms = {"tuned": lm.run("adamw"), "stated": lm.run("adamw", lr=1e-3)}
        yield Panel("search", arms, tune=["tuned"], show=[Curves()])

    text = "\n".join(carry_out(begun(tmp_path, SCALES["smoke"]), plan, lab))
    (panel,) = read(tmp_path, "panels.json")["panels"]
    searched = {row["lr"]: row["validation_loss"] for row in panel["searched"]["tuned"]["losses"]}
    assert len(searched) == 3
    rates = {name: arm["run"]["optimizer"]["lr"] for name, arm in panel["arms"].items()}
    assert rates == {"tuned": min(searched, key=searched.__getitem__), "stated": 1e-3}
    assert "search: validation loss by learning rate and beta2, seed 0:\ntuned, best: lr=" in text
    assert panel["searched"]["tuned"]["run"].get("seed", 0) == 0


@pytest.mark.parametrize(("early_stopping", "best"), [(False, 0.5), (True, 2.0)])
def test_a_search_goes_by_the_last_loss_or_by_the_lowest(early_stopping: bool, best: float, tmp_path: Path) -> None:
    base = SCALES["smoke"].lm("110m").run("adamw")

    def overfit(runs: Mapping[str, Run]) -> dict[str, Result]:
        """The higher the rate, the lower a run gets and the higher it ends."""
        for run in runs.values():
            folder = RunFolder(tmp_path, run)
            with folder.locked(), folder.open_metrics() as append:
                append({"step": 10, "validation_loss": 1 - run.optimizer.lr})
                append({"step": 20, "validation_loss": 1 + run.optimizer.lr})
        return {name: result(1 + run.optimizer.lr) for name, run in runs.items()}

    panel = Panel("search", {"tuned": base}, tune=["tuned"], early_stopping=early_stopping)
    arms, _ = searched(panel, SCALES["smoke"], overfit, tmp_path)
    assert arms["tuned"].optimizer.lr == best * base.optimizer.lr


def test_an_arm_that_follows_takes_what_was_found_for_another(tmp_path: Path, lab: LabHere) -> None:
    lm = SCALES["smoke"].lm("110m")

    def plan(at: Scale) -> Panels:
        arms = {"searched": lm.run("ademamix", alpha=2), "follows": lm.run("ademamix", alpha=5, lr=1e-9)}
        yield Panel("follow", arms, tune=["searched"], follow={"follows": "searched"}, show=[Curves()])

    list(carry_out(begun(tmp_path, SCALES["smoke"]), plan, lab))
    (panel,) = read(tmp_path, "panels.json")["panels"]
    searched, follows = (panel["arms"][name]["run"]["optimizer"] for name in ("searched", "follows"))
    assert follows == {**searched, "settings": {**searched["settings"], "alpha": 5}}
    assert set(panel["searched"]) == {"searched"}


def test_the_paper_has_searched_already(tmp_path: Path, lab: LabHere) -> None:
    def plan(at: Scale) -> Panels:
        yield Panel("search", {"AdamW": SCALES["smoke"].lm("110m").run("adamw")}, tune=["AdamW"], show=[Curves()])

    list(carry_out(begun(tmp_path, replace(TWO_SEEDS, rounds=0)), plan, lab))
    assert lab.titles == ["search: training."]


def test_a_run_that_diverges_is_a_result(tmp_path: Path, lab: LabHere) -> None:
    lm = SCALES["smoke"].lm("110m")

    def plan(at: Scale) -> Panels:
        arms = {"calm": lm.run("adamw"), "wild": lm.run("adamw", lr=1e30, clip=None)}
        claims = [Claim("calm ends below wild", lower("calm", "wild"))]
        yield Panel("divergence", arms, show=[Curves(), EndAgainst("lr", logarithmic=True)], claims=claims)

    text = "\n".join(carry_out(begun(tmp_path), plan, lab))
    (panel,) = read(tmp_path, "panels.json")["panels"]
    assert panel["arms"]["wild"]["losses"] == [None, None]
    assert panel["claims"][0]["verdict"] == HOLDS
    assert panel["claims"][0]["numbers"]["wild"] == [None, None]
    assert "diverged" in text
    assert [chart["title"] for chart in panel["charts"]] == ["(a) divergence", "(b) divergence"]


def test_every_kind_of_chart_is_drawn_and_kept_as_data(tmp_path: Path, lab: LabHere) -> None:
    lm = SCALES["smoke"].lm("110m")
    cells = grid(lm.run("ademamix"), lr=[0.004, 0.008], alpha=[2.0, 8.0])
    norms = (UpdateNorms(kind="update-norms", span=5),)
    arms = {"AdamW": lm.run("adamw", probes=norms), **cells}

    def plan(at: Scale) -> Panels:
        shows = [
            Curves("norm_of_5_updates", arms=["AdamW"]),
            Gap([("AdamW", "lr=0.004 alpha=2")]),
            EndAgainst("alpha", groups=[("slow", list(cells)[:2]), ("fast", list(cells)[2:])]),
            HeatMap("lr", "alpha", list(cells), levels=["AdamW"]),
            Scatter("loss", "validation_loss", [("AdamW", ["AdamW"]), ("AdEMAMix", list(cells))]),
        ]
        yield Panel("kinds", arms, show=shows, claims=[_claim("AdamW")])

    list(carry_out(begun(tmp_path, replace(SCALES["smoke"], seeds=(1,), rounds=0)), plan, lab))
    (panel,) = read(tmp_path, "panels.json")["panels"]
    norm, difference, against, heat, scatter = panel["charts"]
    assert norm["series"][0]["x"] == [5.0, 10.0, 15.0, 20.0]
    assert difference["series"][0]["label"] == "AdamW over lr=0.004 alpha=2"
    assert [series["x"] for series in against["series"]] == [[2.0, 8.0]] * 2
    assert set(against["levels"]) == {"AdamW"}
    assert (heat["kind"], heat["x"], heat["y"]) == ("grid", [0.004, 0.008], [2.0, 8.0])
    losses = {name: arm["losses"][0] for name, arm in panel["arms"].items()}
    assert heat["values"][1][0] == losses["lr=0.004 alpha=8"]
    assert [len(series["x"]) for series in scatter["series"]] == [1, 4]
    assert panel["tables"][0]["header"][-1] == "norm of 5 updates"
    assert [bool(row[-1]) for row in panel["tables"][0]["rows"]] == [True, False, False, False, False]
    assert panel["claims"][0]["verdict"] == OPEN


def test_losses_on_training_batches_are_normalised(tmp_path: Path, lab: LabHere) -> None:
    lm = SCALES["smoke"].lm("110m")
    follow = FollowTrainingBatch(kind="follow-training-batch", step=3)
    arms = {"AdamW": lm.run("adamw", probes=(follow,))}

    def plan(at: Scale) -> Panels:
        yield Panel("batches", arms, show=[Forgetting("AdamW", [3], after=5)], claims=[_claim("AdamW")])

    list(carry_out(begun(tmp_path, replace(SCALES["smoke"], seeds=(1,), rounds=0)), plan, lab))
    ((chart,),) = (panel["charts"] for panel in read(tmp_path, "panels.json")["panels"])
    (series,) = chart["series"]
    assert series["x"] == [*range(-1, 18)]
    normalised = dict(zip(series["x"], series["y"], strict=True))
    assert (normalised[-1], normalised[5]) == (0.0, -1.0)
    assert normalised[17] < -1.0  # a model at its beginning improves on everything


def test_what_is_measured_is_measured_once_and_archived(tmp_path: Path, lab: LabHere) -> None:
    times = iter([[0.25], [0.5]])

    def plan(at: Scale) -> Panels:
        share = Quantity("share", lambda found: found.measured, exact=True)
        yield Panel("measured", measure=lambda: next(times), claims=[Claim("the share is small", lower(share, 0.3))])

    archived = replace(lab, archive=Archive(tmp_path / "records"))
    for place, of in (("first", archived), ("second", replace(archived, trains=False)), ("first", lab)):
        (tmp_path / place).mkdir(exist_ok=True)
        list(carry_out(begun(tmp_path / place), plan, of))
        (panel,) = read(tmp_path / place)["panels"]
        assert panel["claims"][0]["numbers"]["share"] == [0.25]
    (tmp_path / "third").mkdir()
    with pytest.raises(RunError, match="measured was not measured"):
        list(carry_out(begun(tmp_path / "third"), plan, replace(lab, trains=False)))
    (tmp_path / "third" / "measured-seeds-1-2.json").write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        list(carry_out(begun(tmp_path / "third"), plan, lab))
    with pytest.raises(RunError, match="measured was not measured"):  # those of other seeds are not taken for it
        list(carry_out(begun(tmp_path / "first", replace(TWO_SEEDS, seeds=(1,))), plan, replace(lab, trains=False)))
    assert next(times) == [0.5]


def test_table_has_the_paired_difference_and_its_spread(tmp_path: Path, lab: LabHere) -> None:
    lm = SCALES["smoke"].lm("110m")

    def plan(at: Scale) -> Panels:
        yield Panel("table", {"AdamW": lm.run("adamw"), "slow": lm.run("adamw", lr=1e-3)}, show=[Curves()])

    list(carry_out(begun(tmp_path), plan, lab))
    (panel,) = read(tmp_path, "panels.json")["panels"]
    (table,) = panel["tables"]
    assert table["header"] == ["", "learning rate", "settings", "mean", "to AdamW", "spread", "seed 1", "seed 2"]
    (first, second), (ours, theirs) = table["rows"], (panel["arms"][name]["losses"] for name in ("slow", "AdamW"))
    differences = [our - their for our, their in zip(ours, theirs, strict=True)]
    assert first[4:6] == ["", ""]
    assert second[4] == f"{sum(differences) / 2:+.4f}"
    assert second[5] == f"{abs(differences[0] - differences[1]) / 2**0.5:.4f}"


def test_nothing_was_trained_is_an_outcome() -> None:
    assert lower(measured("one", 1.0), 2.0)(Outcome({}, ())).verdict == HOLDS
