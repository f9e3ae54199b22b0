"""The outcome of a comparison in words: a result that claims no more than the seeds show, a table, and reasons."""

from __future__ import annotations

import math

from ademamix.hyperparameters import BETAS
from ademamix.lab.comparison.arms import Arm, Comparison, Difference, difference
from ademamix.lab.comparison.defaults import DEFAULT, OPTIMIZERS
from ademamix.lab.config import Optimizer
from ademamix.lab.runs.record import Result
from ademamix.output import tables
from ademamix.schedules import PAPER_BETA3, beta3_for_horizon

ONE_SEED = (
    "This is one seed, and seeds differ: three seeds of one short comparison ended 0.082 and 0.019 lower and 0.006 "
    "higher. --seeds 1 2 3 shows how much they differ here."
)


def report(comparison: Comparison, *, tuned: bool, width: int) -> str:
    """Lay out the outcome of a comparison for a width, the result first; `tuned`: its settings come from a search."""
    prose = "\n".join(filter(None, [details(comparison), reasons(comparison, tuned=tuned)]))
    return "\n\n".join(
        [tables.wrapped(result(comparison), width), table(comparison, width), tables.wrapped(prose, width)]
    )


def table(comparison: Comparison, width: int) -> str:
    """Lay out the numbers, and under them the settings that all arms share."""
    first, arms = comparison.first, comparison.arms
    after = "at the end" if comparison.lengths_differ else f"after {first.steps:,} steps"
    rows = {f"validation loss {after}": [_loss(arm) for arm in arms]}
    if comparison.seeds > 1:
        for reference in (*comparison.longer_baselines[:1], first):
            rows[f"difference to {reference.name}, ± SD"] = [_difference(comparison, arm, reference) for arm in arms]
    rows |= {
        f"steps to the loss of {first.name}, smoothed": [_reached(comparison, arm) for arm in arms],
        "ms per step": [f"{1e3 * arm.seconds_per_step:.1f}" for arm in arms],
        "state, bytes per parameter": [_bytes(arm.results[0]) for arm in arms],
    }
    settings = [_settings(arm.optimizer) for arm in arms]
    shared = [setting for setting in settings[0] if all(setting in own for own in settings)]
    rows["settings"] = [
        " ".join(setting for setting in own if setting not in shared and setting not in arm.name.split())
        for arm, own in zip(arms, settings, strict=True)
    ]
    shown = {label: cells for label, cells in rows.items() if any(cells)}
    columns = [(arm.name, [cells[number] for cells in shown.values()]) for number, arm in enumerate(arms)]
    laid_out = tables.laid_out(list(shown), columns, width)
    note = tables.wrapped(f"all with {', '.join(shared)}", width)
    return f"{laid_out}\n{note}" if shared else laid_out


def _difference(comparison: Comparison, arm: Arm, reference: Arm) -> str:
    """Return how an arm did against `reference`; nothing if it is not measured against it."""
    if reference not in comparison.measured_by(arm):
        return ""
    found = difference(arm, reference)
    if found is None:
        return "diverged"
    return f"{found.mean:+.4f} ± {found.spread:.4f} ({found.lower} of {comparison.seeds} lower)"


def result(comparison: Comparison) -> str:
    """Say the result in a line per contender: against the longest run of the first arm's optimizer."""
    arms = comparison.contenders or comparison.longer_baselines
    lines = [_sentence(comparison, arm, comparison.measured_by(arm)[0]) for arm in arms]
    return "\n".join(lines) or f"{comparison.first.name} ended at {_loss(comparison.first)}."


def details(comparison: Comparison) -> str:
    """Say how the arms did against the first one, where that is not the result, and how little one seed shows."""
    lines = [
        _sentence(comparison, arm, comparison.first) for arm in comparison.contenders if comparison.longer_baselines
    ]
    if comparison.contenders:
        lines += [_sentence(comparison, arm, comparison.first) for arm in comparison.longer_baselines]
    if comparison.seeds == 1 and len(comparison.arms) > 1:
        lines.append(ONE_SEED)
    return "\n".join(lines)


