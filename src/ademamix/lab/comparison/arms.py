"""The same model, trained with several optimizers on the same batches: which ends lower, and how much sooner.

Arms may differ in length. Each run then has a learning-rate schedule of its own length, with the warm-up of the base.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ademamix.lab.comparison.defaults import STARTING_POINTS
from ademamix.lab.config import ConfigError, Optimizer, Run
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.runs.record import Result, RunFolder

SMOOTHED_OVER = 10
"""Curves are smoothed over a tenth of the run: one lucky validation must not decide."""
STANDARD_ERRORS = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02}
"""How far from zero a mean over so many seeds has to be: quantiles of Student's t, 5% in each direction. A spread that
few seeds show is itself uncertain: over three of them, two standard errors are exceeded by chance in 9% of the cases on
either side. From seven seeds on it is two, a little more than the quantile."""


@dataclass(frozen=True)
class Trained:
    """A config, and how a run of it for each seed ended."""

    name: str
    run: Run
    """The run of the first seed."""
    results: Sequence[Result]

    @property
    def losses(self) -> list[float]:
        """The last validation loss of each seed; infinite where the run diverged."""
        return [math.inf if result.diverged else result.validation_loss for result in self.results]

    @property
    def loss(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.losses)


@dataclass(frozen=True)
class Arm(Trained):
    """An optimizer of the comparison, and its runs, one for each seed."""

    curves: Sequence[Mapping[int, float]]
    """Validation loss by step, for each seed."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, as the config of its runs states it."""
        return self.run.optimizer

    @property
    def steps(self) -> int:
        """The length of its runs."""
        return self.run.steps

    @property
    def curve(self) -> dict[int, float]:
        """The mean over the seeds of the validation loss, by step."""
        return mean_curve(self.curves)

    @property
    def seconds_per_step(self) -> float:
        """The mean time of a step, of the fastest seed: the others may have shared the machine with more runs."""
        return min(result.seconds_per_step for result in self.results)


