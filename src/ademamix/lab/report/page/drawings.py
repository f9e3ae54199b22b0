"""Charts as a page draws them: no more points and digits than can be seen, equal lists of numbers kept once, and words
for readers who cannot see them.
"""

from __future__ import annotations

import colorsys
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ademamix.lab.report import figures
from ademamix.lab.report.page.content import Chart, Grid, Landscape, Lines, Numbers, Other, Series
from ademamix.lab.report.page.labels import plain

MOST_POINTS = 300
"""Of a curve: about one for every two pixels."""
MOST_IN_WORDS = 8
X_DIGITS, Y_DIGITS = 7, 5


@dataclass(frozen=True)
class Drawing:
    """A chart of the page: its number among the drawings, its title, and its content in words."""

    number: int | None
    """None if the page cannot draw it."""
    title: str
    words: str


@dataclass
class Drawings:
    """All charts of a page. Lists of numbers and looks are shared: a chart refers to them by their place."""

    charts: list[dict[str, Any]] = field(default_factory=list)
    _lists: dict[tuple[float | None, ...], int] = field(default_factory=dict)
    _looks: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)

    def add(self, chart: Chart) -> Drawing:
        """Take a chart, and return what the page says of it."""
        title = plain(chart.title)
        if isinstance(chart, Other):
            return Drawing(None, title, f"A chart of kind {chart.kind!r}, which this page cannot draw.")
        self.charts.append(self._grid(chart) if isinstance(chart, Grid) else self._lines(chart))
        return Drawing(len(self.charts) - 1, title, words(chart))

    def as_json(self) -> dict[str, Any]:
        """Return all of it for the script of the page."""
        return {
            "lists": list(self._lists),
            "looks": [look for _, look in self._looks.values()],
            "charts": self.charts,
        }

    def _lines(self, chart: Lines | Landscape) -> dict[str, Any]:
        looks = figures.looks([series.family for series in chart.series])
        logarithmic = chart.logarithmic if isinstance(chart, Lines) else ""
        series: list[dict[str, Any]] = []
        for each, look in zip(chart.series, looks, strict=True):
            x, y = thinned(each, logarithmic)
            drawn: dict[str, Any] = {
                "x": self._list(x, X_DIGITS),
                "y": self._list(y, Y_DIGITS),
                "look": self._look(look),
            }
            if isinstance(chart, Landscape) and -len(each.x) <= chart.marked < len(each.x):
                drawn["marked"] = [each.x[chart.marked], each.y[chart.marked]]
            series.append({"label": plain(each.label), **drawn})
        content = {
            **self._axes(chart),
            "series": series,
            "joined": isinstance(chart, Landscape) or chart.joined,
            "logarithmic": logarithmic,
            "xRange": chart.x_range,
            "yRange": chart.y_range,
        }
        if isinstance(chart, Landscape):
            return content | {"marks": [["start", *chart.start], ["minimum", *chart.minimum]]}
        levels = {plain(label): level for label, level in chart.levels.items() if level is not None}
        return content | {"levels": [[label, _short(level, Y_DIGITS)] for label, level in levels.items()]}

    def _grid(self, chart: Grid) -> dict[str, Any]:
        values = [[_short(value, Y_DIGITS) for value in row] for row in chart.values]
        return {**self._axes(chart), "columns": chart.x, "rows": chart.y, "values": values, "level": chart.level}

    def _axes(self, chart: Lines | Landscape | Grid) -> dict[str, Any]:
        return {"kind": chart.kind, "xLabel": plain(chart.x_label), "yLabel": plain(chart.y_label)}

    def _list(self, values: Numbers, digits: int) -> int:
        short = tuple(_short(value, digits) for value in values)
        return self._lists.setdefault(short, len(self._lists))

    def _look(self, look: figures.Look) -> int:
        dash = [] if isinstance(look.line, str) else list(look.line[1] or ())
        drawn = {"colour": look.colour, "inDark": in_the_dark(look.colour), "dash": dash, "marker": look.marker}
        return self._looks.setdefault(repr(look), (len(self._looks), drawn | {"hollow": look.hollow}))[0]


