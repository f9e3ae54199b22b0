"""What the paper claims, decided by numbers: a verdict is data.

A claim is a sentence and a check. A check compares quantities, which have a value for each seed (a last loss, a gap
between two arms) or, computed and not trained, one that no seed changes. A difference that may be chance decides
nothing, nor does a single seed. A run that diverged is infinitely high: a result, not an error.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ademamix.lab.comparison.arms import Difference
from ademamix.lab.reproduction.outcome import VALIDATION_LOSS, Outcome

Verdict = Literal["holds", "does not hold here", "not conclusive at this scale"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold here"
OPEN: Verdict = "not conclusive at this scale"
MOST_REASONS = 3


@dataclass(frozen=True)
class Decision:
    """A verdict, why in a sentence, and the numbers and seeds that it was decided by."""

    verdict: Verdict
    reason: str
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By what they are, a value for each of the seeds, or one if there are none."""
    seeds: Sequence[int] = ()


Check = Callable[[Outcome], Decision]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, or one that follows from it, and how it is decided."""

    text: str
    decide: Check
    source: str = ""
    """The paper's sentence, if the text is not close to it."""


@dataclass(frozen=True)
class Quantity:
    """A number by seed; one that no seed changes is `exact` and has a single value."""

    label: str
    values: Callable[[Outcome], Sequence[float]]
    exact: bool = False


Operand = Quantity | str | float
"""A quantity, an arm's name for its last validation loss, or a number."""


