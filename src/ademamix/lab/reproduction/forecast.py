"""What recipes will take: how many runs, how many are shared or kept, and how long, from timed probes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ademamix.lab import tuning
from ademamix.lab.config import Run
from ademamix.lab.execution.display import clock
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.execution.timing import seconds_of, seconds_per_step
from ademamix.lab.recipes import load
from ademamix.lab.reproduction.engine import of_all_seeds, searched
from ademamix.lab.reproduction.panel import Panel
from ademamix.lab.reproduction.scale import Scale
from ademamix.lab.runs.beginnings import Beginnings, Plan
from ademamix.lab.runs.record import Result


@dataclass(frozen=True)
class Forecast:
    """The runs that recipes need."""

    asked: int
    """How many runs they name, with their seeds."""
    needed: int
    """How many different ones those are."""
    missing: Mapping[str, Run]
    """Those to be trained, by what they are called."""
    searching: Sequence[Run]
    """About as many runs as the searches for learning rates still take."""

    def seconds(self, lab: Lab) -> float:
        """Return about how long the training will take, from short runs of each kind."""
        beginnings = Plan(self.missing, Beginnings(lab.options.beginnings))
        work = [(run, run.steps - beginnings.shared_steps(name)) for name, run in self.missing.items()]
        work += [(run, run.steps) for run in self.searching]
        pace = {kind: seconds_per_step(run, lab) for kind, run in {_kind(run): run for run, _ in work}.items()}
        return sum(seconds_of(run, pace[_kind(run)], steps) for run, steps in work) / lab.at_once

    def words(self, seconds: float | None = None) -> str:
        """Say it in a few sentences."""
        kept = self.needed - len(self.missing)
        parts = [
            f"{self.asked} runs are asked for: {self.asked - self.needed} are the same as others, {kept} are kept,"
        ]
        parts.append(f"{len(self.missing)} are to be trained.")
        if self.searching:
            parts.append(f"Searches for learning rates take about {len(self.searching)} more.")
        if seconds is not None:
            parts.append(f"All that takes about {clock(seconds)}, by short runs of each kind.")
        return " ".join(parts)


def forecast(names: Iterable[str], at: Scale, lab: Lab) -> Forecast:
    """Look ahead at recipes by name; nothing is trained."""
    asked: list[Run] = []
    needed: dict[str, tuple[str, Run]] = {}
    searching: list[Run] = []
    for name in names:
        for panel in load(name)(at):
            arms, left = _after_search(panel, at, lab)
            searching += left
            asked += [run for run in arms.values() for _ in at.seeds]
            for label, run in of_all_seeds(arms, at.seeds).items():
                needed.setdefault(run.key, (f"{name}: {panel.title}: {label}", run))
    kept = lab.kept({key: run for key, (_, run) in needed.items()})
    missing = {label: run for key, (label, run) in needed.items() if key not in kept}
    return Forecast(len(asked), len(needed), missing, searching)


class _NotTrained(Exception):
    """A search has come to runs that are not finished."""


def _after_search(panel: Panel, at: Scale, lab: Lab) -> tuple[Mapping[str, Run], list[Run]]:
    """Return the arms of a panel as far as their searches are done, and about the runs that these still take."""
    arms = dict(panel.arms)
    left: list[Run] = []
    for name in panel.tune:
        found, missing = _searched_alone(panel, name, at, lab)
        arms |= found
        left += missing
    return arms, left


def _searched_alone(panel: Panel, name: str, at: Scale, lab: Lab) -> tuple[Mapping[str, Run], list[Run]]:
    """Return an arm and those that follow it as its search has left them, and about the runs that it still takes."""
    following = {follower: other for follower, other in panel.follow.items() if other == name}
    done: set[str] = set()
    missing: list[Run] = []

    def from_kept(runs: Mapping[str, Run]) -> dict[str, Result]:
        kept = lab.kept(runs)
        done.update(runs[label].key for label in kept)
        missing.extend(run for label, run in runs.items() if label not in kept)
        if missing:
            raise _NotTrained
        return kept

    try:
        arms, _ = searched(replace(panel, tune=[name], follow=following), at, from_kept, lab.options.runs)
    except _NotTrained:
        usual = round(tuning.usual_runs(panel.arms[name].optimizer))
        more = max(0, usual - len(done) - len(missing))
        return {}, [*missing, *more * [panel.arms[name]]]
    return {label: arms[label] for label in (name, *following)}, []


def _kind(run: Run) -> tuple[Any, ...]:
    """Return what the time of a step depends on."""
    return run.model, run.batch, run.accumulate, run.parameters, run.autocast, run.optimizer.name
