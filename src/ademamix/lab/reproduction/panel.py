"""The form of a recipe: panels, each with what is trained or computed, what is shown, and what is claimed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ademamix.lab.config import Run
from ademamix.lab.report.charts import Chart
from ademamix.lab.reproduction.claims import Claim
from ademamix.lab.reproduction.outcome import VALIDATION_LOSS, Outcome
from ademamix.lab.reproduction.scale import Scale


class Show(Protocol):
    """Something that a figure shows of the outcome of a panel."""

    def chart(self, title: str, found: Outcome) -> Chart:
        """Return it as data; `title` is that of the panel."""


@dataclass(frozen=True)
class Table:
    """Computed numbers: a header, and rows whose first cell names them."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Panel:
    """A part of a result: what is trained, what is shown, what is claimed."""

    title: str
    arms: Mapping[str, Run] = field(default_factory=dict)
    """Runs by name, without seeds: the engine carries out each with all seeds of the scale."""
    baseline: str | Mapping[str, str] = ""
    """The arm that the table measures the others by, or the one for each by its name; by default the first."""
    tune: Collection[str] = ()
    """The arms whose learning rate and beta2 are searched first, on seed 0."""
    follow: Mapping[str, str] = field(default_factory=dict)
    """The arms that take over what was found for another one, by the name of that one."""
    early_stopping: bool = False
    """Whether the search goes by the lowest validation loss of each run and not by its last, since the claims do."""
    show: Sequence[Show] = ()
    """Of the arms, from left to right."""
    charts: Sequence[Chart] = ()
    """Of numbers that were computed."""
    scores: Sequence[str] = ()
    """Metrics whose last values have a table of their own, a row each."""
    tables: Sequence[Table | Callable[[Outcome], Table]] = ()
    """Beside those of the arms, which the engine writes."""
    measure: Callable[[], Any] | None = None
    """Something to measure once, beside the runs: data for a JSON file, which is kept and part of the outcome."""
    claims: Sequence[Claim] = ()
    caption: str = ""
    """The settings, in words; it stands below the figure and in the report."""
    warning: str = ""
    """Why this shows nothing; its claims are then not conclusive."""
    figure: str = ""
    """Panels of one figure stand side by side; it is named RECIPE, or RECIPE-FIGURE."""

    def baseline_of(self, name: str) -> str:
        """Return the arm that another is measured by."""
        if isinstance(self.baseline, str):
            return self.baseline or next(iter(self.arms))
        return self.baseline[name]

    def judged(self, found: Outcome) -> Outcome:
        """Return an outcome that says on which seeds each arm broke down.

        That is to end above where its baseline was after a tenth of the steps; where the claims go by the lowest loss,
        never to get below that. A run that diverged has done worse.
        """
        broken = {}
        for name, arm in found.arms.items():
            losses = arm.lowest(VALIDATION_LOSS) if self.early_stopping else arm.losses
            early = found.arms[self.baseline_of(name)].early_losses
            broken[name] = [before < loss < math.inf for before, loss in zip(early, losses, strict=True)]
        return replace(found, broken=broken)


Panels = Generator[Panel, Outcome, None]
"""What a recipe yields; it may use the outcome of a panel, which comes back to it, to plan the next."""

Plan = Callable[[Scale], Panels]
"""A recipe."""
