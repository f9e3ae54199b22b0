"""What the paper claims, decided by numbers: a verdict is data.

A claim is a sentence and a check. A check compares quantities, which have a value for each seed (a last loss, a gap
between two arms) or, computed and not trained, one that no seed changes. A difference that may be chance decides
nothing, nor does a single seed. A run that diverged is infinitely high, and one that ends above where its baseline was
after a tenth of the steps has broken down: results, not errors. How far above that it ends says nothing, so where runs
diverged or broke down the seeds are only asked which of two numbers is lower, and all must agree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ademamix.lab.comparison.arms import Difference
from ademamix.lab.reproduction.outcome import VALIDATION_LOSS, Outcome

Verdict = Literal["holds", "does not hold here", "not conclusive at this scale"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold here"
OPEN: Verdict = "not conclusive at this scale"
MOST_REASONS = 3
SIMILAR = 0.01
"""Losses that differ by no more are called similar, and a gain of no more is none: at laptop scale a sixth of what
AdEMAMix gains over AdamW, and about the standard deviation of AdamW's last loss between seeds."""
SPIKE = 0.1
"""A run is less stable than another if its training loss, a mean of ten steps, ever rises by this much more. Hard
batches alone make it rise by 0.3 to 0.4 at laptop scale, but they are the same for both."""


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
    ours: bool = False
    """Whether nobody but us says so: the source of the recipe does not. Such claims are counted apart."""


@dataclass(frozen=True)
class Quantity:
    """A number by seed; one that no seed changes is `exact` and has a single value."""

    label: str
    values: Callable[[Outcome], Sequence[float]]
    exact: bool = False
    ends_of: Sequence[str] = ()
    """The arms whose ends it depends on: if one has broken down, how large it is says nothing."""

    def as_found(self, found: Outcome) -> Quantity:
        """Return what this was in the outcome of one panel, for the claims of another."""
        return Quantity(self.label, lambda _: self.values(found))


Operand = Quantity | str | float
"""A quantity, an arm's name for its last validation loss, or a number."""


