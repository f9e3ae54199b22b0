"""What a page shows, as the lab keeps it: sections of panels, each with claims, charts, tables and runs.

`panels.json` of a recipe is read into these types, and kept runs and comparisons are brought into them, so that there
is one page for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from ademamix.lab.recipes import PAPER
from ademamix.lab.reproduction.claims import Verdict
from ademamix.lab.runs.record import RunError

Numbers = list[float | None]
"""None stands for a number that is not finite."""


class _Part(BaseModel):
    """A part of a file: fields that the page does not know are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Claim(_Part):
    """A claim, its verdict, and what decided."""

    claim: str
    source: str = ""
    ours: bool = False
    verdict: Verdict
    reason: str = ""
    numbers: dict[str, Numbers] = {}
    seeds: list[int] = []


class Series(_Part):
    """A line or a set of points."""

    label: str
    x: Numbers
    y: Numbers
    family: str = ""


class _Axes(_Part):
    """A chart over two axes."""

    title: str
    x_label: str
    y_label: str


class Lines(_Axes):
    """Series over one axis."""

    kind: Literal["lines"]
    series: list[Series]
    joined: bool = True
    logarithmic: str = ""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    levels: dict[str, float | None] = {}


class Landscape(_Axes):
    """Paths over two variables, from a start to a minimum."""

    kind: Literal["landscape"]
    series: list[Series]
    start: tuple[float, float]
    minimum: tuple[float, float]
    marked: int = -1
    x_range: tuple[float, float]
    y_range: tuple[float, float]


class Grid(_Axes):
    """A value for each pair of two settings."""

    kind: Literal["grid"]
    x: Numbers
    y: Numbers
    values: list[Numbers]
    level: float | None = None


class Other(_Part):
    """A chart of a kind that the page cannot draw; the picture beside `panels.json` has it."""

    kind: str
    title: str = ""


def _kind(chart: Any) -> str:
    kind = chart.get("kind") if isinstance(chart, dict) else getattr(chart, "kind", "")
    return kind if kind in ("lines", "landscape", "grid") else "other"


Chart = Annotated[
    Annotated[Lines, Tag("lines")]
    | Annotated[Landscape, Tag("landscape")]
    | Annotated[Grid, Tag("grid")]
    | Annotated[Other, Tag("other")],
    Discriminator(_kind),
]


class Table(_Part):
    """A header, and rows whose first cell names them."""

    header: list[str]
    rows: list[list[str]]
    title: str = ""


class Arm(_Part):
    """A run without its seed, and its key for each seed."""

    run: dict[str, Any] = {}
    keys: dict[str, str] = {}


class Tried(_Part):
    """A choice of a search, and the loss that it gave."""

    lr: float
    beta2: float | None = None
    validation_loss: float | None = None


class Search(_Part):
    """The choices that were tried for an arm."""

    losses: list[Tried] = []

    @property
    def lowest(self) -> float | None:
        """The loss of the best choice; None if all diverged."""
        return min((each.validation_loss for each in self.losses if each.validation_loss is not None), default=None)


class Panel(_Part):
    """A part of a result."""

    title: str
    warning: str = ""
    caption: str = ""
    claims: list[Claim] = []
    charts: list[Chart] = []
    tables: list[Table] = []
    arms: dict[str, Arm] = {}
    searched: dict[str, Search] = {}
    environment: dict[str, Any] = {}
    """Where its numbers were computed or measured, if not by its runs."""
    text: str = ""
    """A report that is laid out already."""


class Found(_Part):
    """The content of `panels.json`."""

    recipe: str
    scale: str
    labels: list[str] = []
    source: str = PAPER
    ademamix: str = ""
    complete: bool = True
    panels: list[Panel] = Field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A result on the page."""

    name: str
    summary: str
    panels: list[Panel]
    commands: list[str]
    """What repeats it."""
    source: str = PAPER
    """Whose claims it decides."""
    origin: str = ""
    """Where the result stands: labels in the paper, or another source."""
    notes: str = ""
    """How it was done, in paragraphs."""
    version: str = ""
    """Of ademamix, that wrote it."""
    complete: bool = True

    @property
    def is_of_paper(self) -> bool:
        """Whether its claims are the paper's."""
        return self.source == PAPER

    @property
    def claims(self) -> list[Claim]:
        """Those of all panels."""
        return [claim for panel in self.panels for claim in panel.claims]

    @property
    def counted(self) -> list[Claim]:
        """The claims of its source, without those that are ours."""
        return [claim for claim in self.claims if not claim.ours]


def read_found(path: Path) -> Found:
    """Read a `panels.json`; one that is damaged is refused with what to do."""
    try:
        return Found.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise RunError(
            f"{str(path)!r} is damaged ({where}: {first['msg']}). Give the command that wrote it again: kept runs are "
            "not trained again"
        ) from None
