"""What came of a comparison, in words: a table, a conclusion that claims no more than the seeds show, and reasons."""

from __future__ import annotations

import math

from ademamix.hyperparameters import BETAS
from ademamix.lab.comparison.arms import Arm, Comparison, Difference
from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS
from ademamix.lab.config import Optimizer
from ademamix.lab.report import tables
from ademamix.lab.runs.record import Result
from ademamix.schedules import PAPER_BETA3, beta3_for_horizon

ONE_SEED = (
    "This is one seed, and seeds differ: three seeds of one short comparison ended 0.082 and 0.019 lower and 0.006 "
    "higher. --seeds 1 2 3 shows how much they differ here."
)


def report(comparison: Comparison, *, tuned: bool, width: int) -> str:
    """Lay out what came of a comparison for a width; `tuned`: its settings were searched for it."""
    prose = (conclusion(comparison), reasons(comparison, tuned=tuned))
    return "\n\n".join([table(comparison, width), *(tables.wrapped(text, width) for text in prose)])


def table(comparison: Comparison, width: int) -> str:
    """Lay out the numbers."""
    first, others = comparison.first, comparison.arms[1:]
    rows = {f"validation loss after {comparison.base.steps:,} steps": [_loss(arm) for arm in comparison.arms]}
    if comparison.seeds > 1:
        differences = [comparison.difference(arm) for arm in others]
        rows[f"  difference to {first.name}, mean of {comparison.seeds} seeds"] = ["", *map(_signed, differences)]
        rows["  its standard deviation between seeds"] = ["", *map(_spread, differences)]
        rows[f"  lower than {first.name}, of {comparison.seeds} seeds"] = ["", *(_lower(arm, first) for arm in others)]
    rows |= {
        f"steps to {first.name}'s last loss, smoothed": [_reached(comparison, arm) for arm in comparison.arms],
        "time of a step, ms": [f"{1e3 * arm.seconds_per_step:.1f}" for arm in comparison.arms],
        "optimizer state, bytes per parameter": [_bytes(arm.results[0]) for arm in comparison.arms],
        "learning rate": [f"{arm.optimizer.lr:g}" for arm in comparison.arms],
        "settings": [_settings(arm.optimizer) for arm in comparison.arms],
    }
    columns = [(arm.name, [cells[number] for cells in rows.values()]) for number, arm in enumerate(comparison.arms)]
    return tables.laid_out(list(rows), columns, width)


def conclusion(comparison: Comparison) -> str:
    """Say the result in a line for each arm but the first, and how far seeds bear it out."""
    first = comparison.first
    if not math.isfinite(first.loss):
        return f"{first.name} diverged: there is nothing to measure the others by."
    lines = [_sentence(comparison, arm) for arm in comparison.arms[1:]]
    if comparison.seeds == 1 and lines:
        lines.append(ONE_SEED)
    return "\n".join(lines)


def _sentence(comparison: Comparison, arm: Arm) -> str:
    first, difference = comparison.first, comparison.difference(arm)
    if difference is None:
        return f"{arm.name} diverged, so it did not end below {first.name} ({_loss(first)})."
    sooner = _sooner(comparison, arm)
    if difference.mean < 0:
        ended = f"{arm.name} ended {-difference.mean:.4f} below {first.name}"
    else:
        ended = f"{arm.name} did not end below {first.name} ({_loss(arm)} against {_loss(first)})"
    return f"{ended}{seeds_in_words(difference)}.{sooner}{doubt(difference)}"


def seeds_in_words(difference: Difference) -> str:
    """Say how far the seeds agree, to follow the mean difference; nothing of one seed.

    >>> seeds_in_words(Difference([-0.05, -0.04, 0.01]))
    ' in the mean of 3 seeds, lower on 2 of them; their differences have a standard deviation of 0.0321'
    """
    if difference.spread is None:
        return ""
    return (
        f" in the mean of {len(difference.by_seed)} seeds, lower on {difference.lower} of them; their differences have "
        f"a standard deviation of {difference.spread:.4f}"
    )


