"""Carries out a recipe, panel by panel: searches, trains, decides, draws, and writes after each what there is.

In `OUT/RECIPE/SCALE/` there are then the figures, `report.md` for a reader, `verdict.json` with every claim and its
verdict, and `panels.json` with everything that the figures and tables show. Runs are kept, so that a recipe that was
stopped continues from there.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ademamix
from ademamix.lab import tuning
from ademamix.lab.config import Run
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.recipes import PAPER, RECIPES, Recipe, load
from ademamix.lab.report import figures
from ademamix.lab.reproduction.finished import FinishedPanel
from ademamix.lab.reproduction.outcome import Outcome, TrainedArm, stopped_early
from ademamix.lab.reproduction.panel import Panel, Plan
from ademamix.lab.reproduction.scale import SCALES, Scale
from ademamix.lab.runs.record import Result, RunError, RunFolder
from ademamix.output import tables
from ademamix.output.atomic import write_atomically

FIRST_RATES = 3
"""With how many learning rates a search begins, around that of the arm."""
DECIDING = (
    "ademamix.lab.recipes.formulas",
    "ademamix.lab.reproduction",
    "ademamix.lab.comparison",
    "ademamix.lab.tuning",
)
"""Packages and modules that all claims depend on, beside the runs that a recipe asks for."""


def reproduce(name: str, at: Scale, folder: Path, lab: Lab) -> Iterator[str]:
    """Carry out a recipe by name and yield its report in parts as they are found; the files go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return carry_out(Reproduction(name, RECIPES[name], at, folder), load(name), lab)


def carry_out(reproduction: Reproduction, plan: Plan, lab: Lab) -> Iterator[str]:
    """Carry out a plan, panel by panel."""
    panels, width = plan(reproduction.at), tables.width_of_output()
    panel: Panel | None = next(panels)
    while panel is not None:
        arms, searched, found = _search(panel, reproduction.at, lab)
        if found:
            yield found
        trained = panel.judged(_train(panel.title, arms, reproduction.at, lab))
        outcome = replace(trained, measured=reproduction.measured(panel, lab))
        warning = panel.warning or (reproduction.at.too_short(min(run.steps for run in arms.values())) if arms else "")
        reproduction.add(FinishedPanel.of(panel, outcome, warning, searched))
        reproduction.write(plan, complete=False)  # before the plan thinks about the next one
        yield reproduction.panels[-1].text(width)
        try:
            panel = panels.send(outcome)
        except StopIteration:
            panel = None
    files = reproduction.write(plan, complete=True)
    yield "\n".join(f"{kind}: {path}" for kind, path in files)


@dataclass
class Reproduction:
    """A recipe at a scale, its finished panels and its files."""

    name: str
    recipe: Recipe
    at: Scale
    folder: Path
    panels: list[FinishedPanel] = field(default_factory=list)
    pictures: dict[str, list[Path]] = field(default_factory=dict)
    """The files of each figure, by its name."""

    def add(self, panel: FinishedPanel) -> None:
        """Take a panel that is done, and draw the figure that it belongs to."""
        self.panels.append(panel)
        if panel.charts:
            self.pictures[panel.panel.figure] = self._draw(panel.panel.figure)

    def measured(self, panel: Panel, lab: Lab) -> Any:
        """Return what a panel has to measure, from the archive or from the folder if it is there, which keep it."""
        if panel.measure is None:
            return None
        usual = self.at.seeds == SCALES[self.at.name].seeds
        seeds = "" if usual else "-seeds-" + "-".join(map(str, self.at.seeds))
        places = [self.folder / f"measured{seeds}.json"]
        if lab.archive is not None:
            places.insert(0, lab.archive.folder / f"{self.name}-{self.at.name}{seeds}.json")
        kept = next((place for place in places if place.exists()), None)
        if kept is None and not lab.trains:
            raise RunError(f"{panel.title} was not measured, and nothing is to be: without --no-training it is")
        content = _json(panel.measure()) if kept is None else kept.read_text(encoding="utf-8")
        try:
            found = json.loads(content)
        except ValueError as error:
            raise RunError(f"{str(kept)!r} is damaged ({error}): restore it, or remove it") from None
        for place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, content)
        return found

    def write(self, plan: Plan, *, complete: bool) -> list[tuple[str, Path]]:
        """Write everything that is known; return the files by what they are."""
        about = {
            "recipe": self.name,
            "scale": self.at.name,
            "labels": list(self.recipe.labels),
            "source": self.recipe.source,
            "ademamix": ademamix.__version__,
            "plan": fingerprint(plan, self.at),
            "complete": complete,
        }
        contents = {
            "report.md": self._markdown(_prose(plan), complete=complete),
            "verdict.json": _json(about | {"panels": [panel.verdicts() for panel in self.panels]}),
            "panels.json": _json(about | {"panels": [panel.data() for panel in self.panels]}, indent=None),
        }
        for name, content in contents.items():
            write_atomically(self.folder / name, content)
        drawn = [("figure", path) for files in self.pictures.values() for path in files]
        return [*drawn, ("report", self.folder / "report.md"), ("verdicts", self.folder / "verdict.json")]

    def _draw(self, name: str) -> list[Path]:
        panels = [panel for panel in self.panels if panel.panel.figure == name]
        charts = [chart for panel in panels for chart in panel.charts]
        caption = "\n".join(dict.fromkeys(panel.panel.caption for panel in panels if panel.panel.caption))
        warning = next((panel.warning for panel in panels if panel.warning), "")
        figure, places = figures.side_by_side(len(charts), caption, warning)
        for axes, chart in zip(places, charts, strict=True):
            chart.draw(axes)
        return figures.save(figure, self.folder, f"{self.name}-{name}" if name else self.name)

    def _markdown(self, prose: str, *, complete: bool) -> str:
        recipe = self.recipe
        origin = f"the paper's {recipe.origin}" if recipe.source == PAPER else recipe.origin
        parts = [f"# {self.name}", f"{recipe.summary} ({origin}), at {self.at.name} scale.", prose]
        left = dict(self.pictures)
        for panel in self.panels:
            begun = left.pop(panel.panel.figure, [])
            parts.append(panel.markdown([path.name for path in begun if path.suffix == ".png"]))
        if not complete:
            parts.append("There are more panels to come: give the same command again to continue.")
        return "\n\n".join(parts) + "\n"


