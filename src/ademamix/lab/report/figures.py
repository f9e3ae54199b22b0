"""The style of all figures: series that can be told apart in black and white, and files that are whole.

A series has a colour that colour-blind readers can tell from the others, a line style and a marker. Figures are drawn
with matplotlib's `Figure`, never with pyplot, so that drawing one changes nothing outside it.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import LineStyleType
from numpy.typing import ArrayLike

from ademamix.output.atomic import rewritten

SOLID: LineStyleType = "-"
DASHED: LineStyleType = (0, (4, 1.5))
DASH_DOTTED: LineStyleType = (0, (3, 1, 1, 1))
DOTTED: LineStyleType = (0, (1, 1.2))
LONG_DASHED: LineStyleType = (0, (9, 2))

DOTS_PER_INCH = 160
MOST_IN_A_ROW = 4
KINDS: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}}  # of files, and what is noted in them

Corner = Literal["upper left", "upper right", "lower left", "lower right"]


@dataclass(frozen=True)
class Look:
    """How one series is drawn; its line style and its marker alone are enough to find it again."""

    colour: str
    line: LineStyleType
    marker: str
    hollow: bool = False

    @property
    def stroke(self) -> dict[str, Any]:
        """The arguments of `Axes.plot` that make its line."""
        return {"color": self.colour, "linestyle": self.line}

    @property
    def mark(self) -> dict[str, Any]:
        """The arguments of `Axes.plot` that make its marker."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markerfacecolor": "white" if self.hollow else self.colour,
        }


ADAM = (
    Look("#D55E00", SOLID, "o", hollow=True),
    Look("#A67C00", DASHED, "s", hollow=True),
    Look("#AA4499", DASH_DOTTED, "^", hollow=True),
)
"""Adam and AdamW: warm colours, hollow markers. The first is for a single series, all three for a sweep."""

ADEMAMIX = (
    Look("#0072B2", SOLID, "o"),
    Look("#3DA5D9", DASHED, "s"),
    Look("#009E73", DASH_DOTTED, "^"),
)
"""AdEMAMix: cold colours, filled markers."""

SERIES = (
    Look("#1A1A1A", SOLID, "o"),
    Look("#0072B2", DASHED, "s"),
    Look("#D55E00", DASH_DOTTED, "^", hollow=True),
    Look("#3DA5D9", DOTTED, "D"),
    Look("#E69F00", LONG_DASHED, "v", hollow=True),
)
"""Series that are not optimizers; lightness tells neighbours apart as well."""


OTHERS = (
    Look("#1A1A1A", DOTTED, "D"),
    Look("#CC79A7", LONG_DASHED, "v"),
    Look("#777711", DASHED, "P"),
    Look("#5B2A86", DASH_DOTTED, "X"),
    Look("#E5B400", SOLID, "<"),
    Look("#888888", DOTTED, "*"),
)
"""Other optimizers, beside AdamW and AdEMAMix."""


def looks(optimizers: Sequence[str]) -> list[Look]:
    """Return how the curve of each optimizer is drawn: AdamW and AdEMAMix as everywhere, and no two alike.

    The name "" is for a series that belongs to no optimizer.

    >>> first, second, third = looks(["adamw", "ademamix", "lion"])
    >>> (first, second, third) == (ADAM[0], ADEMAMIX[0], OTHERS[0])
    True
    """
    everyone = [*ADAM, *ADEMAMIX, *OTHERS]
    spare = (
        Look(one.colour, line.line, mark.marker, hollow=not one.hollow)
        for line, mark in itertools.product(everyone, reversed(everyone))
        for one in everyone
    )
    families = {"": iter(SERIES), "adamw": iter(ADAM), "ademamix": iter(ADEMAMIX)}
    others, used = iter(OTHERS), []
    for name in optimizers:
        candidates = itertools.chain(families.get(name, others), others, spare)
        used.append(next(look for look in candidates if look not in used))
    return used


def draw_line(
    axes: Axes, x: ArrayLike, y: ArrayLike, look: Look, label: str, marks: int = 10, shift: float = 0.0
) -> None:
    """Draw one series as a line with about `marks` markers, evenly spaced in its points.

    Lines that coincide can be told apart if they `shift` their markers by different shares of the distance between two.
    """
    x, y = np.asarray(x), np.asarray(y)
    every = max(1, (len(x) - 1) // marks)
    first = min(every - int(shift * every), len(x) - 1)  # a single point has nothing but its marker
    axes.plot(x, y, **look.stroke | look.mark, markevery=(first, every), markersize=5, label=label)


def finish(axes: Axes, title: str, legend: Corner, grid: bool = True) -> None:
    """Give a panel its title, a legend in the corner `legend` whose lines show their style, and a pale grid."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(fontsize=9, loc=legend, handlelength=3.5)
    if grid:
        axes.grid(color="0.92")


def side_by_side(panels: int, caption: str, warning: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with room for so many panels, in one row or, from five on, in two.

    The caption stands below them, and a warning, if there is one, above them in red.
    """
    rows = 1 if panels <= MOST_IN_A_ROW else 2
    columns = math.ceil(panels / rows)
    width = {1: 7.0, 2: 5.6, 3: 4.8}.get(columns, 4.4)
    figure = Figure(figsize=(width * columns, 4.6 * rows), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in places[panels:]:
        unused.set_axis_off()
    if caption:
        figure.supxlabel(textwrap.fill(caption, int(12 * width * columns)), fontsize=9.5)
    if warning:
        figure.suptitle(warning, color="red")
    return figure, places[:panels]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into `folder` and return their paths.

    Each file appears whole or not at all, and the same figure gives the same bytes every time.
    """
    paths = [folder / f"{name}.{kind}" for kind in KINDS]
    for path in paths:
        save_as(figure, path)
    return paths


def save_as(figure: Figure, path: Path) -> None:
    """Write one file, of the kind that its name ends with."""
    _lay_out(figure)
    kind = path.suffix.removeprefix(".")
    with matplotlib.rc_context({"svg.hashsalt": path.stem}), rewritten(path) as file:  # or an SVG has random ids
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=KINDS[kind])


def _lay_out(figure: Figure) -> None:
    """Fix the places of the panels: the layout's solver varies in the last digits, which end up in the SVG's ids."""
    figure.set_dpi(DOTS_PER_INCH)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(tuple(round(edge, 9) for edge in axes.get_position().bounds))
