"""What a sweep says, writes and draws."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from ademamix.lab.report.charts import Bars, Lines, plain
from ademamix.lab.sweep import report
from ademamix.lab.sweep.space import Point, space
from ademamix.lab.sweep.study import Book, Plan, open_book
from lab_runs import TINY


def swept(folder: Path, loss: Callable[[Point], float], *texts: str) -> Book:
    """A grid whose trials end with these losses; NaN: pruned."""
    found = space(texts)
    plan = Plan(TINY, found, "grid", len(found))
    book = open_book(plan, f"sqlite:///{folder}/studies.db", "losses", pruner=optuna.pruners.NopPruner())
    book.fill()

    def objective(trial: optuna.Trial) -> float:
        value = loss(found.suggested(trial))
        if math.isnan(value):
            trial.report(9.0, 8)
            raise optuna.TrialPruned
        trial.report(value, 24)
        return value

    book.study.optimize(objective, n_trials=len(found))
    return book


def by_rate(point: Point) -> float:
    return math.nan if point["clip"] is None and point["lr"] == 8e-3 else abs(math.log(point["lr"] / 4e-3))


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return swept(tmp_path, by_rate, "lr=1e-3,2e-3,4e-3,8e-3", "clip=none,1")


def test_importance_is_that_of_what_matters(book: Book) -> None:
    shares = report.importance(book)
    assert shares is not None
    assert shares["lr"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)


def test_the_report_says_what_is_best_and_keeps_outcomes_apart(book: Book) -> None:
    text = report.text(book, 100)
    assert "8 trials of AdEMAMix, seed 0: 7 finished, 1 pruned. Study: losses." in text
    assert "Best: trial 4, lr=0.004 clip=none, validation loss 0.0000" in text
    assert "edge" not in text
    finished, _, pruned = text.partition("\npruned:\n")
    assert pruned.splitlines()[1].split() == ["6", "0.008", "none", "9.0000", "8"]
    assert len([line for line in finished.splitlines() if line.startswith("  ")]) == 1 + 7


def test_a_best_at_the_edge_is_called_that(tmp_path: Path) -> None:
    book = swept(tmp_path, lambda point: point["lr"], "lr=1e-3,2e-3")
    assert "It is at the edge of lr: a better value may lie outside." in report.text(book, 200)
    assert report.importance(book) is None  # of two trials


def test_nothing_finished(tmp_path: Path) -> None:
    book = swept(tmp_path, lambda point: math.inf, "lr=1e-3,2e-3")
    assert "2 diverged" in report.text(book, 100)
    assert "No trial has finished." in report.text(book, 100)
    assert report.record(book)["best"] is None
    assert {file.name for file in report.write(book, tmp_path)} == {"report.txt", "sweep.json"}


def test_files(book: Book, tmp_path: Path) -> None:
    files = report.write(book, tmp_path)
    assert [file.name for file in files] == ["report.txt", "sweep.json", "sweep.png", "sweep.svg"]
    assert all(file.stat().st_size for file in files)
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert content["space"] == "lr=0.001,0.002,0.004,0.008 clip=none,1"
    assert [trial["trial"] for trial in content["trials"]["pruned"]] == [6]
    assert content["best"]["settings"] == {"lr": 0.004, "clip": None}


def test_charts_show_every_trial(book: Book) -> None:
    importance, rates, clips = report._charts(book)
    assert isinstance(importance, Bars)
    assert set(importance.values) == {"lr", "clip"}
    assert plain(importance)["kind"] == "bars"
    assert isinstance(rates, Lines)
    assert {series.label: len(series.x) for series in rates.series} == {"finished": 7, "pruned": 1}
    assert rates.logarithmic == "x"
    assert isinstance(clips, Lines)
    assert clips.x_label == "clip: 0 is none, 1 is 1"
    assert set(clips.series[0].x) == {0.0, 1.0}
