"""Trials are runs: trained once, stopped when they are hopeless, and kept apart by how they ended."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest

from ademamix.lab.config import Run
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.execution.options import Options
from ademamix.lab.runs.record import RunError, RunFolder
from ademamix.lab.settings import changed
from ademamix.lab.sweep import crew, report
from ademamix.lab.sweep.space import space
from ademamix.lab.sweep.study import Book, Plan, open_book
from ademamix.lab.train import train
from lab_runs import TINY

pytestmark = pytest.mark.usefixtures("fork_server", "quick_workers")

NEVER = optuna.pruners.NopPruner()


def book_of(base: Run, folder: Path, *texts: str, pruner: optuna.pruners.BasePruner = NEVER, trials: int = 0) -> Book:
    found = space(texts)
    plan = Plan(base, found, "tpe" if trials else "grid", trials or len(found))
    book = open_book(plan, f"sqlite:///{folder}/studies.db", plan.name, pruner=pruner)
    book.fill()
    return book


def lab(folder: Path, processes: int = 1) -> Lab:
    return Lab(Options(folder), processes=processes)


def test_a_grid_is_carried_out_and_kept_apart_by_outcome(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    book = book_of(TINY, tmp_path, "lr=1e-2,1e30", "batch=2,1000000")
    crew.carry_out(book, lab(tmp_path), "a sweep")
    assert [trial.outcome for trial in book.trials()] == ["finished", "failed", "diverged", "failed"]
    finished, failed, *_ = book.trials()
    folder = RunFolder(tmp_path / "runs", changed(TINY, lr=1e-2))
    result = folder.result()
    assert result is not None
    assert (finished.run, finished.loss, finished.step) == (folder.path.name, result.validation_loss, 24)
    assert "1000000" in failed.reason.replace(",", "")
    told = capfd.readouterr().err
    assert "trial 0 lr=0.01 batch=2: the best so far" in told
    assert f"trial 1 lr=0.01 batch=1000000: failed: {failed.reason}" in told
    record = report.record(book)
    assert {name: len(kept) for name, kept in record["trials"].items() if kept} == {
        "finished": 1,
        "diverged": 1,
        "failed": 2,
    }
    assert record["best"]["settings"] == {"lr": 1e-2, "batch": 2}
    assert record["trials"]["diverged"][0]["validation_loss"] is None
    text = report.text(book, 100)
    assert text.startswith("4 trials of AdEMAMix, seed 0: 1 finished, 1 diverged, 2 failed.")
    assert [text.index(f"\n{kind}:") for kind in ("finished", "diverged", "failed")] == sorted(
        text.index(f"\n{kind}:") for kind in ("finished", "diverged", "failed")
    )


def test_a_run_that_is_kept_is_read(tmp_path: Path) -> None:
    kept = changed(TINY, lr=1e-3)
    loss = train(kept, Options(tmp_path)).validation_loss
    metrics = RunFolder(tmp_path / "runs", kept).path / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    book = book_of(TINY, tmp_path, "lr=1e-3,2e-3")
    crew.carry_out(book, lab(tmp_path, processes=2), "a sweep")
    assert metrics.stat().st_mtime_ns == before
    first, second = book.trials()
    assert (first.loss, first.step) == (loss, 24)
    assert second.outcome == "finished"
    assert list(book.study.trials[0].intermediate_values) == [8, 16, 24]


def test_a_trial_worse_than_the_median_is_pruned_and_its_run_can_continue(tmp_path: Path) -> None:
    long = TINY.changed(steps=2000, validate_every=20)
    rule = optuna.pruners.MedianPruner(n_startup_trials=1)
    book = book_of(long, tmp_path, "lr=1e-2,1e-12", pruner=rule)
    crew.carry_out(book, lab(tmp_path), "a sweep")
    good, bad = book.trials()
    assert (good.outcome, good.step) == ("finished", 2000)
    assert bad.outcome == "pruned"
    assert 0 < bad.step < 2000
    folder = RunFolder(tmp_path / "runs", changed(long, lr=1e-12))
    assert folder.result() is None
    assert folder.has_checkpoint
    assert [trial["trial"] for trial in report.record(book)["trials"]["pruned"]] == [1]
    assert book.best() == good


def test_pruning_waits_for_trials_and_for_a_third_of_the_steps() -> None:
    study = optuna.create_study(pruner=crew.median_pruner(TINY))
    for _ in range(5):
        trial = study.ask()
        for step in (8, 16, 24):
            trial.report(1.0, step)
            assert not trial.should_prune()
        study.tell(trial, 1.0)
    bad = study.ask()
    bad.report(9.0, 7)
    assert not bad.should_prune()
    bad.report(9.0, 8)
    assert bad.should_prune()


def test_an_adaptive_search_has_as_many_trials_as_were_asked_for(tmp_path: Path) -> None:
    book = book_of(TINY.changed(steps=8), tmp_path, "lr=1e-3..1e-1", "beta3=0.9..0.999", trials=3)
    crew.carry_out(book, lab(tmp_path, processes=2), "a sweep")
    assert [trial.outcome for trial in book.trials()] == ["finished"] * 3
    for trial in book.trials():
        config = json.loads((tmp_path / "runs" / trial.run / "config.json").read_text())
        assert config["optimizer"]["lr"] == trial.point["lr"]
        assert config["optimizer"]["settings"]["beta3"] == trial.point["beta3"]
    crew.carry_out(book, lab(tmp_path), "the same again, with nothing to do")
    assert len(book.trials()) == 3  # the study may have one that was drawn once too often, and left


def test_a_failure_before_any_success_ends_the_sweep_and_costs_no_trial(tmp_path: Path) -> None:
    nowhere = TINY.changed(data={"kind": "text", "source": str(tmp_path / "nowhere")})
    book = book_of(nowhere, tmp_path, "lr=1e-3,2e-3,4e-3")
    with pytest.raises(RunError, match=r"trial 0 lr=0\.001: there is no text at "):
        crew.carry_out(book, lab(tmp_path), "a sweep")
    assert [trial.outcome for trial in book.trials()] == ["waiting"] * 3


def test_failures_in_a_row_end_the_sweep(tmp_path: Path) -> None:
    book = book_of(TINY, tmp_path, "batch=2,1000000,1000001,1000002,1000003")
    with pytest.raises(RunError, match="trial 3 batch=1000002: "):
        crew.carry_out(book, lab(tmp_path), "a sweep")
    assert [trial.outcome for trial in book.trials()] == ["finished", "failed", "failed", "waiting", "waiting"]
