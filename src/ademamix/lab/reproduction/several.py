"""Several recipes, or all: their runs in one go, each trained once, then each recipe, and what holds in one table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from ademamix.lab.config import Run
from ademamix.lab.data import DataError
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.recipes import ScaleName, load
from ademamix.lab.report import page
from ademamix.lab.reproduction.claims import Verdict
from ademamix.lab.reproduction.engine import fingerprint, of_all_seeds, reproduce
from ademamix.lab.reproduction.scale import Scale
from ademamix.lab.runs.record import RunError
from ademamix.output import tables

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def folder_of(name: str, scale: ScaleName, out: Path) -> Path:
    """Return where the results of a recipe go."""
    return out / name / scale


def is_up_to_date(name: str, at: Scale, out: Path) -> bool:
    """Tell whether a recipe was carried out to its end, with the runs and the claims that it has now."""
    found = verdict_of(name, at.name, out)
    return bool(found.get("complete")) and found.get("plan") == fingerprint(load(name), at)


def verdict_of(name: str, scale: ScaleName, out: Path) -> Mapping[str, Any]:
    """Return what was found of a recipe, or nothing if that is not there or cannot be read."""
    try:
        found = json.loads((folder_of(name, scale, out) / "verdict.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def runs_to_share(names: Sequence[str], at: Scale) -> dict[str, Run]:
    """Return the runs of recipes that no search has to come before, each once, by what to call them."""
    runs: dict[str, tuple[str, Run]] = {}
    for name in names:
        for panel in load(name)(at):
            if not panel.tune:
                for label, run in of_all_seeds(panel.arms, at.seeds).items():
                    runs.setdefault(run.key, (f"{name}: {panel.title}: {label}", run))
    return dict(runs.values())


@dataclass
class Summary:
    """What came of several recipes."""

    before: Mapping[str, Mapping[str, Any]]
    """The verdicts of each before, if there were any."""
    found: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """The recipes that did not come to an end, and why."""

    def text(self, width: int) -> str:
        """Count the verdicts of each recipe, and say what has changed and what is missing."""
        counts = {name: _counts(found) for name, found in self.found.items()}
        totals = {verdict: sum(of_recipe[verdict] for of_recipe in counts.values()) for verdict in VERDICTS}
        rows = [[name, *(str(of_recipe[verdict] or "") for verdict in VERDICTS)] for name, of_recipe in counts.items()]
        rows.append(["all", *(str(totals[verdict]) for verdict in VERDICTS)])
        title = f"{sum(totals.values())} claims of {len(counts)} recipe{'s' if len(counts) > 1 else ''}"
        title += f", and {ours} of ours" if (ours := sum(map(_ours, self.found.values()))) else ""
        lines = [title, tables.in_rows(["", *VERDICTS], rows, width)]
        lines += [tables.wrapped(change, width, indent="  ") for change in self._changes()]
        lines += [tables.wrapped(f"{name} did not come to its end: {why}", width) for name, why in self.failed.items()]
        return "\n".join(lines)

    def _changes(self) -> Iterator[str]:
        for name, found in self.found.items():
            earlier = _by_claim(self.before[name])
            for claim, verdict in _by_claim(found).items():
                if claim in earlier and earlier[claim] != verdict:
                    yield f"Changed, {name}: {claim[1]}: {earlier[claim]} before, now {verdict}."


def reproduce_several(names: Sequence[str], at: Scale, out: Path, lab: Lab) -> Iterator[str]:
    """Carry out recipes, and yield their reports as they are done; one that fails does not stop the others.

    Before the last part, which counts the verdicts, the page of all results at that scale is written. If a recipe
    failed, a :class:`RunError` that names all of these ends it.
    """
    summary = Summary(before={name: verdict_of(name, at.name, out) for name in names})
    if lab.trains and (runs := runs_to_share(names, at)):
        lab.carry_out(runs, f"Runs of {len(names)} recipes.", keep_going=True)
    for name in names:
        yield f"{name}\n{'=' * len(name)}"
        try:
            yield from reproduce(name, at, folder_of(name, at.name, out), lab)
            summary.found[name] = verdict_of(name, at.name, out)
        except (RunError, DataError) as error:
            summary.failed[name] = str(error)
        except ModuleNotFoundError as error:
            summary.failed[name] = f"it needs the package {error.name}, which is not installed"
    if summary.found:
        page.write(out, at.name, out / "report.html")
        yield f"page: {out / 'report.html'}"
    yield summary.text(tables.width_of_output())
    if summary.failed:
        raise RunError(f"{len(summary.failed)} of {len(names)} recipes did not come to their end, see above")


def _by_claim(found: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    return {
        (panel["title"], claim["claim"]): claim["verdict"]
        for panel in found.get("panels", [])
        for claim in panel["claims"]
    }


def _counts(found: Mapping[str, Any]) -> dict[Verdict, int]:
    verdicts = [claim["verdict"] for claim in _claims(found) if not claim["ours"]]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def _ours(found: Mapping[str, Any]) -> int:
    return sum(claim["ours"] for claim in _claims(found))


def _claims(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (claim for panel in found.get("panels", []) for claim in panel["claims"])
