"""How many steps of one optimizer the steps of another are worth: read off the losses of runs of many lengths."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ademamix.lab.comparison.arms import Difference


def steps_worth(loss: float, losses: Mapping[int, float]) -> float:
    """Return how many steps it takes to reach a loss, given the last losses of runs by their length.

    Between two lengths the loss is taken to fall linearly with the logarithm of the steps. Where it is not reached at
    all, the answer is infinite; where the shortest runs already are below it, it is 0.

    >>> round(steps_worth(1.5, {1000: 2.0, 4000: 1.0}))
    2000
    >>> steps_worth(0.5, {1000: 2.0, 4000: 1.0}), steps_worth(3.0, {1000: 2.0, 4000: 1.0})
    (inf, 0.0)
    """
    lengths = sorted(losses)
    if loss >= losses[lengths[0]]:
        return float(lengths[0]) if loss == losses[lengths[0]] else 0.0
    for shorter, longer in itertools.pairwise(lengths):
        if losses[longer] <= loss:
            share = (losses[shorter] - loss) / (losses[shorter] - losses[longer])
            return float(shorter * (longer / shorter) ** share)
    return math.inf


@dataclass(frozen=True)
class SpeedUp:
    """How many times as many steps another optimizer needs for the same loss, seed by seed."""

    by_seed: Sequence[float]
    largest: float
    """Beyond it nothing is known: the other's runs are no longer than that."""

    @property
    def known(self) -> bool:
        """Whether the other's runs were long enough, and short enough, on each seed."""
        return all(0 < ratio < math.inf for ratio in self.by_seed)

    @property
    def mean(self) -> float:
        """The geometric mean over the seeds; NaN if not all are known."""
        return statistics.geometric_mean(self.by_seed) if self.known else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Where the mean may be, given the spread of the seeds.

        >>> low, high = SpeedUp([2.0, 2.2, 1.9], largest=4.0).interval
        >>> round(low, 2), round(high, 2)
        (1.79, 2.3)
        """
        if not self.known:
            return math.nan, math.nan
        off = math.exp(Difference([math.log(ratio) for ratio in self.by_seed]).uncertainty)
        return self.mean / off, self.mean * off

    @property
    def at_least(self) -> Sequence[float]:
        """What is known of each seed: where the other's longest runs do not reach the loss, what they would be worth.

        >>> SpeedUp([1.5, float("inf"), 1.9], largest=2.0).at_least
        [1.5, 2.0, 1.9]
        """
        return [min(ratio, self.largest) for ratio in self.by_seed]

    @property
    def least(self) -> float:
        """What the mean is at least: the lower end of the interval, or what is known of each seed; NaN if that is none.

        >>> round(SpeedUp([1.5, float("inf"), 1.9], largest=2.0).least, 2)
        1.79
        """
        if self.known:
            return self.interval[0]
        return math.nan if 0.0 in self.by_seed else statistics.geometric_mean(self.at_least)

    def __str__(self) -> str:
        if self.known:
            low, high = self.interval
            return f"{self.mean:.2f}" + (f" ({low:.2f} to {high:.2f})" if math.isfinite(high) else "")
        if math.inf not in self.by_seed or 0.0 in self.by_seed:
            return "not known"
        if set(self.by_seed) == {math.inf}:
            return f"over {self.largest:.3g}"
        return f"at least {self.least:.2f}"


def speed_up(steps: int, losses: Sequence[float], others: Mapping[int, Sequence[float]]) -> SpeedUp:
    """Return what runs of so many steps, with a last loss for each seed, are worth in steps of another optimizer.

    `others` are the last losses of the other's runs by their length, for the same seeds.

    >>> losses = {1000: [2.0, 2.0, 2.0], 4000: [1.0, 1.0, 1.0]}
    >>> print(speed_up(1000, [1.5, 1.5, 1.4], losses), speed_up(1000, [0.9, 1.5, 1.5], losses), sep=", ")
    2.09 (1.83 to 2.40), at least 2.52
    """
    worth = [
        steps_worth(loss, {length: by_seed[seed] for length, by_seed in others.items()})
        for seed, loss in enumerate(losses)
    ]
    return SpeedUp([each / steps for each in worth], largest=max(others) / steps)
