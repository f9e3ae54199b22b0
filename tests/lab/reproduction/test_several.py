"""Several recipes at once: what is foreseen, shared, left out and counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab import tuning
from ademamix.lab.config import Run
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.execution.options import Options
from ademamix.lab.execution.timing import OVERHEAD, seconds_per_step
from ademamix.lab.recipes import load
from ademamix.lab.reproduction import engine, several
from ademamix.lab.reproduction import forecast as forecast_module
from ademamix.lab.reproduction.forecast import forecast
from ademamix.lab.reproduction.scale import SCALES
from ademamix.lab.runs.record import Result, RunError
from lab_here import LabHere

pytestmark = pytest.mark.usefixtures("quick_workers")

SMOKE = SCALES["smoke"]
SWITCHES = ["switch-from-adamw", "switch-schedules"]


def test_what_recipes_share_is_foreseen_and_trained_once(tmp_path: Path) -> None:
    lab = LabHere(Options(tmp_path))
    ahead = forecast(SWITCHES, SMOKE, lab)
    arms = {name: sum(len(panel.arms) for panel in load(name)(SMOKE)) for name in SWITCHES}
    assert ahead.asked == sum(arms.values())
    assert ahead.needed == len(ahead.missing) < ahead.asked
    assert not ahead.searching
    text = "\n".join(several.reproduce_several(SWITCHES, SMOKE, tmp_path, lab))
    assert len(lab.trained) == ahead.needed
    assert "claims of 2 recipes" in text
    assert f"page: {tmp_path / 'report.html'}" in text
    assert (tmp_path / "report.html").exists()
    after = forecast(SWITCHES, SMOKE, lab)
    assert (after.needed, dict(after.missing)) == (ahead.needed, {})


def test_arms_of_the_same_name_in_several_panels_are_counted_each(tmp_path: Path) -> None:
    ahead = forecast(["vit"], SMOKE, LabHere(Options(tmp_path)))
    assert len(ahead.missing) == ahead.needed == sum(len(panel.arms) for panel in load("vit")(SMOKE))


def test_searches_are_foreseen_until_they_are_done(tmp_path: Path) -> None:
    lab = LabHere(Options(tmp_path))
    (panel,) = load("mamba")(SMOKE)
    ahead = forecast(["mamba"], SMOKE, lab)
    optimizers = [panel.arms[name].optimizer for name in panel.tune]
    assert len(ahead.searching) == sum(round(tuning.usual_runs(optimizer)) for optimizer in optimizers)
    list(several.reproduce_several(["mamba"], SMOKE, tmp_path, lab))
    done = forecast(["mamba"], SMOKE, lab)
    assert (done.searching, dict(done.missing)) == ([], {})


def test_steps_that_runs_share_are_timed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast_module, "seconds_per_step", lambda run, lab: 1.0)
    lab = LabHere(Options(tmp_path), processes=1)
    ahead = forecast(["switch-from-adamw"], SMOKE, lab)
    without_validations = {name: run.changed(validation_examples=1, batch=1024) for name, run in ahead.missing.items()}
    seconds = replace(ahead, missing=without_validations).seconds(lab)
    switched = [run.phases[0].step for run in ahead.missing.values() if run.phases]
    assert len(switched) == 3
    expected = sum(run.steps for run in ahead.missing.values()) - sum(switched)
    assert seconds == pytest.approx(OVERHEAD * expected, rel=1e-3)


def test_a_timing_leaves_nothing_behind(tmp_path: Path) -> None:
    lab = Lab(Options(tmp_path), processes=2)
    assert seconds_per_step(SMOKE.lm("110m").run("adamw"), lab) > 0
    assert not list((tmp_path / "runs").iterdir())


@dataclass(frozen=True)
class Failing(LabHere):
    """A lab in which whatever trains AdEMAMix after a switch fails."""

    def carry_out(self, runs: Mapping[str, Run], title: str, *, keep_going: bool = False) -> dict[str, Result]:
        fine = {name: run for name, run in runs.items() if not run.phases}
        if len(fine) < len(runs) and not keep_going:
            raise RunError("the disk is full")
        return super().carry_out(fine, title)


def test_a_recipe_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    parts: list[str] = []
    found = several.reproduce_several(["switch-schedules", "third-ema"], SMOKE, tmp_path, Failing(Options(tmp_path)))
    with pytest.raises(RunError, match="1 of 2 recipes did not come to their end"):
        parts.extend(found)
    assert "switch-schedules did not come to its end: the disk is full" in parts[-1]
    assert "claims of 1 recipe\n" in parts[-1]
    assert several.verdict_of("third-ema", "smoke", tmp_path)["complete"]


def test_changed_verdicts_are_told_and_changed_recipes_found(tmp_path: Path) -> None:
    lab = LabHere(Options(tmp_path))
    list(several.reproduce_several(["ema-weights", "nested-emas"], SMOKE, tmp_path, lab))
    assert several.is_up_to_date("ema-weights", SMOKE, tmp_path)
    file = several.folder_of("ema-weights", "smoke", tmp_path) / "verdict.json"
    found = json.loads(file.read_text())
    first = found["panels"][0]["claims"][0]
    first["verdict"], now = "does not hold here", first["verdict"]
    file.write_text(json.dumps({**found, "plan": "another"}))
    assert not several.is_up_to_date("ema-weights", SMOKE, tmp_path)
    *_, last = several.reproduce_several(["ema-weights", "nested-emas"], SMOKE, tmp_path, lab)
    assert f"Changed, ema-weights: {first['claim']}: does not hold here before, now {now}." in " ".join(last.split())
    file.write_text("{")
    assert not several.is_up_to_date("ema-weights", SMOKE, tmp_path)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("toy-two-emas", ["steep_and_flat.py", "toy_two_emas.py"]),
        ("toy-rosenbrock", ["rosenbrock.py"]),
        ("sensitivity-clip-beta1", ["outcome.py", "defaults.py", "arms.py", "tuning.py"]),
        ("forgetting-evolution", ["forgetting_evolution.py", "injections.py"]),
        ("single-ema-resume", ["single_ema.py", "switch_from_adamw.py", "switch_schedules.py"]),
    ],
)
def test_a_recipe_changes_with_all_that_decides_it(
    name: str, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = load(name)
    assert set(files) <= {path.name for path in engine.sources(plan)}
    assert "lion.py" not in {path.name for path in engine.sources(plan)}
    before = engine.fingerprint(plan, SMOKE)
    engine.fingerprint.cache_clear()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == files[-1]))
    assert engine.fingerprint(plan, SMOKE) != before


def test_a_recipe_changes_with_its_runs() -> None:
    plans = [engine.fingerprint(load("third-ema"), replace(SMOKE, seeds=seeds)) for seeds in ((1,), (1, 2))]
    assert len(set(plans)) == 2


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, archive = ["--scale", "smoke", "--out", str(tmp_path / "out")], ["--archive", str(tmp_path / "records")]
    names = ["third-ema", "ema-weights"]
    assert main(["reproduce", *names, "--dry-run", *out]) == 0
    assert "2 runs are asked for: 0 are the same as others, 0 are kept, 2 are to be trained." in capsys.readouterr().out
    assert main(["reproduce", *names, *out, *archive]) == 0
    assert len(list((tmp_path / "records").iterdir())) == 2
    assert main(["reproduce", *names, "--changed", *out]) == 0
    assert capsys.readouterr().out.endswith("All of these are up to date.\n")
    again = ["--scale", "smoke", "--out", str(tmp_path / "again")]
    assert main(["reproduce", *names, "--no-training", *again, *archive]) == 0
    assert not list((tmp_path / "again").rglob("model.safetensors"))
    one, other = ((tmp_path / place / "third-ema" / "smoke" / "verdict.json") for place in ("out", "again"))
    assert json.loads(one.read_text()).keys() == json.loads(other.read_text()).keys()


def test_command_takes_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paper = ["reproduce", "third-ema", "--dry-run", "--scale", "paper", "--out", str(tmp_path)]
    assert main(paper) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("5 runs are asked for: ")
    assert "One seed decides no claim about a run that is trained: --seeds 1 2 3" in printed
    assert main([*paper, "--seeds", "1", "2", "3", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("15 runs are asked for: ")
    assert "One seed" not in printed
    out = ["--scale", "smoke", "--out", str(tmp_path), "--no-training"]
    assert main(["reproduce", "ema-weights", "--seeds", "1", "2", *out]) == 0
    assert main(["reproduce", "ema-weights", "--changed", "--dry-run", *out]) == 0
    assert "up to date" not in capsys.readouterr().out


def test_command_explains_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--scale", "smoke", "--out", str(tmp_path)]
    assert main(["reproduce", "third-ema", "--no-training", *out]) == 2
    assert "without --no-training they are" in capsys.readouterr().err
    assert main(["reproduce", "third-ema", "--no-training", "--archive", str(tmp_path / "nowhere"), *out]) == 2
    assert "--archive must be a folder of records, and there is none at" in capsys.readouterr().err
