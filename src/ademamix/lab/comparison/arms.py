"""The same model, trained with several optimizers on the same batches: which ends lower, and how much sooner."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ademamix.lab.config import ConfigError, Optimizer, Run
from ademamix.lab.runs.record import Result, RunFolder

SMOOTHED_OVER = 10
"""Curves are smoothed over a tenth of the run: one lucky validation must not decide."""


@dataclass(frozen=True)
class Arm:
    """An optimizer of the comparison, and its runs, one for each seed."""

    name: str
    optimizer: Optimizer
    results: Sequence[Result]
    curves: Sequence[Mapping[int, float]]
    """Validation loss by step, for each seed."""

    @property
    def losses(self) -> list[float]:
        """The last validation loss of each seed; infinite where the run diverged."""
        return [math.inf if result.diverged else result.validation_loss for result in self.results]

    @property
    def loss(self) -> float:
        """The mean over the seeds."""
        return statistics.fmean(self.losses)

    @property
    def curve(self) -> dict[int, float]:
        """The mean over the seeds of the validation loss, by step."""
        steps = set.intersection(*(set(curve) for curve in self.curves))
        return {step: statistics.fmean(curve[step] for curve in self.curves) for step in sorted(steps)}

    @property
    def seconds_per_step(self) -> float:
        """The mean time of a step; the fastest seed, for the others may have shared the machine with more."""
        return min(result.seconds_per_step for result in self.results)


@dataclass(frozen=True)
class Difference:
    """How much lower or higher than the first arm another one ended, seed by seed."""

    by_seed: Sequence[float]

    @property
    def mean(self) -> float:
        """The mean over the seeds; negative: lower than the first arm."""
        return statistics.fmean(self.by_seed)

    @property
    def spread(self) -> float | None:
        """The standard deviation between seeds; None of a single one."""
        return statistics.stdev(self.by_seed) if len(self.by_seed) > 1 else None

    @property
    def lower(self) -> int:
        """On how many seeds the arm ended lower."""
        return sum(difference < 0 for difference in self.by_seed)

    @property
    def may_be_chance(self) -> bool:
        """Whether the mean is within two of its standard errors of zero, or there is a single seed.

        >>> Difference([-0.05, -0.04, -0.06]).may_be_chance, Difference([-0.082, 0.006, -0.019]).may_be_chance
        (False, True)
        """
        return self.spread is None or abs(self.mean) <= 2 * self.spread / math.sqrt(len(self.by_seed))


@dataclass(frozen=True)
class Comparison:
    """Arms that were trained alike; the first is what the others are measured by."""

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

    def smoothed(self, arm: Arm) -> dict[int, float]:
        """Return the mean of each validation loss and those before it, over a tenth of the run."""
        steps, losses = list(arm.curve), list(arm.curve.values())
        window = max(1, self.base.steps // self.base.validate_every // SMOOTHED_OVER)
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
        """Return the first step at which the smoothed curve is at :attr:`level`; of the first arm it may be early."""
        level = self.level
        if level is None:
            return None
        return next((step for step, loss in self.smoothed(arm).items() if loss <= level), None)

    def saved(self, arm: Arm) -> float | None:
        """Return the share of steps that `arm` needs less than the first arm to the same level; None: not reached."""
        ours, theirs = self.step_at_level(arm), self.step_at_level(self.first)
        return None if ours is None or theirs is None else 1 - ours / theirs

    def difference(self, arm: Arm) -> Difference | None:
        """Return the differences to the first arm at the end; None if a run of either diverged."""
        return difference(arm, self.first)


def difference(ours: Arm, theirs: Arm) -> Difference | None:
    """Return how much lower or higher our arm ended than theirs, seed by seed; None if a run of either diverged."""
    by_seed = [our - their for our, their in zip(ours.losses, theirs.losses, strict=True)]
    return Difference(by_seed) if all(map(math.isfinite, by_seed)) else None


def plan(base: Run, optimizers: Iterable[Optimizer], seeds: Iterable[int]) -> dict[str, dict[int, Run]]:
    """Return the runs by the optimizer's name and the seed; optimizers of the same name are told apart by settings.

    >>> from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS
    >>> optimizers = [DEFAULT.optimizer, OPTIMIZERS["ademamix"], Optimizer(name="ademamix", lr=2e-3)]
    >>> runs = plan(DEFAULT, optimizers, seeds=[1, 2])
    >>> {name: list(of_seed) for name, of_seed in runs.items()}
    {'AdamW': [1, 2], 'AdEMAMix lr=0.004 weight_decay=0.1 alpha=8': [1, 2], 'AdEMAMix lr=0.002': [1, 2]}
    """
    optimizers, seeds = list(optimizers), list(seeds)
    for optimizer in optimizers:
        if optimizers.count(optimizer) > 1:
            raise ConfigError(f"{optimizer.described} is named twice: give optimizers that differ")
    return {
        _label(optimizer, [other for other in optimizers if other.name == optimizer.name]): {
            seed: base.model_copy(update={"optimizer": optimizer, "seed": seed}) for seed in seeds
        }
        for optimizer in optimizers
    }


def _label(optimizer: Optimizer, namesakes: Sequence[Optimizer]) -> str:
    """Name an optimizer, with the settings that not all of its namesakes have."""

    def settings(one: Optimizer) -> dict[str, Any]:
        return {"lr": one.lr, **one.settings}

    shown = [
        f"{name}={value}"
        for name, value in settings(optimizer).items()
        if any(settings(other).get(name) != value for other in namesakes)
    ]
    return " ".join([spelled(optimizer.name), *shown])


def spelled(name: str) -> str:
    """Return an optimizer's name as the papers write it.

    >>> spelled("ademamix")
    'AdEMAMix'
    """
    return {"adamw": "AdamW", "ademamix": "AdEMAMix"}.get(name, name)


def labelled(runs: Mapping[str, Mapping[int, Run]]) -> dict[str, Run]:
    """Return the runs under the names that progress is shown by, the seeds in turn."""
    several = any(len(of_seed) > 1 for of_seed in runs.values())
    pairs = [(seed, name, run) for name, of_seed in runs.items() for seed, run in of_seed.items()]
    return {f"{name}, seed {seed}" if several else name: run for seed, name, run in sorted(pairs, key=lambda p: p[0])}


def folder_name(runs: Mapping[str, Mapping[int, Run]]) -> str:
    """Return a name for what comes of a comparison: of what, and a hash of its runs.

    >>> from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS
    >>> folder_name(plan(DEFAULT, OPTIMIZERS.values(), seeds=[1]))[:-8]
    'gpt-stdlib-10000-steps-'
    """
    keys = [run.key for of_seed in runs.values() for run in of_seed.values()]
    run = next(run for of_seed in runs.values() for run in of_seed.values())
    source = re.sub(r"[^a-z0-9.]+", "-", Path(run.data.source).name.lower()).strip("-.")[:40]
    digest = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:8]
    return f"{run.model.kind}-{source or 'data'}-{run.steps}-steps-{digest}"


def read_arms(runs: Mapping[str, Mapping[int, Run]], root: Path) -> list[Arm]:
    """Read the records of finished runs."""
    return [_read_arm(name, list(of_seed.values()), root) for name, of_seed in runs.items()]


def _read_arm(name: str, runs: Sequence[Run], root: Path) -> Arm:
    results, curves = [], []
    for run in runs:
        folder = RunFolder(root, run)
        result = folder.result()
        assert result is not None, f"{name} is not finished"
        results.append(result)
        curves.append({row["step"]: row["validation_loss"] for row in folder.metrics() if "validation_loss" in row})
    return Arm(name, runs[0].optimizer, results, curves)