def _sentence(comparison: Comparison, arm: Arm, reference: Arm) -> str:
    if not math.isfinite(reference.loss):
        return f"{reference.name} diverged: there is nothing to measure {arm.name} against."
    found = difference(arm, reference)
    if found is None:
        return f"{arm.name} diverged, so it did not end below {reference.name} ({_loss(reference)})."
    where = "below" if found.mean < 0 else "above"
    ended = f"{arm.name} ended {abs(found.mean):.4f} {where} {reference.name} ({_loss(arm)} against {_loss(reference)})"
    sooner = _sooner(comparison, arm) if reference is comparison.first else ""
    return f"{ended}{seeds_in_words(found)}.{sooner}{doubt(found)}"


def seeds_in_words(found: Difference) -> str:
    """Say how far the seeds agree, to follow the mean difference; nothing for one seed.

    >>> seeds_in_words(Difference([-0.05, -0.04, 0.01]))
    ' on average over 3 seeds, lower on 2 of them; the differences have a standard deviation of 0.0321'
    """
    if found.spread is None:
        return ""
    return (
        f" on average over {len(found.by_seed)} seeds, lower on {found.lower} of them; the differences have "
        f"a standard deviation of {found.spread:.4f}"
    )


def doubt(found: Difference) -> str:
    """Say so if several seeds differ as much as the arms do."""
    if found.spread is None or not found.may_be_chance:
        return ""
    return " The seeds differ so much that this may be chance: more of them would tell."


def _sooner(comparison: Comparison, arm: Arm) -> str:
    """Say how much sooner than the first arm an arm was as low; nothing if it was not."""
    saved, step = comparison.saved(arm), comparison.step_at_level(arm)
    if saved is None or step is None or saved <= 0:
        return ""
    return f" It was as low after {step:,} steps, {saved:.0%} fewer, with both curves smoothed over a tenth of the run."


def reasons(comparison: Comparison, *, tuned: bool) -> str:
    """Say why the settings are what they are."""
    base, arms, lines = comparison.base, comparison.arms, []
    for steps in sorted({arm.steps for arm in arms if _follows_horizon(arm.optimizer)}):
        beta3 = beta3_for_horizon(steps, BETAS[0])
        if BETAS[0] < beta3 < PAPER_BETA3:
            lines.append(
                f"AdEMAMix's beta3 = {beta3:.5g} is the rule for {steps:,} steps, 1 - 1/(0.04 steps): a memory of "
                f"{1 / (1 - beta3):,.0f} steps. alpha and beta3 rise over the whole run, as in the paper."
            )
    if tuned:
        lines.append("The learning rates, and beta2 where it was not stated, were the best of the search.")
    elif base == DEFAULT and all(arm.optimizer == OPTIMIZERS.get(arm.optimizer.name) for arm in arms):
        lines.append(
            "The learning rates and beta2 were the best of a search for each at its length "
            "(benchmarks/results/compare_sweep.json)."
        )
    else:
        lines.append(
            "The learning rates were not tuned for this comparison: --tune finds the best one for each optimizer, and "
            "its beta2."
        )
    return "\n".join(lines)


def _loss(arm: Arm) -> str:
    diverged = sum(not math.isfinite(loss) for loss in arm.losses)
    if diverged and len(arm.losses) > 1:
        return f"diverged on {diverged} of {len(arm.losses)} seeds"
    return "diverged" if diverged else f"{arm.loss:.4f}"


def _reached(comparison: Comparison, arm: Arm) -> str:
    if arm.steps != comparison.first.steps:
        return ""
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


def _settings(optimizer: Optimizer) -> list[str]:
    words = [f"{name}={value}".replace(" ", "") for name, value in optimizer.settings.items()]
    return [f"lr={optimizer.lr:g}", *words]
