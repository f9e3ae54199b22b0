"""Runs that are kept, and comparisons of them, as sections of a page."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ademamix.lab.config import Run
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.report.charts import Lines, Series, jsonable, plain
from ademamix.lab.report.losses import LossCurve, ending, loss_chart
from ademamix.lab.report.page.content import Panel, Section
from ademamix.lab.report.page.settings import in_words, shared_and_own
from ademamix.lab.runs.kept import KeptRun
from ademamix.lab.runs.record import RunError, open_folder

VALIDATION_LOSS = "validation_loss"
MOST_CURVES = 12
"""Of a figure; of more runs the page shows the validation losses only."""

LONGEST_LABEL = 80
"""Characters; a run that takes more to tell from the others has its key for a label."""

COMPARISON = "compare.json"


@dataclass(frozen=True)
class _Labelled:
    """A run, with a label that tells it from those beside it."""

    label: str
    kept: KeptRun
    config: Run

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its config, without defaults."""
        return self.config.model_dump(mode="json", exclude_defaults=True)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """What it has recorded; nothing if that is damaged, which its state says."""
        try:
            return open_folder(self.kept.path).metrics()
        except RunError:
            return []

    def curve(self, metric: str) -> dict[int, float]:
        """Return a metric by step."""
        return {row["step"]: row[metric] for row in self.rows if metric in row}


def section(name: str, runs: Sequence[KeptRun]) -> Section:
    """Return the curves of runs, with a panel for each model and data: only those losses can be compared."""
    groups: dict[str, list[tuple[KeptRun, Run]]] = {}
    for run in runs:
        if run.config is not None:
            groups.setdefault(_task(run.config), []).append((run, run.config))
    unread = [run.key for run in runs if run.config is None]
    places = dict.fromkeys(str(run.path.parent) for run in runs)
    return Section(
        name=name,
        summary=f"{len(runs)} run{'s' if len(runs) != 1 else ''} in {', '.join(places)}",
        panels=[_panel(task, _labelled(members)) for task, members in groups.items()],
        commands=[f"ademamix train --config {place}/KEY/config.json" for place in places],
        notes=f"Cannot be read, since another version may have written them: {', '.join(unread)}." if unread else "",
    )


def _task(run: Run) -> str:
    """Say what a run trains and on what, without how."""
    model = in_words({name: str(value) for name, value in run.model.model_dump(exclude_defaults=True).items()})
    return f"{model} on {run.data.source}"


def _labelled(members: Sequence[tuple[KeptRun, Run]]) -> list[_Labelled]:
    """Give each run what differs for a label, or its key if that is long or no difference."""
    _, own = shared_and_own([config.model_dump(mode="json", exclude_defaults=True) for _, config in members])
    words = [in_words(settings) for settings in own]
    fit = [0 < len(label) <= LONGEST_LABEL and words.count(label) == 1 for label in words]
    return [
        _Labelled(label if fits else run.key, run, config)
        for label, fits, (run, config) in zip(words, fit, members, strict=True)
    ]


def _panel(title: str, runs: Sequence[_Labelled]) -> Panel:
    charts = [_losses(runs)]
    if len(runs) <= MOST_CURVES:
        metrics = dict.fromkeys(name for run in runs for row in run.rows for name in row)
        charts += [_curves(runs, metric) for metric in metrics if metric not in ("step", VALIDATION_LOSS)]
    content = {
        "title": title,
        "charts": [plain(chart) for chart in charts if chart.series],
        "tables": [
            {"header": ["run", "state", "key"], "rows": [[run.label, run.kept.state, run.kept.key] for run in runs]}
        ],
        "arms": {run.label: {"run": run.settings, "keys": {str(run.config.seed): run.kept.key}} for run in runs},
    }
    return Panel.model_validate(content)


def _losses(runs: Sequence[_Labelled]) -> Lines:
    curves = [(run, run.curve(VALIDATION_LOSS)) for run in runs]
    ends = [
        LossCurve(run.label, run.config.optimizer.name, curve, list(curve.values())[-1])
        for run, curve in curves
        if curve
    ]
    return loss_chart("Validation loss", ends, {}, "validation loss")


def _curves(runs: Sequence[_Labelled], metric: str) -> Lines:
    name = metric.replace("_", " ")
    curves = [(run, run.curve(metric)) for run in runs]
    series = [
        Series.of(run.label, list(curve), list(curve.values()), run.config.optimizer.name)
        for run, curve in curves
        if curve
    ]
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
