"""The best learning rate of a short list, which grows while the best is at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ademamix.lab.config import Run
from ademamix.lab.record import Result

GROWTH = 3  # how often a list may grow
Runner = Callable[[Mapping[str, Run]], Mapping[str, Result]]


@dataclass(frozen=True)
class Sweep:
    """The validation losses that were found, by learning rate."""

    losses: Mapping[float, float]

    @property
    def best(self) -> float:
        """The learning rate with the lowest loss.

        >>> Sweep({1e-3: 1.5, 2e-3: 1.4, 4e-3: float("nan")}).best
        0.002
        """
        return min(self.losses, key=lambda rate: _comparable(self.losses[rate]))

    @property
    def settled(self) -> bool:
        """Whether the best has a worse neighbour on each side.

        >>> Sweep({1e-3: 1.5, 2e-3: 1.4, 4e-3: 1.6}).settled, Sweep({1e-3: 1.5, 2e-3: 1.4}).settled
        (True, False)
        """
        return min(self.losses) < self.best < max(self.losses)


def tune(bases: Mapping[str, Run], count: int, run: Runner) -> dict[str, Sweep]:
    """Find the best learning rate for each of `bases`, by name, with complete runs of each.

    The list has `count` rates, a factor of two apart, with that of the base in the middle; where the best is at its
    end, it grows there, at most `GROWTH` times. A list of one or two is taken as it is. `run(runs)` carries out runs by
    name and returns their results.
    """
    losses: dict[str, dict[float, float]] = {name: {} for name in bases}
    wanted = {
        name: [base.optimizer.lr * 2.0 ** (power - count // 2) for power in range(count)]
        for name, base in bases.items()
    }
    for _ in range(1 + GROWTH if count > 2 else 1):
        named = {
            f"{name} lr={rate:g}": (name, rate, _with_rate(bases[name], rate))
            for name in bases
            for rate in wanted[name]
        }
        results = run({label: config for label, (_, _, config) in named.items()})
        for label, (name, rate, _) in named.items():
            result = results[label]
            losses[name][rate] = math.nan if result.diverged else result.validation_loss
        wanted = {name: _next_rates(Sweep(found)) for name, found in losses.items()}
        if not any(wanted.values()):
            break
    return {name: Sweep(dict(sorted(found.items()))) for name, found in losses.items()}


def records(bases: Mapping[str, Run], sweeps: Mapping[str, Sweep]) -> dict[str, Any]:
    """Return what was run and found, for a JSON file."""
    return {
        name: {
            "run": bases[name].model_dump(mode="json", exclude_defaults=True),
            "losses": {f"{rate:g}": loss for rate, loss in found.losses.items()},
        }
        for name, found in sweeps.items()
    }


def table(sweeps: Mapping[str, Sweep]) -> str:
    """Lay out what was found, a line for each name."""
    lines = []
    for name, found in sweeps.items():
        at_the_end = " (at the end of the list)" if len(found.losses) > 2 and not found.settled else ""
        cells = "  ".join(f"{rate:g}: {loss:.4f}" for rate, loss in found.losses.items())
        lines.append(f"  {name:<12} {cells}   best: {found.best:g}{at_the_end}")
    return "\n".join(lines)


def _next_rates(sweep: Sweep) -> list[float]:
    if sweep.settled:
        return []
    return [sweep.best * 2 if sweep.best == max(sweep.losses) else sweep.best / 2]


def _with_rate(base: Run, rate: float) -> Run:
    return base.model_copy(update={"optimizer": base.optimizer.model_copy(update={"lr": rate})})


def _comparable(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
