"""What came of the runs of a panel: for each arm its results and everything that was recorded, seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ademamix.lab.config import Run
from ademamix.lab.runs.record import Result, RunFolder

VALIDATION_LOSS = "validation_loss"


@dataclass(frozen=True)
class TrainedArm:
    """One arm of a panel: a config, and a run of it for each seed."""

    name: str
    run: Run
    results: Sequence[Result]
    folders: Sequence[RunFolder]

    @cached_property
    def rows(self) -> list[list[dict[str, Any]]]:
        """What was recorded, by seed."""
        return [folder.metrics() for folder in self.folders]

    @property
    def losses(self) -> list[float]:
        """The last validation loss of each seed; infinite where the run diverged: it is higher than any other."""
        return [math.inf if result.diverged else result.validation_loss for result in self.results]

    @property
    def loss(self) -> float:
        """Its mean over the seeds."""
        return statistics.fmean(self.losses)

    def curves(self, metric: str = VALIDATION_LOSS) -> list[dict[int, float]]:
        """Return a metric by step, for each seed."""
        return [{row["step"]: row[metric] for row in rows if metric in row} for rows in self.rows]

    def curve(self, metric: str = VALIDATION_LOSS) -> dict[int, float]:
        """Return the mean over the seeds of a metric, by step."""
        curves = self.curves(metric)
        steps = set.intersection(*(set(curve) for curve in curves))
        return {step: statistics.fmean(curve[step] for curve in curves) for step in sorted(steps)}

    def values(self, metric: str, step: int | None = None) -> list[float]:
        """Return a metric of each seed as last recorded up to a step, or at the end; NaN: it was not recorded.

        Infinite where the run had diverged by then.
        """
        if metric == VALIDATION_LOSS and step is None:
            return self.losses
        found = zip(self.curves(metric), self.results, strict=True)
        return [_value(curve, step, diverged=result.diverged) for curve, result in found]

    def highest(self, metric: str) -> list[float]:
        """Return the highest value of a metric, for each seed; infinite where the run diverged."""
        found = zip(self.curves(metric), self.results, strict=True)
        return [math.inf if result.diverged else max(curve.values(), default=math.nan) for curve, result in found]


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

    def lowest(self) -> TrainedArm:
        """Return the arm with the lowest mean loss."""
        return min(self.arms.values(), key=lambda arm: arm.loss)
