"""What came of the runs of a panel: for each arm its results and everything that was recorded, seed by seed."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ademamix.lab.comparison.arms import Trained, mean_curve
from ademamix.lab.config import Run
from ademamix.lab.runs.record import Result, RunFolder

VALIDATION_LOSS = "validation_loss"


@dataclass(frozen=True)
class TrainedArm(Trained):
    """One arm of a panel, with all that its runs have recorded."""

    folders: Sequence[RunFolder]

    @cached_property
    def rows(self) -> list[list[dict[str, Any]]]:
        """What was recorded, by seed."""
        return [folder.metrics() for folder in self.folders]

    def curves(self, metric: str = VALIDATION_LOSS) -> list[dict[int, float]]:
        """Return a metric by step, for each seed."""
        return [{row["step"]: row[metric] for row in rows if metric in row} for rows in self.rows]

    def curve(self, metric: str = VALIDATION_LOSS) -> dict[int, float]:
        """Return the mean over the seeds of a metric, by step."""
        return mean_curve(self.curves(metric))

    def values(self, metric: str, step: int | None = None) -> list[float]:
        """Return a metric of each seed as last recorded up to a step, or at the end; NaN: it was not recorded.

        Infinite where the run had diverged by then.
        """
        if metric == VALIDATION_LOSS and step is None:
            return self.losses
        found = zip(self.curves(metric), self.results, strict=True)
        return [_value(curve, step, diverged=result.diverged) for curve, result in found]

    def smoothed(self, metric: str, step: int, over: int) -> list[float]:
        """Return the mean of a metric over so many steps up to a step, for each seed; NaN: it was not recorded.

        Infinite where the run had diverged by then.
        """
        start = step - over
        curves = [{at: value for at, value in curve.items() if start < at <= step} for curve in self.curves(metric)]
        ends = self.values(metric, step)
        return [
            statistics.fmean(curve.values()) if curve and math.isfinite(end) else end
            for curve, end in zip(curves, ends, strict=True)
        ]

    def lowest(self, metric: str) -> list[float]:
        """Return the lowest value of a metric, for each seed; infinite where the run diverged."""
        found = zip(self.curves(metric), self.results, strict=True)
        return [math.inf if result.diverged else min(curve.values(), default=math.nan) for curve, result in found]

    def largest_rise(self, metric: str, between: tuple[float, float] = (0, math.inf)) -> list[float]:
        """Return how far a metric ever rose above its lowest value before, for each seed; infinite where it diverged.

        `between` are the first and the last step that count. Zero: it never rose. NaN: it was not recorded.
        """
        first, last = between
        curves = [[value for step, value in curve.items() if first <= step <= last] for curve in self.curves(metric)]
        found = zip(curves, self.results, strict=True)
        return [math.inf if result.diverged else _largest_rise(values) for values, result in found]

    def roughness(self, metric: str) -> list[float]:
        """Return how far a metric is on average from midway between its neighbours, for each seed.

        Of the last nine tenths of the run, since the first falls steeply. Infinite where it diverged, NaN where there
        are fewer than three values.
        """
        start = self.run.steps // 10
        late = [[value for step, value in curve.items() if step > start] for curve in self.curves(metric)]
        found = zip(late, self.results, strict=True)
        return [math.inf if result.diverged else _roughness(values) for values, result in found]

    @property
    def early_losses(self) -> list[float]:
        """The validation loss of each seed after a tenth of the steps: a run that ends above it has broken down."""
        return self.values(VALIDATION_LOSS, self.run.steps // 10)


def stopped_early(runs: Mapping[str, Run], results: Mapping[str, Result], root: Path) -> dict[str, Result]:
    """Return the results, by name, that runs in `root` had if each ended where its validation loss was lowest."""
    stopped = {}
    for name, result in results.items():
        (lowest,) = TrainedArm(name, runs[name], [result], [RunFolder(root, runs[name])]).lowest(VALIDATION_LOSS)
        stopped[name] = replace(result, validation_loss=lowest)
    return stopped


def _roughness(values: Sequence[float]) -> float:
    triples = zip(values, values[1:], values[2:], strict=False)
    bends = [abs(here - (before + after) / 2) for before, here, after in triples]
    return statistics.fmean(bends) if bends else math.nan


def _largest_rise(values: Sequence[float]) -> float:
    lowest = itertools.accumulate(values, min)
    return max((value - low for value, low in zip(values, lowest, strict=True)), default=math.nan)


def _value(curve: Mapping[int, float], step: int | None, *, diverged: bool) -> float:
    if diverged and (step is None or step > max(curve, default=0)):
        return math.inf
    reached = [recorded for recorded in curve if step is None or recorded <= step]
    return curve[max(reached)] if reached else math.nan


@dataclass(frozen=True)
class Outcome:
    """What came of the runs of a panel."""

    arms: Mapping[str, TrainedArm]
    seeds: tuple[int, ...]
    measured: Any = None
    """What the panel had to measure, beside its runs."""
    broken: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    """On which seeds each arm broke down."""

    def broke_down(self, arm: str) -> Sequence[bool]:
        """Tell for each seed whether an arm broke down, that is, ended above where its baseline was early."""
        return self.broken.get(arm, [False] * len(self.seeds))

    def lowest(self, names: Iterable[str] = ()) -> TrainedArm:
        """Return the arm with the lowest mean loss, of some or of all."""
        return min((self.arms[name] for name in names or self.arms), key=lambda arm: arm.loss)