def thinned(series: Series, logarithmic: str = "") -> tuple[Numbers, Numbers]:
    """Return at most :data:`MOST_POINTS` of a long series: those that make its shape, and so the spikes as well."""
    if len(series.x) <= MOST_POINTS:
        return series.x, series.y
    pairs = [(x, y) for x, y in zip(series.x, series.y, strict=True) if x is not None and y is not None]
    seen = np.array(pairs, dtype=float).reshape(-1, 2)
    for axis, name in enumerate("xy"):
        if name in logarithmic:
            seen[:, axis] = np.log10(np.maximum(seen[:, axis], 1e-300))
    kept = [pairs[number] for number in _shape(seen[:, 0], seen[:, 1], MOST_POINTS)]
    return [x for x, _ in kept], [y for _, y in kept]


def _shape(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], most: int) -> list[int]:
    """Return the points to keep, by the largest triangle of three buckets.

    One point of each bucket stays: the one that spans the largest triangle with the point before and with the mean of
    the next bucket (Steinarsson, "Downsampling time series for visual representation", 2013).
    """
    count = len(x)
    if count <= most:
        return list(range(count))
    edges = np.linspace(1, count - 1, most - 1).astype(int)
    sizes = np.diff([*edges, count])
    means_x, means_y = (np.add.reduceat(axis, edges) / sizes for axis in (x, y))
    kept = [0]
    for bucket, (begin, end) in enumerate(itertools.pairwise(edges)):
        last, next_x, next_y = kept[-1], means_x[bucket + 1], means_y[bucket + 1]
        areas = abs((x[last] - next_x) * (y[begin:end] - y[last]) - (x[last] - x[begin:end]) * (next_y - y[last]))
        kept.append(int(begin + areas.argmax()))
    return [*kept, count - 1]


def _short(value: float | None, digits: int) -> float | None:
    """Return a number of so many digits, without a decimal point if it is whole: that is what JSON then has."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def in_the_dark(colour: str) -> str:
    """Return a colour that can be seen on black, and is still told from the others.

    >>> in_the_dark("#1A1A1A"), in_the_dark("#0072B2")
    ('#808080', '#40baff')
    """
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    lighter = colorsys.hls_to_rgb(hue, 0.45 + 0.5 * lightness, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in lighter)


def words(chart: Lines | Landscape | Grid) -> str:
    """Return what a chart shows, for readers who cannot see it."""
    axes = f"{plain(chart.y_label)} against {plain(chart.x_label)}"
    if isinstance(chart, Grid):
        return f"Coloured cells, {axes}. {_grid_in_words(chart)}"
    kind = "Line chart" if isinstance(chart, Landscape) or chart.joined else "Points"
    lines = [_series_in_words(series) for series in chart.series[:MOST_IN_WORDS]]
    if len(chart.series) > MOST_IN_WORDS:
        lines.append(f"and {len(chart.series) - MOST_IN_WORDS} more")
    return f"{kind}, {axes}. {'; '.join(lines)}."


def _series_in_words(series: Series) -> str:
    pairs = [(x, y) for x, y in zip(series.x, series.y, strict=False) if x is not None and y is not None]
    if not pairs:
        return f"{plain(series.label)}: no finite values"
    (first_x, first_y), (last_x, last_y) = pairs[0], pairs[-1]
    if len(pairs) == 1:
        return f"{plain(series.label)}: {first_y:.4g} at {first_x:g}"
    return f"{plain(series.label)}: from {first_y:.4g} at {first_x:g} to {last_y:.4g} at {last_x:g}"


def _grid_in_words(chart: Grid) -> str:
    places = {
        (x, y): value
        for y, row in zip(chart.y, chart.values, strict=False)
        for x, value in zip(chart.x, row, strict=False)
    }
    finite = {place: value for place, value in places.items() if value is not None}
    if not finite:
        return "No cell has a finite value."
    ends = {"Lowest": min(finite, key=finite.__getitem__), "highest": max(finite, key=finite.__getitem__)}
    said = [f"{which} {finite[place]:.4g} at {_place(chart, place)}" for which, place in ends.items()]
    empty = len(places) - len(finite)
    return "; ".join([*said, *([f"{empty} without a finite value"] if empty else [])]) + "."


def _place(chart: Grid, place: Sequence[float | None]) -> str:
    names = (plain(chart.x_label), plain(chart.y_label))
    return ", ".join(f"{name} = {value:g}" for name, value in zip(names, place, strict=True) if value is not None)
