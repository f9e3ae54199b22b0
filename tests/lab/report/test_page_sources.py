"""Pages of kept runs and of comparisons, and pages that follow what changes."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path

import pytest

from ademamix.lab.comparison import figure
from ademamix.lab.comparison.arms import Arm, Comparison, arm_of
from ademamix.lab.config import Optimizer
from ademamix.lab.execution.options import Options
from ademamix.lab.report.page import watch
from ademamix.lab.report.page.sources import Results, Source, Trained
from ademamix.lab.runs.record import RunError, RunFolder
from ademamix.lab.train import train
from lab_runs import TINY, changed, result
from page_samples import Read, claim, panel, write_panels

DIVERGED = changed(TINY, seed=8)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and one that is in the middle and has diverging losses."""
    folder = tmp_path_factory.mktemp("out")
    train(TINY, Options(folder))
    begun = RunFolder(folder / "runs", DIVERGED)
    with begun.locked(), begun.open_metrics() as append:
        append({"step": 4, "loss": 9.0})
        append({"step": 8, "loss": math.nan, "validation_loss": math.nan})
    return folder


def shown(source: Source, folder: Path) -> Read:
    watch.save(source, folder / "page.html")
    return Read((folder / "page.html").read_text(encoding="utf-8"))


def test_runs_have_curves_and_settings(out: Path, tmp_path: Path) -> None:
    page = shown(Trained(out), tmp_path)
    assert "2 runs, with curves and settings." in page.text
    assert "finished, validation " in page.text
    assert "stopped at step 8 of 24" in page.text
    assert "seed 8" in page.text  # all that differs
    assert f"ademamix train --config {out}/runs/KEY/config.json" in page.text
    first, *_ = page.drawings["charts"]
    assert first["yLabel"] == "validation loss"
    assert page.drawings["lists"][first["series"][0]["x"]][-1] in (8, 24)
    assert "loss" in {chart["yLabel"] for chart in page.drawings["charts"]}


def test_runs_are_chosen_by_key_or_folder(out: Path, tmp_path: Path) -> None:
    for name in (TINY.key, TINY.key[:12], str(out / "runs" / TINY.key)):
        page = shown(Trained(out, [name]), tmp_path)
        assert TINY.key in page.text
        assert DIVERGED.key not in page.text
    with pytest.raises(RunError, match="no run has a key that begins with 'x', and no folder of this name"):
        Trained(out, ["x"]).page()
    with pytest.raises(RunError, match="2 runs have keys that begin with ''"):
        Trained(out, [""]).page()


def test_a_run_of_another_version_is_named(tmp_path: Path) -> None:
    old, new = (tmp_path / "runs" / key for key in ("0123456789abcdef", TINY.key))
    for folder, config in ((old, '{"batches": 3}'), (new, TINY.model_dump_json())):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config)
    named = f"another version may have written them: {old.name}"
    assert f"{named}." in shown(Trained(tmp_path), tmp_path).text
    with pytest.raises(RunError, match=f"none of these runs can be read, since {named}"):
        Trained(tmp_path, [old.name]).page()


def test_a_page_that_follows_runs_leaves_out_one_of_another_version(out: Path, tmp_path: Path) -> None:
    write_panels(tmp_path)
    old = tmp_path / "runs" / "0123456789abcdef"
    shutil.copytree(out / "runs" / DIVERGED.key, old)
    (old / "metrics.jsonl").touch()
    assert old.name in shown(Results(tmp_path, "laptop", live=True), tmp_path).text


def test_an_empty_folder_has_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is nothing to show in .*: no results, and no runs"):
        Trained(tmp_path).page()


def compared(folder: Path) -> None:
    def arm(name: str, optimizer: str, *curves: dict[int, float]) -> Arm:
        ends = [result(list(curve.values())[-1]) for curve in curves]
        return Arm(name, arm_of(TINY, Optimizer(name=optimizer, lr=1e-3)), ends, list(curves))

    arms = [
        arm("AdamW", "adamw", {8: 2.0, 24: 1.5}, {8: 2.2, 24: 1.7}),
        arm("AdEMAMix alpha=8", "ademamix", {8: 2.0, 24: 1.25}, {8: 2.0, 24: 1.35}),
        arm("Lion", "lion", {8: 2.0, 24: math.nan}, {8: 2.0, 24: math.nan}),
    ]
    figure.kept_or_drawn(Comparison(TINY, arms), folder)
    (folder / "report.txt").write_text("AdEMAMix ended 0.3 below <AdamW>.\n")


def test_a_comparison_has_its_report_and_its_curves(tmp_path: Path) -> None:
    compared(tmp_path)
    page = shown(Trained(tmp_path, [str(tmp_path)]), tmp_path)
    assert "1 comparison, with curves and settings." in page.text
    assert "AdEMAMix ended 0.3 below <AdamW>." in page.text
    assert "AdEMAMix alpha=8 1.3000 1.2500 1.3500" in page.text
    assert "Lion diverged diverged diverged" in page.text
    (chart,) = page.drawings["charts"]
    looks = [page.drawings["looks"][series["look"]]["colour"] for series in chart["series"]]
    assert looks[:2] == ["#D55E00", "#0072B2"]  # AdamW's and AdEMAMix's, as everywhere


@pytest.mark.parametrize("damage", ["", "{}", '{"optimizers": {"AdamW": 3}}', "[]"])
def test_a_damaged_comparison_is_named(damage: str, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text(damage)
    with pytest.raises(RunError, match=r"compare.json' is damaged \("):
        Trained(tmp_path, [str(tmp_path)]).page()


def test_a_watched_page_follows_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SECONDS", 0)
    seen: list[Read] = []

    def on_write() -> None:
        seen.append(Read((tmp_path / "page.html").read_text(encoding="utf-8")))
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)
        write_panels(tmp_path, "forgetting", panels=[panel(claims=[claim("a new claim")])])

    write_panels(tmp_path)
    watch.watch(Results(tmp_path, "laptop", live=True), tmp_path / "page.html", on_write)
    assert ["a new claim" in page.text for page in seen] == [False, True]


def test_a_page_reloads_itself_until_watching_ends(tmp_path: Path) -> None:
    def seconds() -> str:
        page = Read((tmp_path / "page.html").read_text(encoding="utf-8"))
        (note,) = (attributes for attributes in page.all("span") if attributes.get("id") == "reloading")
        return note["data-seconds"]

    def on_write() -> None:
        assert seconds() == "5"
        signal.raise_signal(signal.SIGINT)

    write_panels(tmp_path)
    watch.watch(Results(tmp_path, "laptop"), tmp_path / "page.html", on_write)
    assert seconds() == "0"


def test_runs_in_progress_are_part_of_a_watched_page(out: Path, tmp_path: Path) -> None:
    live = Results(out, "laptop", live=True)
    assert live.files() == [out / "runs" / DIVERGED.key / "metrics.jsonl"]
    page = shown(live, tmp_path)
    assert "in-progress" in {section.get("id") for section in page.all("section")}
    assert "1 run in " in page.text
    assert DIVERGED.key in page.text
    assert TINY.key not in page.text
    with pytest.raises(RunError, match="no results"):
        Results(out, "laptop").page()


def test_a_damaged_environment_is_named(tmp_path: Path) -> None:
    write_panels(tmp_path)
    path = tmp_path / "runs" / ("a" * 16) / "environment.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"carried_out": 3}))
    with pytest.raises(RunError, match=f"'{path}' is damaged"):
        shown(Results(tmp_path, "laptop"), tmp_path)