def mean_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean of several curves, at the steps that all have.

    >>> mean_curve([{10: 2.0, 20: 1.0}, {10: 4.0}])
    {10: 3.0}
    """
    steps = set.intersection(*(set(curve) for curve in curves))
    return {step: statistics.fmean(curve[step] for curve in curves) for step in sorted(steps)}


@dataclass(frozen=True)
class Difference:
    """How much lower or higher than another arm an arm ended, seed by seed."""

    by_seed: Sequence[float]

    @property
    def mean(self) -> float:
        """The mean over the seeds; negative: lower than the other arm."""
        return statistics.fmean(self.by_seed)

    @property
    def spread(self) -> float | None:
        """The standard deviation between seeds; None for a single one."""
        return statistics.stdev(self.by_seed) if len(self.by_seed) > 1 else None

    @property
    def lower(self) -> int:
        """On how many seeds the arm ended lower."""
        return sum(difference < 0 for difference in self.by_seed)

    @property
    def uncertainty(self) -> float:
        """How far the mean may be off by chance: its standard error times that of `STANDARD_ERRORS`.

        >>> round(Difference([-0.05, -0.04, -0.06]).uncertainty, 4), Difference([-0.05]).uncertainty
        (0.0169, inf)
        """
        if self.spread is None:
            return math.inf
        seeds = len(self.by_seed)
        return STANDARD_ERRORS.get(seeds, 2.0) * self.spread / math.sqrt(seeds)

    @property
    def may_be_chance(self) -> bool:
        """Whether the mean is no farther from zero than its uncertainty; always for a single seed.

        >>> Difference([-0.05, -0.04, -0.06]).may_be_chance, Difference([-0.082, 0.006, -0.019]).may_be_chance
        (False, True)
        """
        return abs(self.mean) <= self.uncertainty


@dataclass(frozen=True)
class Comparison:
    """Arms that were trained alike; the first is the one that the others are measured by."""

    base: Run
    arms: Sequence[Arm]

    @property
    def first(self) -> Arm:
        """The arm that the others are measured by."""
        return self.arms[0]

    @property
    def seeds(self) -> int:
        """How many runs each arm has."""
        return len(self.first.results)

    @property
    def lengths_differ(self) -> bool:
        """Whether some arms are longer than others."""
        return len({arm.steps for arm in self.arms}) > 1

    @property
    def longer_baselines(self) -> list[Arm]:
        """Longer arms of the first arm's optimizer, the longest first: they show what more steps alone would gain."""
        longer = [arm for arm in self.arms if arm.optimizer.name == self.first.optimizer.name]
        return sorted((arm for arm in longer if arm.steps > self.first.steps), key=lambda arm: -arm.steps)

    @property
    def contenders(self) -> list[Arm]:
        """The arms that are neither the first nor a longer run of its optimizer."""
        baselines = {arm.name for arm in (self.first, *self.longer_baselines)}
        return [arm for arm in self.arms if arm.name not in baselines]

    def measured_by(self, arm: Arm) -> list[Arm]:
        """Return the arms that `arm` is measured by, the hardest first: a contender also by the longest baseline."""
        if arm.name == self.first.name:
            return []
        longest = self.longer_baselines[:1] if arm in self.contenders else []
        return [*longest, self.first]

    def smoothed(self, arm: Arm) -> dict[int, float]:
        """Return the mean of each validation loss and those before it, over a tenth of the run."""
        steps, losses = list(arm.curve), list(arm.curve.values())
        window = max(1, arm.steps // self.base.validate_every // SMOOTHED_OVER)
        return {
            steps[last]: statistics.fmean(losses[last + 1 - window : last + 1])
            for last in range(window - 1, len(losses))
        }

    @property
    def level(self) -> float | None:
        """Where the first arm's smoothed curve ends; None if it diverged."""
        *_, end = self.smoothed(self.first).values() or [math.nan]
        return end if math.isfinite(end + self.first.loss) else None

    def step_at_level(self, arm: Arm) -> int | None:
        """Return the first step at which the smoothed curve is at :attr:`level`, which may be early for the first arm.

        None if it never is, and for an arm of another length than the first: its learning rate falls at other steps, so
        where the curves cross says how the schedules differ.
        """
        level = self.level
        if level is None or arm.steps != self.first.steps:
            return None
        return next((step for step, loss in self.smoothed(arm).items() if loss <= level), None)

    def saved(self, arm: Arm) -> float | None:
        """Return the share of the first arm's steps that `arm` saves on the way to the same level, if it gets there."""
        ours, theirs = self.step_at_level(arm), self.step_at_level(self.first)
        return None if ours is None or theirs is None else 1 - ours / theirs


def difference(ours: Arm, theirs: Arm) -> Difference | None:
    """Return how much lower or higher one arm ended than the other, seed by seed; None if a run of either diverged."""
    by_seed = [our - their for our, their in zip(ours.losses, theirs.losses, strict=True)]
    return Difference(by_seed) if all(map(math.isfinite, by_seed)) else None


def arm_of(base: Run, optimizer: Optimizer, steps: int | None = None) -> Run:
    """Return `base` with another optimizer and, if it is stated, another length; all else stays, the warm-up included.

    >>> from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS
    >>> run = arm_of(DEFAULT, OPTIMIZERS["adamw"], steps=40_000)
    >>> run.steps, run.schedule == DEFAULT.schedule
    (40000, True)
    """
    return Run(**{**base.model_dump(), "optimizer": optimizer, "steps": steps or base.steps})


def plan(arms: Iterable[Run], seeds: Iterable[int]) -> dict[str, dict[int, Run]]:
    """Return the runs of each arm by its label and the seed; a label shows how the arm differs from the others.

    >>> from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS
    >>> optimizers = [OPTIMIZERS["adamw"], OPTIMIZERS["ademamix"], Optimizer(name="ademamix", lr=2e-3)]
    >>> runs = plan([arm_of(DEFAULT, optimizer) for optimizer in optimizers], seeds=[1, 2])
    >>> {label: list(of_seed) for label, of_seed in runs.items()}
    {'AdamW': [1, 2], 'AdEMAMix': [1, 2], 'AdEMAMix lr=0.002': [1, 2]}
    >>> list(plan([DEFAULT, arm_of(DEFAULT, OPTIMIZERS["adamw"], steps=40_000)], seeds=[1]))
    ['AdamW in 20,000 steps', 'AdamW in 40,000 steps']
    """
    arms, seeds = list(arms), list(seeds)
    for arm in arms:
        if arms.count(arm) > 1:
            raise ConfigError(f"{arm.optimizer.described} is named twice: give optimizers that differ")
    return {_label(arm, arms): {seed: arm.model_copy(update={"seed": seed}) for seed in seeds} for arm in arms}


def _label(arm: Run, arms: Sequence[Run]) -> str:
    """Name an arm: its optimizer, what sets it apart from namesakes as long, and its length if lengths differ.

    What the optimizer starts from anyway is shown only if two labels would otherwise be the same.
    """
    namesakes = [one for one in arms if (one.optimizer.name, one.steps) == (arm.optimizer.name, arm.steps)]
    stated = {id(one): _settings_apart(one, namesakes, but=STARTING_POINTS[one.optimizer.name]) for one in namesakes}
    told_apart = list(stated.values()).count(stated[id(arm)]) == 1
    shown = stated[id(arm)] if told_apart else _settings_apart(arm, namesakes)
    length = [f"in {arm.steps:,} steps"] if any(other.steps != arm.steps for other in arms) else []
    return " ".join([OPTIMIZERS[arm.optimizer.name].display, *shown, *length])


def _settings_apart(arm: Run, namesakes: Sequence[Run], but: Optimizer | None = None) -> list[str]:
    """Return the settings that a namesake does not share, but not those of another optimizer."""
    left_out = {} if but is None else _settings(but)
    return [
        f"{name}={value}".replace(" ", "")
        for name, value in _settings(arm.optimizer).items()
        if (name, value) not in left_out.items()
        and any(_settings(other.optimizer).get(name) != value for other in namesakes)
    ]


def _settings(optimizer: Optimizer) -> dict[str, Any]:
    return {"lr": optimizer.lr, **optimizer.settings}


def labelled(runs: Mapping[str, Mapping[int, Run]]) -> dict[str, Run]:
    """Return the runs by the labels under which their progress is shown, seed after seed."""
    pairs = [(seed, name) for name, of_seed in runs.items() for seed in of_seed]
    return {_run_label(runs, name, seed): runs[name][seed] for seed, name in sorted(pairs, key=lambda pair: pair[0])}


def _run_label(runs: Mapping[str, Mapping[int, Run]], name: str, seed: int) -> str:
    return f"{name}, seed {seed}" if any(len(of_seed) > 1 for of_seed in runs.values()) else name


def folder_name(runs: Mapping[str, Mapping[int, Run]]) -> str:
    """Return a name for the folder of a comparison: its model, data and length, and a hash of its runs.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> folder_name(plan([DEFAULT], seeds=[1]))[:-8]
    'gpt-stdlib-20000-steps-'
    """
    keys = [run.key for of_seed in runs.values() for run in of_seed.values()]
    run = next(run for of_seed in runs.values() for run in of_seed.values())
    source = re.sub(r"[^a-z0-9.]+", "-", Path(run.data.source).name.lower()).strip("-.")[:40]
    digest = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:8]
    return f"{run.model.kind}-{source or 'data'}-{run.steps}-steps-{digest}"


def read_arms(runs: Mapping[str, Mapping[int, Run]], results: Mapping[str, Result], root: Path) -> list[Arm]:
    """Return the arms with their curves; `results` are those of the runs that :func:`labelled` returned."""
    return [
        Arm(
            name,
            next(iter(of_seed.values())),
            [results[_run_label(runs, name, seed)] for seed in of_seed],
            [_curve(RunFolder(root, run)) for run in of_seed.values()],
        )
        for name, of_seed in runs.items()
    ]


def _curve(folder: RunFolder) -> dict[int, float]:
    return {row["step"]: row["validation_loss"] for row in folder.metrics() if "validation_loss" in row}
