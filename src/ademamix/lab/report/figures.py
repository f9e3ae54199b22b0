"""What the figures have in common: series that can be told apart in black and white, and files that are whole.

A series has a colour that colour-blind readers can tell from the others, a line style and a marker. Figures are drawn
with matplotlib's `Figure`, never with pyplot, so that drawing one changes nothing outside of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import LineStyleType
from numpy.typing import ArrayLike

from ademamix.lab.runs.atomic import rewritten

SOLID: LineStyleType = "-"
DASHED: LineStyleType = (0, (4, 1.5))
DASH_DOTTED: LineStyleType = (0, (3, 1, 1, 1))
DOTTED: LineStyleType = (0, (1, 1.2))
LONG_DASHED: LineStyleType = (0, (9, 2))

DOTS_PER_INCH = 160

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
"""Adam and AdamW: warm colours, hollow markers. The first where there is one series, all three for a sweep."""

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
    families = {"adamw": iter(ADAM), "ademamix": iter(ADEMAMIX)}
    others, used = iter(OTHERS), []
    for name in optimizers:
        candidates = itertools.chain(families.get(name, others), others, spare)
        used.append(next(look for look in candidates if look not in used))
    return used


def show_ends(axes: Axes, curves: Sequence[Mapping[int, float]], room: float = 0.6) -> None:
    """Limit the loss axis to what matters: from the lowest loss to `room` above it, and to the end of every curve."""
    finite = [[loss for loss in curve.values() if math.isfinite(loss)] for curve in curves]
    finite = [losses for losses in finite if losses]
    if finite:
        low, highest_end = min(map(min, finite)), max(losses[-1] for losses in finite)
        axes.set_ylim(low - 0.05 * room, max(low + room, highest_end + 0.1 * (highest_end - low)))


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


def warn_of_smoke(figure: Figure, steps: int) -> str:
    """Write over a figure that its runs are too short to show anything, and return the same for the report."""
    warning = f"Only {steps} steps, to see that it works: they show nothing."
    figure.suptitle(warning, color="red")
    return warning


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into `folder` and return their paths.

    Each file appears whole or not at all, and the same figure gives the same bytes every time.
    """
    _lay_out(figure)
    paths = []
    with matplotlib.rc_context({"svg.hashsalt": name}):  # the ids inside of an SVG are random without it
        for kind, metadata in (("png", {}), ("svg", {"Date": None})):
            path = folder / f"{name}.{kind}"
            with rewritten(path) as file:
                figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
            paths.append(path)
    return paths


def _lay_out(figure: Figure) -> None:
    """Fix where the panels are: the solver of the layout varies in the last digits, which end up in the SVG's ids."""
    figure.set_dpi(DOTS_PER_INCH)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(tuple(round(edge, 9) for edge in axes.get_position().bounds))
