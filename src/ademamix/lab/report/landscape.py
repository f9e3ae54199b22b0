"""Paths over a function of two variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from ademamix.lab.report import figures
from ademamix.lab.report.charts import Range, Series

Point = tuple[float, float]


@dataclass(frozen=True)
class Landscape:
    """Descents from one start, over the function that they minimise, drawn in shades; a star is its minimum."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    function: Callable[[Any, Any], Any] = field(repr=False)
    start: Point
    minimum: Point
    x_range: Range
    y_range: Range
    marked: int = -1
    """The step at which each path has its marker."""
    push: Point | None = None
    """A direction in which an arrow points from the start."""
    legend: figures.Corner = "upper right"

    def draw(self, axes: Axes) -> None:
        """Draw the shades, the paths and the marks."""
        x, y = np.meshgrid(np.linspace(*self.x_range, 250), np.linspace(*self.y_range, 250))
        levels = np.geomspace(0.1, 100_000, 13)
        axes.contourf(x, y, self.function(x, y), levels=levels, norm=LogNorm(0.1, 1e12), cmap="Greys")
        looks = figures.looks([series.family for series in self.series])
        for order, (series, look) in enumerate(zip(self.series, looks, strict=True)):
            width = 2.4 - 0.6 * order  # nested, since paths coincide
            axes.plot(series.x, series.y, **look.stroke, linewidth=width, zorder=3 + 0.1 * order)
            axes.plot(series.x[self.marked], series.y[self.marked], **look.mark, markersize=8, zorder=5)
            axes.plot([], [], **look.stroke | look.mark, linewidth=width, label=series.label)
        axes.plot(*self.minimum, "*", color="red", markeredgecolor="white", markersize=14, zorder=6)
        axes.annotate("start", self.start, (-6, 2), textcoords="offset points", ha="right", fontsize=9)
        if self.push is not None:
            self._draw_push(axes, self.push)
        axes.set(xlabel=self.x_label, ylabel=self.y_label, xlim=self.x_range, ylim=self.y_range)
        figures.finish(axes, self.title, self.legend, grid=False)

    def _draw_push(self, axes: Axes, push: Point) -> None:
        extent = np.ptp([self.x_range, self.y_range], axis=1)
        tip = self.start + np.array(push) * 0.2 / abs(np.array(push) / extent).max()
        axes.annotate("", tip, self.start, arrowprops={"arrowstyle": "-|>", "linewidth": 2, "shrinkA": 0}, zorder=5)