def last(arm: str, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return the last value of a metric of an arm."""
    label = arm if metric == VALIDATION_LOSS else f"{arm}, {metric}"
    return Quantity(label, lambda found: found.arms[arm].values(metric), ends_of=[arm])


def at_step(arm: str, step: int, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return a metric of an arm as it was last recorded up to a step."""
    label = f"{arm}, {metric.replace('_', ' ')} at step {step:,}"
    return Quantity(label, lambda found: found.arms[arm].values(metric, step))


def smoothed(arm: str, step: int, over: int, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return the mean of a metric of an arm over so many steps up to a step: single values are noisy."""
    label = f"{arm}, mean {metric.replace('_', ' ')} in the {over:,} steps to {step:,}"
    return Quantity(label, lambda found: found.arms[arm].smoothed(metric, step, over))


def lowest_ever(arm: str, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return the lowest value that a metric of an arm ever had: its end, had it been stopped there."""
    label = f"{arm}, lowest {metric.replace('_', ' ')}"
    return Quantity(label, lambda found: found.arms[arm].lowest(metric))


def largest_rise(arm: str, metric: str = VALIDATION_LOSS, *, between: tuple[float, float] = (0, math.inf)) -> Quantity:
    """Return how far a metric of an arm ever rose above its lowest value before: the size of its worst spike.

    It may be looked for between two steps only. Infinite where the run broke down, which it may do without a spike.
    """
    label = f"{arm}, largest rise of the {metric.replace('_', ' ')}"
    if between != (0, math.inf):
        label += " in steps {:,} to {:,}".format(*between)

    def values(found: Outcome) -> list[float]:
        rises = found.arms[arm].largest_rise(metric, between)
        return [math.inf if broke else rise for rise, broke in zip(rises, found.broke_down(arm), strict=True)]

    return Quantity(label, values, ends_of=[arm])


def roughness(arm: str, metric: str = VALIDATION_LOSS) -> Quantity:
    """Return how rough the curve of a metric of an arm is: how far a value is on average from midway between its
    neighbours, of the last nine tenths of the run, since the first falls steeply."""
    label = f"{arm}, roughness of the {metric.replace('_', ' ')}"
    return Quantity(label, lambda found: found.arms[arm].roughness(metric))


def memory(arm: str) -> Quantity:
    """Return how many bytes the state of an arm's optimizer takes."""
    return Quantity(f"{arm}, bytes of state", lambda found: [result.state_bytes for result in found.arms[arm].results])


def overall(label: str, statistic: Callable[[Sequence[float]], float], operands: Iterable[Operand]) -> Quantity:
    """Return a statistic of several quantities, seed by seed: `min`, or the mean or median of `statistics`."""
    each = [quantity(operand) for operand in operands]
    return Quantity(
        label,
        lambda found: [statistic(values) for values in zip(*(one.values(found) for one in each), strict=True)],
        exact=all(one.exact for one in each),
        ends_of=[arm for one in each for arm in one.ends_of],
    )


def gap(above: Operand, below: Operand, *, label: str = "") -> Quantity:
    """Return how much higher one quantity is than another, seed by seed."""
    first, second = quantity(above), quantity(below)
    return Quantity(
        label or f"{first.label} over {second.label}",
        lambda found: [a - b for a, b in zip(*_paired(first, second, found), strict=True)],
        exact=first.exact and second.exact,
        ends_of=[*first.ends_of, *second.ends_of],
    )


def ratio(label: str, above: Operand, below: Operand) -> Quantity:
    """Return one quantity over another, seed by seed; NaN where the other is 0."""
    first, second = quantity(above), quantity(below)
    return Quantity(
        label,
        lambda found: [a / b if b else math.nan for a, b in zip(*_paired(first, second, found), strict=True)],
        exact=first.exact and second.exact,
        ends_of=[*first.ends_of, *second.ends_of],
    )


def part(fraction: float, operand: Operand) -> Quantity:
    """Return a fraction of a quantity: to be below a tenth of another needs no division by what may be close to 0."""
    whole = quantity(operand)
    values = whole.values
    return Quantity(
        f"{fraction:g} of {whole.label}",
        lambda found: [fraction * each for each in values(found)],
        whole.exact,
        whole.ends_of,
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
        return _decision(_lower_verdict(first, second, found), first, second, found)

    return decide


def within(margin: float, one: Operand, other: Operand) -> Check:
    """Check that two quantities differ by at most a margin, even if the mean is off as far as it may be by chance."""
    first, second = quantity(one), quantity(other)

    def decide(found: Outcome) -> Decision:
        return _decision(_within_verdict(margin, first, second, found), first, second, found, margin)

    return decide


def not_here(check: Check, why: str) -> Check:
    """Show the numbers of a check, and decide nothing: they would be these whether the claim is true or not."""
    return lambda found: replace(check(found), verdict=OPEN, reason=why)


def every(*checks: Check) -> Check:
    """Check that all of several checks hold; one that does not decides."""
    return _combined(checks, decisive=FAILS, otherwise=HOLDS)


def some(*checks: Check) -> Check:
    """Check that at least one of several checks holds; one that does decides."""
    return _combined(checks, decisive=HOLDS, otherwise=FAILS)


def as_low_as(one: Operand, other: Operand, margin: float = SIMILAR) -> Check:
    """Check that a quantity is below another or above it by less than a margin: that the other one brings no gain."""
    first, second = quantity(one), quantity(other)

    def decide(found: Outcome) -> Decision:
        return _decision(_lower_verdict(first, second, found, margin), first, second, found, margin)

    return decide


def ordered(*operands: Operand) -> Check:
    """Check that quantities rise: the last is above the first, and none is below the one before it beyond chance.

    Neighbours may be too close for the seeds to tell them apart; where each must be above the last, say so by `every`.
    """
    ends = lower(operands[0], operands[-1])
    reversals = [lower(later, earlier) for earlier, later in itertools.pairwise(operands)]

    def decide(found: Outcome) -> Decision:
        decisions, whole = [check(found) for check in reversals], ends(found)
        against = [decision for decision in decisions if decision.verdict == HOLDS]
        return _together(FAILS if against else whole.verdict, against or [whole], [whole, *decisions])

    return decide


def breaks_down(arm: str, baseline: str = "AdamW") -> Check:
    """Check that an arm diverges, or ends above where the baseline was after a tenth of its steps.

    This is how claims about divergence are read. A run counts as diverged only once its loss is not finite, which
    clipping mostly prevents, so that what a figure shows as divergence is mostly a loss that never recovers.
    """
    return lower(early(baseline), arm)


def trains(arm: str, baseline: str = "AdamW") -> Check:
    """Check that an arm does not break down: it ends below where the baseline was after a tenth of its steps."""
    return lower(arm, early(baseline))


def early(arm: str) -> Quantity:
    """Return the validation loss of an arm after a tenth of its steps."""
    return Quantity(f"{arm} after a tenth of its steps", lambda found: found.arms[arm].early_losses)


def lowest(name: Operand, others: Iterable[Operand]) -> Check:
    """Check that a quantity is below all others; it may be among them itself."""
    return every(*(lower(name, other) for other in others if other != name))


def _paired(first: Quantity, second: Quantity, found: Outcome) -> tuple[Sequence[float], Sequence[float]]:
    ours, theirs = first.values(found), second.values(found)
    if first.exact != second.exact:
        ours = list(ours) * len(theirs) if first.exact else ours
        theirs = list(theirs) * len(ours) if second.exact else theirs
    return ours, theirs


def _by_order(first: Quantity, second: Quantity, found: Outcome) -> bool:
    """Tell whether a run of either diverged or broke down: there is no spread then, and all seeds must agree."""
    ours, theirs = _paired(first, second, found)
    broke = any(any(found.broke_down(arm)) for arm in (*first.ends_of, *second.ends_of))
    return broke or not all(map(math.isfinite, [*ours, *theirs]))


def _agreed(by_seed: Iterable[bool]) -> Verdict:
    agreed = set(by_seed)
    return OPEN if len(agreed) > 1 else HOLDS if agreed == {True} else FAILS


def _lower_verdict(first: Quantity, second: Quantity, found: Outcome, margin: float = 0.0) -> Verdict:
    ours, theirs = _paired(first, second, found)
    pairs = [(our, their + margin) for our, their in zip(ours, theirs, strict=True)]
    if first.exact and second.exact:
        return _agreed(our < their for our, their in pairs)
    if len(ours) < 2 or any(map(math.isnan, [*ours, *theirs])):
        return OPEN
    if _by_order(first, second, found):
        return _agreed(our < their for our, their in pairs)
    difference = Difference([our - their for our, their in pairs])
    return OPEN if difference.may_be_chance else HOLDS if difference.mean < 0 else FAILS


def _within_verdict(margin: float, first: Quantity, second: Quantity, found: Outcome) -> Verdict:
    difference = Difference([our - their for our, their in zip(*_paired(first, second, found), strict=True)])
    if first.exact and second.exact:
        return HOLDS if abs(difference.mean) <= margin else FAILS
    if len(difference.by_seed) < 2 or any(map(math.isnan, difference.by_seed)):
        return OPEN
    if _by_order(first, second, found):
        return _agreed(abs(apart) <= margin for apart in difference.by_seed)
    apart, uncertainty = abs(difference.mean), difference.uncertainty
    return HOLDS if apart + uncertainty <= margin else FAILS if apart - uncertainty > margin else OPEN


def _decision(
    verdict: Verdict, first: Quantity, second: Quantity, found: Outcome, margin: float | None = None
) -> Decision:
    exact = first.exact and second.exact
    shown = {each.label: list(each.values(found)) for each in (first, second)}
    reason = _exact_reason(first, second, found) if exact else _reason(first, second, found, margin)
    return Decision(verdict, reason, shown, () if exact else found.seeds)


def _exact_reason(first: Quantity, second: Quantity, found: Outcome) -> str:
    (ours,), (theirs,) = first.values(found), second.values(found)
    if first.label == f"{ours:g}":  # "the weight is 0.6, above 0.5", not the other way round
        first, second, ours, theirs = second, first, theirs, ours
    relation = "below" if ours < theirs else "above" if ours > theirs else "equal to"
    other = f"{theirs:g}" if second.label == f"{theirs:g}" else f"the {theirs:.4g} of {second.label}"
    return f"{first.label[0].upper()}{first.label[1:]} is {ours:.4g}, {relation} {other}."


def _reason(first: Quantity, second: Quantity, found: Outcome, margin: float | None) -> str:
    ours, theirs = _paired(first, second, found)
    pairs = list(zip(ours, theirs, strict=True))
    below = sum(our < their for our, their in pairs)
    seeds = f"{len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    if any(map(math.isnan, [*ours, *theirs])):
        return f"There are no numbers to compare {first.label} and {second.label} by."
    if _by_order(first, second, found):
        allowance = f" or above it by less than {margin:g}" if margin is not None else ""
        below = sum(our < their + (margin or 0.0) for our, their in pairs)
        return (
            f"{_trouble(first, second, found)}; {first.label} is below {second.label}{allowance} on {below} of {seeds}."
        )
    difference = Difference([our - their for our, their in pairs])
    side = "below" if difference.mean < 0 else "above"
    name = f"T{first.label[1:]}" if first.label.startswith("the ") else first.label  # arms keep their names
    ended = f"{name} is {abs(difference.mean):.4f} {side} {second.label}"
    if difference.spread is None:
        return f"{ended} on one seed, which decides nothing."
    doubt = ": this may be chance" if difference.may_be_chance else ""
    allowed = doubt if margin is None else f", so that the mean may be off by {difference.uncertainty:.4f}"
    return (
        f"{ended} in the mean of {seeds}, and lower on {below} of them; the differences have a standard deviation of "
        f"{difference.spread:.4f}{allowed}."
    )


def _trouble(first: Quantity, second: Quantity, found: Outcome) -> str:
    """Say which runs diverged, and when, and which broke down."""
    parts = []
    for name in dict.fromkeys((*first.ends_of, *second.ends_of)):
        steps = [f"{result.steps:,}" for result in found.arms[name].results if result.diverged]
        broke = sum(found.broke_down(name))
        parts += [f"{name} diverged at step {' and '.join(steps)}"] if steps else []
        parts += [f"{name} broke down on {broke} of {len(found.seeds)} seeds"] if broke else []
    return "; ".join(parts) or "A run diverged"


def _combined(checks: Sequence[Check], *, decisive: Verdict, otherwise: Verdict) -> Check:
    def decide(found: Outcome) -> Decision:
        decisions = [check(found) for check in checks]
        verdicts = [decision.verdict for decision in decisions]
        verdict = decisive if decisive in verdicts else OPEN if OPEN in verdicts else otherwise
        return _together(verdict, [decision for decision in decisions if decision.verdict == verdict], decisions)

    return decide


def _together(verdict: Verdict, deciding: Sequence[Decision], decisions: Sequence[Decision]) -> Decision:
    """Return a verdict for the reasons of those that decide, with the numbers of all."""
    numbers = {label: values for decision in decisions for label, values in decision.numbers.items()}
    seeds = max((decision.seeds for decision in decisions), key=len, default=())
    return Decision(verdict, _summary([decision.reason for decision in deciding], len(decisions)), numbers, seeds)


def _summary(reasons: Sequence[str], count: int) -> str:
    """Give the reasons of those comparisons that decided; of many, their number and the first."""
    if len(reasons) <= MOST_REASONS:
        return " ".join(reasons)
    return f"{len(reasons)} of {count} comparisons say so, the first of them: {reasons[0]}"
