"""What a sweep has found: in words, as a table, as data, and as a picture of what matters and how much."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

import ademamix
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.sweep.space import Between, Dimension, described, is_number, spelled
from ademamix.lab.sweep.study import Book, Outcome, Trial
from ademamix.output import tables
from ademamix.output.atomic import write_atomically

if TYPE_CHECKING:
    from ademamix.lab.report.charts import Bars, Lines

NAME = "sweep"
KEPT_APART: tuple[Outcome, ...] = ("finished", "diverged", "pruned", "failed", "running", "waiting")
REPORT_WIDTH = 100  # columns of report.txt
FEWEST_FOR_IMPORTANCE = 4  # finished trials


def text(book: Book, width: int) -> str:
    """Lay out what was found: how many trials ended how, the best, and a table of each kind."""
    trials = book.trials()
    parts = [tables.wrapped("\n".join(filter(None, [_counts(book, trials), _best(book)])), width)]
    for outcome in KEPT_APART:
        if (of_kind := _sorted(trials, outcome)) and outcome not in ("running", "waiting"):
            parts.append(f"{outcome}:\n{tables.indented(_table(book, of_kind, width - 2))}")
    return "\n\n".join(parts)


def write(book: Book, folder: Path) -> list[Path]:
    """Write the report, the data and the picture; return their paths."""
    from ademamix.lab.report import figures

    write_atomically(folder / "report.txt", text(book, REPORT_WIDTH) + "\n")
    write_atomically(folder / f"{NAME}.json", json.dumps(record(book), indent=1, allow_nan=False) + "\n")
    drawn = []
    if charts := _charts(book):
        figure, places = figures.side_by_side(len(charts), "", "")
        for axes, chart in zip(places, charts, strict=True):
            chart.draw(axes)
        drawn = figures.save(figure, folder, NAME)
    return [folder / "report.txt", folder / f"{NAME}.json", *drawn]


def record(book: Book) -> dict[str, Any]:
    """Return everything for a JSON file, with the trials that finished, diverged, were pruned and failed kept apart."""
    trials = book.trials()
    best = book.best()
    return {
        "ademamix": ademamix.__version__,
        "study": book.study.study_name,
        **book.plan.description,
        "best": None if best is None else _as_json(best),
        "importance": importance(book),
        "trials": {outcome: [_as_json(trial) for trial in _sorted(trials, outcome)] for outcome in KEPT_APART},
    }


def importance(book: Book) -> dict[str, float] | None:
    """Return the share of the variance between finished trials that each setting explains (functional ANOVA).

    None if there are too few, or if all have the same loss.
    """
    finished = [trial for trial in book.trials() if trial.outcome == "finished"]
    varied = [
        each for each in book.plan.space.dimensions if len({spelled(trial.point[each.name]) for trial in finished}) > 1
    ]
    if len(finished) < FEWEST_FOR_IMPORTANCE or not varied or len({trial.loss for trial in finished}) == 1:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(
            book.study,
            evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0),
            params=[each.parameter for each in varied],
        )
    return {each.name: float(shares[each.parameter]) for each in varied}


def _counts(book: Book, trials: Sequence[Trial]) -> str:
    counts = {outcome: len(_sorted(trials, outcome)) for outcome in KEPT_APART}
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    name = OPTIMIZERS[book.plan.base.optimizer.name].display
    return f"{len(trials)} trials of {name}, seed {book.plan.base.seed}: {said}. Study: {book.study.study_name}."


def _best(book: Book) -> str:
    best = book.best()
    if best is None:
        return "No trial has finished."
    edges = [each.name for each in book.plan.space.dimensions if each.at_edge(best.point[each.name])]
    edge = f" It is at the edge of {' and '.join(edges)}: a better value may lie outside." if edges else ""
    return f"Best: trial {best.number}, {described(best.point)}, validation loss {best.loss:.4f}, run {best.run}.{edge}"


def _sorted(trials: Sequence[Trial], outcome: Outcome) -> list[Trial]:
    of_kind = [trial for trial in trials if trial.outcome == outcome]
    return sorted(of_kind, key=lambda trial: trial.loss) if outcome == "finished" else of_kind


def _table(book: Book, trials: Sequence[Trial], width: int) -> str:
    names = [each.name for each in book.plan.space.dimensions]
    rows = []
    for trial in trials:
        loss = f"{trial.loss:.4f}" if math.isfinite(trial.loss) else ""
        values = [spelled(trial.point[name]) if name in trial.point else "" for name in names]
        rows.append([str(trial.number), *values, loss, f"{trial.step:,}", trial.reason or trial.run])
    last = "reason" if trials[0].outcome == "failed" else "run"
    return tables.in_rows(["trial", *names, "validation loss", "at step", last], rows, width)


def _as_json(trial: Trial) -> dict[str, Any]:
    fields = {
        "trial": trial.number,
        "settings": trial.point,
        "validation_loss": trial.loss if math.isfinite(trial.loss) else None,
        "step": trial.step,
        "run": trial.run,
        "worker": trial.worker,
        "attempts": trial.attempts,
    }
    return {**fields, "reason": trial.reason} if trial.outcome == "failed" else fields


def _charts(book: Book) -> list[Bars | Lines]:
    """Return the importance of the settings, and the losses by the values of each."""
    from ademamix.lab.report.charts import Bars

    trials = book.trials()
    if not any(trial.outcome == "finished" for trial in trials):
        return []
    shares = importance(book)
    bars: list[Bars | Lines] = []
    if shares is not None and len(shares) > 1:
        bars.append(Bars("Importance", "share of the variance between finished trials", shares))
    return bars + [_sensitivity(each, trials) for each in book.plan.space.dimensions]


def _sensitivity(dimension: Dimension, trials: Sequence[Trial]) -> Lines:
    """Return the loss of each trial by its value of one setting; the others vary as well, so that points scatter."""
    from ademamix.lab.report.charts import Lines, Series

    listed = [] if isinstance(dimension, Between) else list(dimension.values)
    numeric = all(map(is_number, listed))
    forgetting = numeric and (dimension.name.startswith("beta") and "_" not in dimension.name)

    def place(value: Any) -> float:
        if not numeric:
            return float(listed.index(value))
        return 1 - value if forgetting else float(value)

    series = []
    for outcome in ("finished", "pruned"):
        shown = [trial for trial in trials if trial.outcome == outcome and math.isfinite(trial.loss)]
        if shown:
            x = [place(trial.point[dimension.name]) for trial in shown]
            series.append(Series.of(outcome, x, [trial.loss for trial in shown]))
    label = f"1 - {dimension.name}" if forgetting else dimension.name
    if not numeric:
        label += ": " + ", ".join(f"{number} is {spelled(value)}" for number, value in enumerate(listed))
    logarithmic = "x" if numeric and _spans_decades([x for each in series for x in each.x]) else ""
    return Lines(dimension.name, label, "validation loss", series, joined=False, logarithmic=logarithmic)


def _spans_decades(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 8
