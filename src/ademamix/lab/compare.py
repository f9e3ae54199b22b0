"""The same model, trained with several optimizers on the same batches: who ends lower, and how much sooner."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ademamix.hyperparameters import BETAS
from ademamix.lab import figures
from ademamix.lab.config import ConfigError, Cosine, Optimizer, Run, Text
from ademamix.lab.presets import PRESETS
from ademamix.lab.record import Result, RunFolder
from ademamix.schedules import PAPER_BETA3, beta3_for_horizon

DEFAULT = Run(
    model=PRESETS["gpt-tiny"],
    data=Text(kind="text"),
    optimizer=Optimizer(name="adamw", lr=8e-3, settings={"weight_decay": 0.1}),
    schedule=Cosine(kind="cosine", warmup=200),
    steps=10_000,
    batch=8,
    validate_every=200,
)
OPTIMIZERS = {
    "adamw": DEFAULT.optimizer,
    "ademamix": Optimizer(name="ademamix", lr=4e-3, settings={"weight_decay": 0.1, "alpha": 8.0}),
}
"""What is compared unless the user says otherwise."""


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

    def first_step_at(self, loss: float) -> int | None:
        """Return the first validation at which the mean loss is as low as `loss`; None of one that is not a number."""
        if not math.isfinite(loss):
            return None
        return next((step for step, value in self.curve.items() if value <= loss), None)


def plan(base: Run, optimizers: Iterable[Optimizer], seeds: Iterable[int]) -> dict[str, dict[int, Run]]:
    """Return the runs by the optimizer's name and the seed; optimizers of the same name are told apart by settings.

    >>> runs = plan(DEFAULT, [DEFAULT.optimizer, Optimizer(name="ademamix", lr=2e-3)], seeds=[1, 2])
    >>> {name: list(of_seed) for name, of_seed in runs.items()}
    {'AdamW': [1, 2], 'AdEMAMix': [1, 2]}
    """
    optimizers, seeds = list(optimizers), list(seeds)
    for optimizer in optimizers:
        if optimizers.count(optimizer) > 1:
            raise ConfigError(f"{optimizer.described} is named twice: give optimizers that differ")
    names = [_spelled(optimizer.name) for optimizer in optimizers]
    return {
        name if names.count(name) == 1 else optimizer.described: {
            seed: base.model_copy(update={"optimizer": optimizer, "seed": seed}) for seed in seeds
        }
        for name, optimizer in zip(names, optimizers, strict=True)
    }


def labelled(runs: Mapping[str, Mapping[int, Run]]) -> dict[str, Run]:
    """Return the runs under the names that progress is shown by, the seeds in turn."""
    several = any(len(of_seed) > 1 for of_seed in runs.values())
    pairs = [(seed, name, run) for name, of_seed in runs.items() for seed, run in of_seed.items()]
    return {f"{name}, seed {seed}" if several else name: run for seed, name, run in sorted(pairs, key=lambda p: p[0])}


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


def table(base: Run, arms: Sequence[Arm]) -> str:
    """Lay out what came of the comparison; the first arm is what the others are measured by."""
    first = arms[0]
    seeds = len(first.results)
    rows = [
        ["", *(arm.name for arm in arms)],
        [f"validation loss after {base.steps:,} steps", *(_loss(arm) for arm in arms)],
    ]
    if seeds > 1:
        wins = [sum(a < b for a, b in zip(arm.losses, first.losses, strict=True)) for arm in arms[1:]]
        rows.append([f"  lower than {first.name}, of {seeds} seeds", "", *map(str, wins)])
    rows += [
        [f"step at which {first.name}'s last loss is reached", *(_reached(arm, first, base) for arm in arms)],
        ["time of a step, ms", *(f"{1e3 * arm.seconds_per_step:.1f}" for arm in arms)],
        ["optimizer state, bytes a parameter", *(_bytes(arm.results[0]) for arm in arms)],
        ["learning rate", *(f"{arm.optimizer.lr:g}" for arm in arms)],
        ["settings", *(_settings(arm.optimizer) for arm in arms)],
    ]
    return "\n".join(_aligned(rows))


def conclusion(base: Run, arms: Sequence[Arm]) -> str:
    """Say the result in a sentence for each arm but the first."""
    first, sentences = arms[0], []
    if not math.isfinite(first.loss):
        return f"{first.name} diverged: there is nothing to measure the others by."
    for arm in arms[1:]:
        gap = first.loss - arm.loss
        if math.isnan(gap) or gap <= 0:
            sentences.append(f"{arm.name} did not end below {first.name} ({_loss(arm)} against {_loss(first)}).")
            continue
        step = arm.first_step_at(first.loss)
        saved = "" if step is None else f", and was as low at step {step:,}: {1 - step / base.steps:.0%} fewer steps"
        sentences.append(f"{arm.name} ended {gap:.4f} below {first.name}{saved}.")
    return "\n".join(sentences)


def reasons(base: Run, arms: Sequence[Arm], *, tuned: bool) -> str:
    """Say why the settings are what they are; `tuned`: the learning rates were found for this comparison."""
    lines = []
    beta3 = beta3_for_horizon(base.steps, BETAS[0])
    if any(_follows_horizon(arm.optimizer) for arm in arms) and BETAS[0] < beta3 < PAPER_BETA3:
        lines.append(
            f"AdEMAMix's beta3 = {beta3:.5g} is the rule for {base.steps:,} steps, 1 - 1/(0.04 steps): a memory of "
            f"{1 / (1 - beta3):,.0f} steps. alpha and beta3 rise over the whole run, as in the paper."
        )
    if tuned:
        lines.append("The learning rates were the best of the sweep above.")
    elif base == DEFAULT and all(arm.optimizer == OPTIMIZERS.get(arm.optimizer.name) for arm in arms):
        lines.append(
            "The learning rates were the best of a sweep at this length (benchmarks/results/compare_sweep.json)."
        )
    else:
        lines.append("The learning rates were not tuned for this comparison: --tune finds each optimizer's own best.")
    return "\n".join(lines)


def draw(arms: Sequence[Arm], base: Run, folder: Path) -> list[Path]:
    """Draw the validation losses, and return the files."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    first = arms[0]
    for number, (arm, look) in enumerate(zip(arms, looks(arms), strict=True)):
        figures.draw_line(axes, list(arm.curve), list(arm.curve.values()), look, f"{arm.name}: {arm.loss:.4f}")
        step = arm.first_step_at(first.loss)
        if arm is not first and step is not None and step < base.steps:
            axes.annotate(
                f"as low as {first.name} at its end:\nstep {step:,}, {1 - step / base.steps:.0%} fewer",
                (step, first.loss),
                xytext=(0.03, 0.06 + 0.12 * number),
                textcoords="axes fraction",
                arrowprops={"arrowstyle": "->"},
            )
    if math.isfinite(first.loss):
        axes.axhline(first.loss, color="0.6", linewidth=0.8)
    losses = [loss for arm in arms for loss in arm.curve.values() if math.isfinite(loss)]
    if losses:
        axes.set_ylim(min(losses) - 0.03, min(losses) + 0.6)
    axes.set_xlabel("step")
    axes.set_ylabel("validation loss")
    seeds = len(first.results)
    figures.finish(axes, "Same model, same batches" + (f", mean of {seeds} seeds" if seeds > 1 else ""), "upper right")
    return figures.save(figure, folder, "compare")


