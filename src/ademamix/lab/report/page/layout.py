"""Sections laid out as one HTML file that needs no other."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

import ademamix
from ademamix.lab.report.page import overview
from ademamix.lab.report.page.content import Claim, Panel, Section, Table
from ademamix.lab.report.page.drawings import Drawing, Drawings
from ademamix.lab.report.page.labels import plain
from ademamix.lab.report.page.settings import Environment as Machine
from ademamix.lab.report.page.settings import environments, in_words, machine, shared_and_own

LONGEST_OPEN_TABLE = 12
"""Rows; longer tables are folded away."""

SCRIPTS = ("marks.js", "plot.js", "lines.js", "grid.js", "page.js")
"""Parts of one module, each of which may use the ones before."""

ABOUT_SCALES = {
    "smoke": "Here its experiments ran for seconds, only to see that they work: what was trained shows nothing.",
    "laptop": "Here its experiments were repeated with small models, on a CPU.",
    "paper": "Here its experiments were repeated at their own size.",
}


@dataclass(frozen=True)
class Page:
    """All that a page shows; without a scale it is one of runs, and has a lead of its own."""

    title: str
    sections: Sequence[Section]
    runs: Sequence[Path]
    """The folders in which the runs are, with their environments."""
    command: str
    """What makes the page."""
    scale: str = ""
    lead: str = ""
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class ClaimRow:
    """A claim, where it is on the page, and the numbers behind it."""

    number: int
    section: Section
    claim: Claim

    @property
    def recipe(self) -> str:
        """The recipe that decides it."""
        return self.section.name

    @property
    def claimant(self) -> str:
        """Who says so: the paper, another source, or we."""
        if self.claim.ours:
            return "Ours"
        return "The paper" if self.section.is_of_paper else self.section.source

    @property
    def id(self) -> str:
        """The name of its place."""
        return f"{self.recipe}-claim-{self.number}"

    @property
    def numbers(self) -> Table:
        """The numbers by what they are; those that say it themselves, such as a limit of 0.5, are left out."""
        rows = []
        for label, values in self.claim.numbers.items():
            shown = ["not finite" if value is None else f"{value:.5g}" for value in values]
            if [label] != [f"{value:g}" for value in values if value is not None]:
                rows.append([plain(label), *shown])
        width = max(map(len, rows), default=1)
        seeds = [f"seed {seed}" for seed in self.claim.seeds]
        header = ["", *(seeds if len(seeds) == width - 1 else ["value"] * (width - 1))]
        return Table(header=header, rows=[row + [""] * (width - len(row)) for row in rows])


@dataclass(frozen=True)
class PanelView:
    """A panel with its drawings, and with the settings of its runs."""

    panel: Panel
    claims: Sequence[ClaimRow]
    drawings: Sequence[Drawing]

    @property
    def title(self) -> str:
        """Its title without formulas."""
        return plain(self.panel.title)

    @property
    def shared(self) -> dict[str, str]:
        """The settings that all of its runs have."""
        return shared_and_own([arm.run for arm in self.panel.arms.values()])[0]

    @property
    def arms(self) -> Table:
        """The settings that its runs have of their own, and their keys by seed."""
        _, own = shared_and_own([arm.run for arm in self.panel.arms.values()])
        rows = []
        for (name, arm), settings in zip(self.panel.arms.items(), own, strict=True):
            keys = ", ".join(f"{key} (seed {seed})" for seed, key in arm.keys.items())
            rows.append([name, in_words(settings), keys])
        return Table(header=["run", "its own settings", "kept as"], rows=rows)

    @property
    def searched(self) -> Table:
        """What the search tried, and what was best."""
        rows = []
        for name, search in self.panel.searched.items():
            for tried in search.losses:
                loss, best = tried.validation_loss, " (best)" if tried.validation_loss == search.lowest else ""
                beta2 = "" if tried.beta2 is None else f"{tried.beta2:g}"
                rows.append([name, f"{tried.lr:g}", beta2, "diverged" if loss is None else f"{loss:.4f}{best}"])
        return Table(header=["run", "learning rate", "beta2", "validation loss"], rows=rows)


@dataclass(frozen=True)
class SectionView:
    """A section with its panels and its environments."""

    section: Section
    panels: Sequence[PanelView]
    environments: Sequence[Machine]

    @property
    def elsewhere(self) -> list[str]:
        """Where numbers were computed or measured that are not of runs."""
        found = [each.panel.environment for each in self.panels]
        measured = {machine(where) for where in found if where and "ademamix" not in where}
        computed = {machine(where) for where in found if "ademamix" in where}
        return [f"{words}; measured there" for words in sorted(measured)] + sorted(computed)

    @property
    def notes(self) -> list[Markup]:
        """The paragraphs that say how it was done, with names of the code in its own letters."""
        paragraphs = [" ".join(part.split()) for part in self.section.notes.split("\n\n") if part.strip()]
        return [Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(each)))) for each in paragraphs]


def html(page: Page, reload: int = 0) -> str:
    """Return the page; with `reload` it loads itself again after so many seconds."""
    drawings = Drawings()
    views = [_section(section, page.runs, drawings) for section in page.sections]
    claims = [row for view in views for panel in view.panels for row in panel.claims]
    of_paper = [section for section in page.sections if section.is_of_paper]
    content = _template().render(
        page=page,
        version=ademamix.__version__,
        about_scale=ABOUT_SCALES.get(page.scale, ""),
        views=views,
        claims=claims,
        tally=overview.Tally.of(claim for section in of_paper for claim in section.counted),
        ours=sum(len(section.claims) - len(section.counted) for section in of_paper),
        main_claims=[
            (panel.title, row)
            for view in views
            if view.section.name == overview.MAIN
            for panel in view.panels
            for row in panel.claims
            if row.claim.source
        ],
        findings=overview.findings(page.sections) if page.scale and claims else [],
        others=[section for section in page.sections if not section.is_of_paper],
        missing=page.missing,
        verdicts=overview.VERDICTS,
        counted=overview.COUNTED,
        longest_open_table=LONGEST_OPEN_TABLE,
        reload=reload,
        drawings=_json(drawings.as_json()),
        style=Markup(_file("page.css")),
        script=Markup("\n".join(map(_file, SCRIPTS))),
    )
    return content.lstrip()  # a page begins with its doctype


def _section(section: Section, runs: Sequence[Path], drawings: Drawings) -> SectionView:
    numbered = enumerate(section.claims, start=1)
    panels = [
        PanelView(
            panel,
            [ClaimRow(next(numbered)[0], section, claim) for claim in panel.claims],
            [drawings.add(chart) for chart in panel.charts],
        )
        for panel in section.panels
    ]
    keys = {key for panel in section.panels for arm in panel.arms.values() for key in arm.keys.values()}
    return SectionView(section, panels, environments(runs, sorted(keys)))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_file("page.html"))


@cache
def _file(name: str) -> str:
    return (importlib.resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _json(content: Mapping[str, Any]) -> Markup:
    """Return JSON for inside a script element, which a "<" could end."""
    written = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(written.replace("<", "\\u003c"))