def searched(panel: Panel, at: Scale, run: tuning.Runner, root: Path) -> tuple[dict[str, Run], tuning.Search | None]:
    """Return the arms of a panel with the learning rates and beta2 that are best, and the search if there was one.

    `root` has the folders of the runs that `run` carries out.
    """

    def judged(tried: Mapping[str, Run]) -> Mapping[str, Result]:
        results = run(tried)
        return stopped_early(tried, results, root) if panel.early_stopping else results

    if not panel.tune or not at.rounds:
        return dict(panel.arms), None
    bases = {name: panel.arms[name] for name in panel.tune}
    search = tuning.search(bases, FIRST_RATES, judged, rounds=at.rounds)
    following = {
        name: tuning.with_choice(panel.arms[name], search.found[other].best) for name, other in panel.follow.items()
    }
    return {**panel.arms, **search.runs, **following}, search


def _search(panel: Panel, at: Scale, lab: Lab) -> tuple[dict[str, Run], dict[str, Any], str]:
    """Return the arms with the learning rates and beta2 that were found, the record of the search, and it in words."""
    title = f"{panel.title}: learning rates and beta2."
    arms, search = searched(panel, at, lambda tried: lab.carry_out(tried, title), lab.options.runs)
    if search is None:
        return arms, {}, ""
    loss = "lowest validation loss" if panel.early_stopping else "validation loss"
    return arms, search.records(), search.report(tables.width_of_output(), f"{panel.title}: {loss}")


def of_all_seeds(arms: Mapping[str, Run], seeds: Sequence[int]) -> dict[str, Run]:
    """Return the runs of arms with each seed, by what to call them; arms that are the same run are one.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> list(of_all_seeds({"AdamW": DEFAULT, "again": DEFAULT}, seeds=[1, 2]))
    ['AdamW, seed 1', 'AdamW, seed 2']
    """
    labels: dict[str, str] = {}
    runs: dict[str, Run] = {}
    for seed in seeds:
        for name, arm in arms.items():
            run = arm.model_copy(update={"seed": seed})
            runs[labels.setdefault(run.key, f"{name}, seed {seed}" if len(seeds) > 1 else name)] = run
    return runs


def _train(title: str, arms: Mapping[str, Run], at: Scale, lab: Lab) -> Outcome:
    """Carry out the runs of all seeds."""
    if not arms:
        return Outcome({}, at.seeds)
    runs = of_all_seeds(arms, at.seeds)
    results = lab.carry_out(runs, f"{title}: training.")
    by_key = {runs[label].key: result for label, result in results.items()}
    trained = {}
    for name, arm in arms.items():
        folders = [RunFolder(lab.options.runs, arm.model_copy(update={"seed": seed})) for seed in at.seeds]
        trained[name] = TrainedArm(name, arm, [by_key[folder.config.key] for folder in folders], folders)
    return Outcome(trained, at.seeds)


@functools.cache
def fingerprint(plan: Plan, at: Scale) -> str:
    """Return a hash of what decides the claims of a plan: the runs that it asks for, and the sources behind them."""
    runs = [[at.name, at.rounds, *at.seeds], *(_asked_for(panel, at) for panel in _panels_ahead(plan, at))]
    digest = hashlib.sha256(json.dumps(runs).encode())
    for path in sources(plan):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def sources(plan: Plan) -> list[Path]:
    """Return the files that decide claims: of the recipe and of those that it imports, and all of `DECIDING`."""
    modules = [plan.__module__]
    for name in modules:  # which grows
        nodes = ast.walk(ast.parse(_file(name).read_text(encoding="utf-8")))
        named = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        imported = sorted(each for each in named if each.startswith("ademamix.lab.recipes."))
        modules += [each for each in imported if each not in modules and not each.startswith(DECIDING)]
    files = [*map(_file, modules), *map(_file, DECIDING)]
    return [
        part for file in files for part in (sorted(file.parent.glob("*.py")) if file.stem == "__init__" else [file])
    ]


def _file(module: str) -> Path:
    return Path(importlib.import_module(module).__file__ or "")


def _asked_for(panel: Panel, at: Scale) -> list[Any]:
    keys = sorted(run.key for run in of_all_seeds(panel.arms, at.seeds).values())
    return [keys, sorted(panel.tune), sorted(panel.follow.items()), panel.early_stopping]


def _panels_ahead(plan: Plan, at: Scale) -> Iterator[Panel]:
    """Yield the panels of a plan up to one that waits for the outcome of another."""
    with contextlib.suppress(AttributeError):  # of None, which it gets in place of an outcome
        yield from plan(at)


def _prose(plan: Plan) -> str:
    """Return what a recipe says of itself after its first line."""
    said = inspect.getdoc(sys.modules[plan.__module__]) or ""
    return said.partition("\n")[2].strip()


def _json(content: Any, indent: int | None = 1) -> str:
    return json.dumps(content, indent=indent, allow_nan=False) + "\n"
