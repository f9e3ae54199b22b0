"""The losses of several runs over their steps, limited to the range that matters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ademamix.lab.report.charts import Lines, Range, Series


@dataclass(frozen=True)
class LossCurve:
    """The losses of an optimizer by step, and where they ended; infinite if it diverged."""

    label: str
    optimizer: str
    by_step: Mapping[int, float]
    end: float


def loss_chart(title: str, curves: Sequence[LossCurve], levels: Mapping[str, float], y_label: str) -> Lines:
    """Return a chart of losses whose labels say where they ended; `levels` are horizontal lines."""
    series = []
    for curve in curves:
        steps, losses = list(curve.by_step), list(curve.by_step.values())
        series.append(Series.of(f"{curve.label}: {ending(curve.end)}", steps, losses, curve.optimizer))
    ended = [curve.by_step for curve in curves if math.isfinite(curve.end)]
    limits = range_of_ends(ended or [curve.by_step for curve in curves])
    return Lines(title, "step", y_label, series, y_range=limits, levels=levels)


def ending(loss: float) -> str:
    """Write a last loss.

    >>> ending(1.32541), ending(math.inf)
    ('1.3254', 'diverged')
    """
    return f"{loss:.4f}" if math.isfinite(loss) else "diverged"


def range_of_ends(curves: Sequence[Mapping[int, float]], room: float = 0.6) -> Range | None:
    """Return the losses that matter: from the lowest to `room` above it, and to the end of every curve.

    >>> range_of_ends([{0: 5.0, 100: 1.0}, {0: 5.0, 100: 2.0}])
    (0.97, 2.1)
    """
    finite = [[loss for loss in curve.values() if math.isfinite(loss)] for curve in curves]
    finite = [losses for losses in finite if losses]
    if not finite:
        return None
    low, highest_end = min(map(min, finite)), max(losses[-1] for losses in finite)
    return low - 0.05 * room, max(low + room, highest_end + 0.1 * (highest_end - low))