def last(arm: str, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return the last value of a metric of an arm."""
    label = arm if metric == VALIDATION_LOSS else f"{arm}, {metric}"
    return Quantity(label, lambda found: found.arms[arm].values(metric))


def at_step(arm: str, step: int, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return a metric of an arm as it was last recorded up to a step."""
    label = f"{arm}, {metric.replace('_', ' ')} at step {step:,}"
    return Quantity(label, lambda found: found.arms[arm].values(metric, step))


def highest(arm: str, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return the highest value that a metric of an arm ever had."""
    label = f"{arm}, highest {metric.replace('_', ' ')}"
    return Quantity(label, lambda found: found.arms[arm].highest(metric))


def lowest_ever(arm: str, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return the lowest value that a metric of an arm ever had: its end, had it been stopped there."""
    label = f"{arm}, lowest {metric.replace('_', ' ')}"
    return Quantity(label, lambda found: found.arms[arm].lowest(metric))


def largest_rise(arm: str, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return how far a metric of an arm ever rose above its lowest value before: the size of its worst spike."""
    label = f"{arm}, largest rise of the {metric.replace('_', ' ')}"
    return Quantity(label, lambda found: found.arms[arm].largest_rise(metric))


def overall(label: str, statistic: Callable[[Sequence[float]], float], operands: Iterable[Operand]) -> Quantity:
    """Return a statistic of several quantities, seed by seed: `min`, or the mean or median of `statistics`."""
    each = [quantity(operand) for operand in operands]
    return Quantity(
        label,
        lambda found: [statistic(values) for values in zip(*(one.values(found) for one in each), strict=True)],
        exact=all(one.exact for one in each),
    )


def gap(above: Operand, below: Operand) -> Quantity:
    """Return how much higher one quantity is than another, seed by seed."""
    first, second = quantity(above), quantity(below)
    return Quantity(
        f"{first.label} over {second.label}",
        lambda found: [a - b for a, b in zip(*_paired(first, second, found), strict=True)],
        exact=first.exact and second.exact,
    )


def ratio(label: str, above: Operand, below: Operand) -> Quantity:
    """Return one quantity over another, seed by seed; NaN where the other is 0."""
    first, second = quantity(above), quantity(below)
    return Quantity(
        label,
        lambda found: [a / b if b else math.nan for a, b in zip(*_paired(first, second, found), strict=True)],
        exact=first.exact and second.exact,
    )


def measured(label: str, value: float) -> Quantity:
    """Return a number that was computed and that no seed changes."""
    return Quantity(label, lambda found: [float(value)], exact=True)


def quantity(operand: Operand) -> Quantity:
    """Return a quantity as it is, the last loss of an arm by its name, and a number as itself."""
    if isinstance(operand, Quantity):
        return operand
    return last(operand) if isinstance(operand, str) else measured(f"{operand:g}", operand)


def lower(below: Operand, above: Operand) -> Check:
    """Check that one quantity is below another, paired over the seeds.

    >>> lower(measured("weight", 0.2), 0.5)(Outcome({}, ())).reason
    'Weight is 0.2, below 0.5.'
    """
    first, second = quantity(below), quantity(above)

    def decide(found: Outcome) -> Decision:
        ours, theirs = _paired(first, second, found)
        return _decision(_lower_verdict(ours, theirs, exact=first.exact and second.exact), first, second, found)

    return decide


def within(margin: float, one: Operand, other: Operand) -> Check:
    """Check that two quantities differ by at most a margin, with two standard errors to spare."""
    first, second = quantity(one), quantity(other)

    def decide(found: Outcome) -> Decision:
        by_seed = [a - b for a, b in zip(*_paired(first, second, found), strict=True)]
        exact = first.exact and second.exact
        error = 0.0 if exact else _standard_error(by_seed)
        apart = abs(statistics.fmean(by_seed)) if all(map(math.isfinite, by_seed)) else math.inf
        verdict = HOLDS if apart + 2 * error <= margin else FAILS if apart - 2 * error > margin else OPEN
        too_few = not exact and (len(by_seed) < 2 or any(map(math.isnan, by_seed)))
        return _decision(OPEN if too_few else verdict, first, second, found)

    return decide


def diverges(arm: str) -> Check:
    """Check that all runs of an arm diverged."""
    return _divergence(arm, of_all=HOLDS, of_none=FAILS)


def stays_finite(arm: str) -> Check:
    """Check that no run of an arm diverged."""
    return _divergence(arm, of_all=FAILS, of_none=HOLDS)


def every(*checks: Check) -> Check:
    """Check that all of several checks hold; one that does not decides."""
    return _combined(checks, decisive=FAILS, otherwise=HOLDS)


def some(*checks: Check) -> Check:
    """Check that at least one of several checks holds; one that does decides."""
    return _combined(checks, decisive=HOLDS, otherwise=FAILS)


def as_low_as(one: Operand, other: Operand, margin: float = 0.01) -> Check:
    """Check that a quantity is below another, or within a margin of it."""
    return some(lower(one, other), within(margin, one, other))


def ordered(*operands: Operand) -> Check:
    """Check that quantities rise from the first to the last."""
    return every(*(lower(below, above) for below, above in itertools.pairwise(operands)))


def lowest(name: Operand, others: Iterable[Operand]) -> Check:
    """Check that a quantity is below all others; it may be among them itself."""
    return every(*(lower(name, other) for other in others if other != name))


def _divergence(arm: str, *, of_all: Verdict, of_none: Verdict) -> Check:
    def decide(found: Outcome) -> Decision:
        count, seeds = sum(map(math.isinf, found.arms[arm].losses)), len(found.seeds)
        verdict = OPEN if seeds < 2 or 0 < count < seeds else of_all if count else of_none
        reason = f"{arm} diverged on {count} of {seeds} seed{'s' if seeds > 1 else ''}."
        return Decision(verdict, reason, {arm: found.arms[arm].losses}, found.seeds)

    return decide


def _paired(first: Quantity, second: Quantity, found: Outcome) -> tuple[Sequence[float], Sequence[float]]:
    ours, theirs = first.values(found), second.values(found)
    if first.exact != second.exact:
        ours = list(ours) * len(theirs) if first.exact else ours
        theirs = list(theirs) * len(ours) if second.exact else theirs
    return ours, theirs


def _lower_verdict(ours: Sequence[float], theirs: Sequence[float], *, exact: bool) -> Verdict:
    if exact:
        return HOLDS if ours[0] < theirs[0] else FAILS
    if len(ours) < 2 or any(map(math.isnan, [*ours, *theirs])):
        return OPEN
    pairs = list(zip(ours, theirs, strict=True))
    if any(not math.isfinite(value) for pair in pairs for value in pair):  # there is no spread: all seeds must agree
        agreed = {our < their for our, their in pairs}
        return OPEN if len(agreed) > 1 else HOLDS if agreed == {True} else FAILS
    difference = Difference([our - their for our, their in pairs])
    return OPEN if difference.may_be_chance else HOLDS if difference.mean < 0 else FAILS


def _standard_error(by_seed: Sequence[float]) -> float:
    spread = Difference(by_seed).spread if all(map(math.isfinite, by_seed)) else None
    return 0.0 if spread is None else spread / math.sqrt(len(by_seed))


def _decision(verdict: Verdict, first: Quantity, second: Quantity, found: Outcome) -> Decision:
    exact = first.exact and second.exact
    shown = {each.label: list(each.values(found)) for each in (first, second)}
    reason = _exact_reason(first, second, found) if exact else _reason(first, second, found)
    return Decision(verdict, reason, shown, () if exact else found.seeds)


def _exact_reason(first: Quantity, second: Quantity, found: Outcome) -> str:
    (ours,), (theirs,) = first.values(found), second.values(found)
    if first.label == f"{ours:g}":  # "the weight is 0.6, above 0.5", not the other way round
        first, second, ours, theirs = second, first, theirs, ours
    relation = "below" if ours < theirs else "above" if ours > theirs else "equal to"
    other = f"{theirs:g}" if second.label == f"{theirs:g}" else f"the {theirs:.4g} of {second.label}"
    return f"{first.label[0].upper()}{first.label[1:]} is {ours:.4g}, {relation} {other}."


def _reason(first: Quantity, second: Quantity, found: Outcome) -> str:
    ours, theirs = _paired(first, second, found)
    pairs = list(zip(ours, theirs, strict=True))
    below = sum(our < their for our, their in pairs)
    seeds = f"{len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    if any(map(math.isnan, [*ours, *theirs])):
        return f"There are no numbers to compare {first.label} and {second.label} by."
    if any(not math.isfinite(value) for pair in pairs for value in pair):
        return f"A run diverged; {first.label} is below {second.label} on {below} of {seeds}."
    difference = Difference([our - their for our, their in pairs])
    side = "below" if difference.mean < 0 else "above"
    ended = f"{first.label} is {abs(difference.mean):.4f} {side} {second.label}"
    if difference.spread is None:
        return f"{ended} on one seed, which decides nothing."
    chance = ": this may be chance" if difference.may_be_chance else ""
    return (
        f"{ended} in the mean of {seeds}, and lower on {below} of them; the differences have a standard deviation of "
        f"{difference.spread:.4f}{chance}."
    )


def _combined(checks: Sequence[Check], *, decisive: Verdict, otherwise: Verdict) -> Check:
    def decide(found: Outcome) -> Decision:
        decisions = [check(found) for check in checks]
        verdicts = [decision.verdict for decision in decisions]
        verdict = decisive if decisive in verdicts else OPEN if OPEN in verdicts else otherwise
        reasons = [decision.reason for decision in decisions if decision.verdict == verdict]
        numbers = {label: values for decision in decisions for label, values in decision.numbers.items()}
        seeds = max((decision.seeds for decision in decisions), key=len, default=())
        return Decision(verdict, _summary(reasons, len(decisions)), numbers, seeds)

    return decide


def _summary(reasons: Sequence[str], count: int) -> str:
    """Give the reasons of those comparisons that decided; of many, their number and the first."""
    if len(reasons) <= MOST_REASONS:
        return " ".join(reasons)
    return f"{len(reasons)} of {count} comparisons say so, the first of them: {reasons[0]}"
