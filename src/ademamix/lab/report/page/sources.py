"""Where the content of a page comes from: a folder of results, or runs; and which files decide it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ademamix.lab.report.page import reproductions, trained
from ademamix.lab.report.page.layout import Page
from ademamix.lab.runs.kept import kept_run
from ademamix.lab.runs.record import RunError

TITLE = "AdEMAMix: what its paper claims, and what was found here"
METRICS, RESULT = "metrics.jsonl", "result.json"
RECENT = 300.0
"""Seconds: a run without a result whose metrics are older than this is not shown as one in progress."""


class Source(Protocol):
    """Something that a page can be made of."""

    def page(self) -> Page:
        """Read it."""

    def files(self) -> list[Path]:
        """Return the files whose changes change the page."""


@dataclass(frozen=True)
class Results:
    """What `ademamix reproduce` left in a folder, at a scale; with `live` also the runs in progress."""

    folder: Path
    scale: str
    live: bool = False

    def page(self) -> Page:
        """Read the panels of all recipes."""
        found = reproductions.sections(self.folder, self.scale)
        running = self._running()
        if not found and not running:
            raise RunError(
                f"there are no results at {self.scale} scale in {str(self.folder)!r}: `ademamix reproduce` makes some, "
                "--scale and --out choose others, and --runs shows runs"
            )
        runs = [trained.section("in-progress", list(map(kept_run, running)))] if running else []
        return Page(
            title=TITLE,
            sections=[*found, *runs],
            runs=[self.folder / "runs"],
            command=f"ademamix report --scale {self.scale}",
            scale=self.scale,
            missing=reproductions.missing(found),
        )

    def files(self) -> list[Path]:
        """Return the panels of all recipes, and the metrics of the runs in progress."""
        return reproductions.files(self.folder, self.scale) + [run / METRICS for run in self._running()]

    def _running(self) -> list[Path]:
        if not self.live:
            return []
        metrics = (run / METRICS for run in folders_of_runs(self.folder) if not (run / RESULT).exists())
        return [file.parent for file in metrics if file.exists() and time.time() - file.stat().st_mtime < RECENT]


@dataclass(frozen=True)
class Trained:
    """Runs by their keys, or the beginnings of those, and folders of runs and comparisons; without any, all runs."""

    folder: Path
    """Where results are kept; it has the runs in `runs`."""
    names: Sequence[str] = ()

    def page(self) -> Page:
        """Read the metrics of the runs, and the comparisons."""
        folders, comparisons = self._found()
        runs = list(map(kept_run, folders))
        if runs and not comparisons and all(run.config is None for run in runs):
            keys = ", ".join(run.key for run in runs)
            raise RunError(f"none of these runs can be read, since another version may have written them: {keys}")
        sections = [trained.comparison(folder) for folder in comparisons]
        if runs:
            sections.append(trained.section("runs", runs))
        counts = {"run": len(runs), "comparison": len(comparisons)}
        lead = " and ".join(f"{count} {what}{'s' if count > 1 else ''}" for what, count in counts.items() if count)
        return Page(
            title="Runs of the lab",
            sections=sections,
            runs=sorted({run.parent for run in folders}),
            command=" ".join(["ademamix report --runs", *self.names]),
            lead=f"{lead}, with curves and settings.",
        )

    def files(self) -> list[Path]:
        """Return the files of the runs that grow, and the numbers of the comparisons."""
        runs, comparisons = self._found()
        growing = [run / name for run in runs for name in (METRICS, RESULT)]
        return growing + [folder / trained.COMPARISON for folder in comparisons]

    def _found(self) -> tuple[list[Path], list[Path]]:
        """Return the folders of the runs and of the comparisons that are meant."""
        everyone = folders_of_runs(self.folder)
        if not everyone and not self.names:
            raise RunError(f"there is nothing to show in {str(self.folder)!r}: no results, and no runs")
        found = [_named(name, everyone) for name in self.names] or everyone
        comparisons = [path for path in found if (path / trained.COMPARISON).exists()]
        return [path for path in found if path not in comparisons], comparisons


def folders_of_runs(folder: Path) -> list[Path]:
    """Return the folders of the runs that are kept among results."""
    return sorted(path.parent for path in (folder / "runs").glob("*/config.json"))


def _named(name: str, everyone: Sequence[Path]) -> Path:
    """Return the run or the comparison of a name."""
    path = Path(name)
    if (path / "config.json").exists() or (path / trained.COMPARISON).exists():
        return path
    fitting = [run for run in everyone if run.name.startswith(name)]
    if len(fitting) != 1:
        how_many = f"{len(fitting)} runs have keys that begin" if fitting else "no run has a key that begins"
        raise RunError(f"{how_many} with {name!r}, and no folder of this name has a run: see `ademamix runs`")
    return fitting[0]
