"""Times of training steps with AdEMAMix and with AdamW, as a chart and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ademamix.lab.report.charts import Lines, Series

if TYPE_CHECKING:
    from ademamix.lab.reproduction.outcome import Outcome
    from ademamix.lab.reproduction.panel import Table


@dataclass(frozen=True)
class StepTimes:
    """What a step takes with AdamW and with one variant of AdEMAMix that took turns on a model; seconds by seed."""

    model: str
    variant: str
    parameters: int
    state_bytes: int
    """Of AdEMAMix."""
    adamw: Sequence[float]
    ademamix: Sequence[float]

    @property
    def added(self) -> list[float]:
        """The share of time that AdEMAMix adds, by seed.

        >>> StepTimes("a model", "fp32", 100, 1200, adamw=[1.0, 2.0], ademamix=[1.5, 2.5]).added
        [0.5, 0.25]
        """
        return [ours / theirs - 1 for ours, theirs in zip(self.ademamix, self.adamw, strict=True)]


def times_of(found: Outcome) -> list[StepTimes]:
    """Return the times that a panel has measured."""
    return [StepTimes(**times) for times in found.measured["times"]]


@dataclass(frozen=True)
class TimesAgainstSize:
    """The time of a step over that of AdamW, against the size of the model; a set of points for each variant."""

    def chart(self, title: str, found: Outcome) -> Lines:
        """Return the points, the mean over the seeds."""
        times = times_of(found)
        series = []
        for variant in dict.fromkeys(each.variant for each in times):
            points = [each for each in times if each.variant == variant]
            ratios = [1 + statistics.fmean(each.added) for each in points]
            series.append(Series.of(variant, [each.parameters for each in points], ratios))
        heights = [1.0, *(ratio for each in series for ratio in each.y)]
        low, high = min(heights), max(heights)
        return Lines(
            title,
            "parameters",
            "time of a step, AdamW = 1",
            series,
            joined=False,
            logarithmic="x",
            y_range=(low - 0.1 * (high - low), high + 0.8 * (high - low)),  # with room for the legend
            levels={"AdamW": 1.0},
        )


def times_table(found: Outcome, steps: int) -> Table:
    """Return the times, and how many more steps AdamW would take in the time of so many with AdEMAMix."""
    from ademamix.lab.reproduction.panel import Table  # which imports the charts

    header = ["", "AdamW, ms", "AdEMAMix, ms", "time added", "on each seed", f"AdamW steps more in {steps:,}"]
    rows = [
        [
            f"{each.model}: {each.variant}",
            f"{1e3 * min(each.adamw):.3g}",
            f"{1e3 * min(each.ademamix):.3g}",
            f"{statistics.fmean(each.added):+.1%}",
            ", ".join(f"{added:+.1%}" for added in each.added),
            f"{statistics.fmean(each.added) * steps:+,.0f}",
            f"{each.state_bytes / each.parameters:.2f}",
        ]
        for each in times_of(found)
    ]
    return Table([*header, "state, bytes per parameter"], rows, f"The time of a step, on {found.measured['processor']}")