def looks(arms: Sequence[Arm]) -> list[figures.Look]:
    """Return how each arm is drawn: AdamW and AdEMAMix as in the other figures."""
    left = {"adamw": iter(figures.ADAM), "ademamix": iter(figures.ADEMAMIX)}
    others = iter(figures.SERIES)
    return [next(left.get(arm.optimizer.name, others), figures.SERIES[0]) for arm in arms]


def _spelled(name: str) -> str:
    return {"adamw": "AdamW", "ademamix": "AdEMAMix"}.get(name, name)


def _loss(arm: Arm) -> str:
    return f"{arm.loss:.4f}" if math.isfinite(arm.loss) else "diverged"


def _reached(arm: Arm, first: Arm, base: Run) -> str:
    if arm is first:
        return f"{base.steps:,}" if math.isfinite(first.loss) else "diverged"
    step = arm.first_step_at(first.loss)
    return "not reached" if step is None else f"{step:,} ({1 - step / base.steps:.0%} fewer)"


def _bytes(result: Result) -> str:
    return f"{result.state_bytes / result.parameters:.2f}"


def _follows_horizon(optimizer: Optimizer) -> bool:
    """Whether beta3 and the warm-ups are those that AdEMAMix chooses for the length of the run."""
    chosen = {"betas", "beta3", "total_steps", "alpha_warmup", "beta3_warmup", "beta3_start"}
    return optimizer.name == "ademamix" and not chosen & set(optimizer.settings)


def _settings(optimizer: Optimizer) -> str:
    return " ".join(f"{name}={value}" for name, value in optimizer.settings.items()) or "defaults"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