def doubt(difference: Difference) -> str:
    """Say so where several seeds differ as much as the arms do."""
    if difference.spread is None or not difference.may_be_chance:
        return ""
    return " Seeds differ so much that this may be chance: more of them would tell."


def _sooner(comparison: Comparison, arm: Arm) -> str:
    """Say how much sooner an arm was as low as the first; nothing if it was not."""
    saved, step = comparison.saved(arm), comparison.step_at_level(arm)
    if saved is None or step is None or saved <= 0:
        return ""
    return (
        f" With both curves smoothed over a tenth of the run, it was as low as {comparison.first.name} at its end "
        f"after {step:,} steps: {saved:.0%} fewer."
    )


def reasons(comparison: Comparison, *, tuned: bool) -> str:
    """Say why the settings are what they are."""
    base, arms, lines = comparison.base, comparison.arms, []
    beta3 = beta3_for_horizon(base.steps, BETAS[0])
    if any(_follows_horizon(arm.optimizer) for arm in arms) and BETAS[0] < beta3 < PAPER_BETA3:
        lines.append(
            f"AdEMAMix's beta3 = {beta3:.5g} is the rule for {base.steps:,} steps, 1 - 1/(0.04 steps): a memory of "
            f"{1 / (1 - beta3):,.0f} steps. alpha and beta3 rise over the whole run, as in the paper."
        )
    if tuned:
        lines.append("The learning rates, and beta2 where it was not stated, were the best of the sweep above.")
    elif base == DEFAULT and all(arm.optimizer == OPTIMIZERS.get(arm.optimizer.name) for arm in arms):
        lines.append(
            "The learning rates were the best of a sweep at this length, with beta2 = 0.999 "
            "(benchmarks/results/compare_sweep.json)."
        )
    else:
        lines.append(
            "The learning rates were not tuned for this comparison: --tune finds each optimizer's own best, and its "
            "beta2."
        )
    return "\n".join(lines)


def _loss(arm: Arm) -> str:
    diverged = sum(not math.isfinite(loss) for loss in arm.losses)
    if diverged and len(arm.losses) > 1:
        return f"diverged on {diverged} of {len(arm.losses)} seeds"
    return "diverged" if diverged else f"{arm.loss:.4f}"


def _signed(difference: Difference | None) -> str:
    return "diverged" if difference is None else f"{difference.mean:+.4f}"


def _spread(difference: Difference | None) -> str:
    return "" if difference is None or difference.spread is None else f"{difference.spread:.4f}"


def _lower(arm: Arm, first: Arm) -> str:
    return str(sum(ours < theirs for ours, theirs in zip(arm.losses, first.losses, strict=True)))


def _reached(comparison: Comparison, arm: Arm) -> str:
    if comparison.level is None:
        return "diverged" if arm is comparison.first else ""
    step, saved = comparison.step_at_level(arm), comparison.saved(arm)
    if step is None or saved is None:
        return "not reached"
    return f"{step:,}" + (f" ({abs(saved):.0%} {'fewer' if saved > 0 else 'more'})" if saved else "")


def _bytes(result: Result) -> str:
    return f"{result.state_bytes / result.parameters:.2f}"


def _follows_horizon(optimizer: Optimizer) -> bool:
    """Whether beta3 and the warm-ups are those that AdEMAMix chooses for the length of the run."""
    chosen = {"beta3", "total_steps", "alpha_warmup", "beta3_warmup", "beta3_start"}
    betas = optimizer.settings.get("betas", BETAS)
    pair = isinstance(betas, list | tuple) and len(betas) == len(BETAS) and betas[0] == BETAS[0]
    return optimizer.name == "ademamix" and not chosen & set(optimizer.settings) and pair


def _settings(optimizer: Optimizer) -> str:
    return " ".join(f"{name}={value}".replace(" ", "") for name, value in optimizer.settings.items()) or "defaults"
