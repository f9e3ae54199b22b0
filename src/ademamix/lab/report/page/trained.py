"""Runs that are kept, and comparisons of them, as sections of a page."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ademamix.lab.config import Run
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.report.charts import Lines, Series, jsonable, plain
from ademamix.lab.report.losses import LossCurve, ending, loss_chart
from ademamix.lab.report.page.content import Arm, Panel, Section, Table
from ademamix.lab.report.page.settings import in_words, shared_and_own
from ademamix.lab.runs.kept import KeptRun
from ademamix.lab.runs.record import RunError, open_folder

VALIDATION_LOSS = "validation_loss"
MOST_CURVES = 12
"""Of a figure; of more runs the page shows the validation losses only."""

COMPARISON = "compare.json"


def section(name: str, kept: Iterable[KeptRun], place: Path) -> Section:
    """Return the curves of runs, with a panel for each model and data: only those losses can be compared."""
    runs = list(kept)
    groups: dict[str, list[KeptRun]] = {}
    for run in runs:
        if run.config is not None:
            groups.setdefault(_task(run.config), []).append(run)
    unread = [run.key for run in runs if run.config is None]
    notes = f"Cannot be read, since another version may have written them: {', '.join(unread)}." if unread else ""
    return Section(
        name=name,
        summary=f"{len(runs)} run{'s' if len(runs) != 1 else ''} in {place}",
        panels=[_runs_panel(task, members) for task, members in groups.items()],
        commands=[f"ademamix train --config {place}/KEY/config.json"],
        notes=notes,
    )


def _task(run: Run) -> str:
    """Say what a run trains and on what, without how."""
    model = in_words({name: str(value) for name, value in run.model.model_dump(exclude_defaults=True).items()})
    return f"{model} on {run.data.source}"


def _runs_panel(title: str, runs: Sequence[KeptRun]) -> Panel:
    configs = [run.config.model_dump(mode="json", exclude_defaults=True) for run in runs if run.config is not None]
    _, own = shared_and_own(configs)
    labels = [in_words(settings) for settings in own]
    labels = [label if labels.count(label) == 1 and label else run.key for label, run in zip(labels, runs, strict=True)]
    rows = {label: _rows(run) for label, run in zip(labels, runs, strict=True)}
    optimizers = {label: config["optimizer"]["name"] for label, config in zip(labels, configs, strict=True)}
    charts = [_losses(rows, optimizers)]
    if len(runs) <= MOST_CURVES:
        metrics = dict.fromkeys(name for of_run in rows.values() for row in of_run for name in row)
        charts += [_curves(rows, optimizers, name) for name in metrics if name not in ("step", VALIDATION_LOSS)]
    return Panel.model_validate(
        {
            "title": title,
            "charts": [plain(chart) for chart in charts if any(series.x for series in chart.series)],
            "tables": [
                Table(
                    header=["run", "state", "key"],
                    rows=[[label, run.state, run.key] for label, run in zip(labels, runs, strict=True)],
                )
            ],
            "arms": {
                label: Arm(run=config, keys={str(config.get("seed", 0)): run.key})
                for label, config, run in zip(labels, configs, runs, strict=True)
            },
        }
    )


def _rows(run: KeptRun) -> list[dict[str, Any]]:
    try:
        return open_folder(run.path).metrics()
    except RunError:  # its row of the table says that it is damaged
        return []


def _by_step(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[int, float]:
    return {row["step"]: row[metric] for row in rows if metric in row}


def _losses(rows: Mapping[str, Sequence[Mapping[str, Any]]], optimizers: Mapping[str, str]) -> Lines:
    curves = [(label, _by_step(of_run, VALIDATION_LOSS)) for label, of_run in rows.items()]
    ends = [LossCurve(label, optimizers[label], curve, _last(curve)) for label, curve in curves if curve]
    return loss_chart("Validation loss", ends, {}, "validation loss")


def _last(curve: Mapping[int, float]) -> float:
    return list(curve.values())[-1]


def _curves(rows: Mapping[str, Sequence[Mapping[str, Any]]], optimizers: Mapping[str, str], metric: str) -> Lines:
    name = metric.replace("_", " ")
    series = []
    for label, of_run in rows.items():
        if curve := _by_step(of_run, metric):
            series.append(Series.of(label, list(curve), list(curve.values()), optimizers[label]))
    return Lines(name.capitalize(), "step", name, series)


def comparison(folder: Path) -> Section:
    """Return what `ademamix compare` left in a folder."""
    path = folder / COMPARISON
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        arms = {name: _compared(name, arm) for name, arm in content["optimizers"].items()}
        losses = {
            name: [math.nan if loss is None else loss for loss in arm["losses"]]
            for name, arm in content["optimizers"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"{str(path)!r} is damaged ({type(error).__name__}: {error}). Give the same `ademamix compare` again: kept "
            "runs are not trained again"
        ) from None
    seeds = max(map(len, losses.values()), default=0)
    report = folder / "report.txt"
    panel = {
        "title": "The same model and batches with each optimizer",
        "charts": [plain(loss_chart("Validation loss", list(arms.values()), {}, "validation loss"))],
        "tables": [
            {
                "title": "Validation loss at the end",
                "header": ["", "mean", *(f"run {number + 1}" for number in range(seeds))],
                "rows": [[name, ending(arms[name].end), *map(ending, by_seed)] for name, by_seed in losses.items()],
            }
        ],
        "text": report.read_text(encoding="utf-8", errors="replace") if report.exists() else "",
    }
    return Section(
        name=f"compare-{folder.name}",
        summary="a comparison of optimizers",
        panels=[Panel.model_validate(jsonable(panel))],
        commands=[],
        version=str(content.get("ademamix", "")),
    )


def _compared(name: str, arm: Mapping[str, Any]) -> LossCurve:
    curve = {int(step): math.nan if loss is None else loss for step, loss in arm["validation_loss_by_step"].items()}
    losses = [math.inf if loss is None else loss for loss in arm["losses"]]
    return LossCurve(name, _optimizer(name), curve, statistics.fmean(losses))


def _optimizer(name: str) -> str:
    """Return the optimizer that the name of an arm begins with."""
    fitting = [row.display for row in OPTIMIZERS.values() if name.startswith(row.display)]
    longest = max(fitting, key=len, default="")
    return next((key for key, row in OPTIMIZERS.items() if row.display == longest), "")
