"""The content of one panel of a figure, as plain data, and how it is drawn.

A chart is complete before it is drawn: matplotlib and the JSON file beside the picture get the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from ademamix.lab.report import figures

Range = tuple[float, float]
DECIMALS = 12


def numbers(values: ArrayLike) -> list[float]:
    """Return plain floats of six digits, none beyond the twelfth decimal: all that a reader or a figure can use.

    What is smaller is the rounding of a difference that should be 0, and another one on another machine.

    >>> numbers(np.array([1 / 3, 2, 0.1 + 0.2 - 0.3]))
    [0.333333, 2.0, 0.0]
    """
    rounded = (round(value, DECIMALS) + 0.0 for value in np.asarray(values, dtype=float).tolist())  # + 0.0: no -0
    return [float(f"{value:.6g}") for value in rounded]


@dataclass(frozen=True)
class Series:
    """A line or a set of points, and its family: an optimizer's name gives it that optimizer's looks."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    family: str = ""

    @classmethod
    def of(cls, label: str, x: ArrayLike, y: ArrayLike, family: str = "") -> Series:
        """Return a series of any arrays."""
        return cls(label, numbers(x), numbers(y), family)


class Chart(Protocol):
    """One panel of a figure."""

    @property
    def title(self) -> str:
        """The text above it."""

    def draw(self, axes: Axes) -> None:
        """Draw it."""


@dataclass(frozen=True)
class Lines:
    """Series over one axis, as lines or, if they are not `joined`, as points."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    joined: bool = True
    logarithmic: str = ""
    """The axes that are logarithmic: "", "x", "y" or "xy"."""
    x_range: Range | None = None
    y_range: Range | None = None
    levels: Mapping[str, float] = field(default_factory=dict)
    """Horizontal lines."""
    legend: figures.Corner = "upper right"

    def draw(self, axes: Axes) -> None:
        """Draw the series, each in a look of its own."""
        self.draw_series(axes)
        for level in self.levels.values():
            if math.isfinite(level):
                axes.axhline(level, color="0.6", linewidth=0.8)
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        axes.set(xscale="log" if "x" in self.logarithmic else "linear")
        axes.set(yscale="log" if "y" in self.logarithmic else "linear")
        if self.x_range is not None:
            axes.set_xlim(*self.x_range)
        if self.y_range is not None:
            axes.set_ylim(*self.y_range)
        figures.finish(axes, self.title, self.legend)

    def draw_series(self, axes: Axes) -> None:
        """Draw the series that the legend names."""
        looks = figures.looks([series.family for series in self.series])
        for order, (series, look) in enumerate(zip(self.series, looks, strict=True)):
            if self.joined:
                shift = order / len(self.series)  # so that lines that coincide can be told apart
                figures.draw_line(axes, series.x, series.y, look, series.label, shift=shift)
            else:
                axes.plot(series.x, series.y, **look.mark, linestyle="none", label=series.label)


@dataclass(frozen=True)
class Bars:
    """A value for each name, as bars with the largest on top."""

    title: str
    x_label: str
    values: Mapping[str, float]

    def draw(self, axes: Axes) -> None:
        """Draw the bars with their values beside them."""
        rising = sorted(self.values.items(), key=lambda item: item[1])
        bars = axes.barh([name for name, _ in rising], [value for _, value in rising], color="#0072B2")
        axes.bar_label(bars, [f"{value:.2g}" for _, value in rising], padding=3)
        axes.margins(x=0.15)
        axes.set(xlabel=self.x_label)
        axes.set_title(self.title, loc="left", fontsize=11)


@dataclass(frozen=True)
class Grid:
    """A value for each pair of two settings, as colours; NaN for a run that diverged."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]
    """By y, then by x."""
    level: float = math.nan
    """Cells at or below this value are framed; NaN for none."""

    def draw(self, axes: Axes) -> None:
        """Draw the cells with their values in them."""
        shown = np.array(self.values, dtype=float)
        axes.imshow(shown, origin="lower", aspect="auto", cmap="Blues_r")
        middle = np.nanmean(shown) if np.isfinite(shown).any() else 0.0
        for (row, column), value in np.ndenumerate(shown):
            text = f"{value:.3f}" if math.isfinite(value) else "diverged"
            axes.text(column, row, text, ha="center", va="center", color="white" if value < middle else "black")
            if value <= self.level:
                corner = (column - 0.47, row - 0.47)
                axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor="#009E73", linewidth=2.5))
        axes.set_xticks(range(len(self.x)), [f"{value:g}" for value in self.x])
        axes.set_yticks(range(len(self.y)), [f"{value:g}" for value in self.y])
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        axes.set_title(self.title, loc="left", fontsize=11)


def plain(chart: Chart) -> dict[str, Any]:
    """Return a chart for a JSON file, under the name of its kind; numbers that are not finite become null.

    >>> plain(Lines("a", "x", "y", [Series("b", [1.0], [math.nan])]))["series"]
    [{'label': 'b', 'x': [1.0], 'y': [None], 'family': ''}]
    """
    return {"kind": type(chart).__name__.lower(), **jsonable(chart)}


def jsonable(value: Any) -> Any:
    """Return dataclasses as objects, sequences as lists, and null for values that JSON has no word for."""
    if hasattr(value, "__dataclass_fields__"):
        return {part.name: jsonable(getattr(value, part.name)) for part in fields(value) if part.repr}
    if isinstance(value, Mapping):
        return {str(name): jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
