"""The best learning rate and beta2 of an optimizer: a search that ends where every neighbour is worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ademamix.lab.config import Optimizer, Run
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.runs.record import Result
from ademamix.lab.settings import changed
from ademamix.lab.sweep.space import ladder
from ademamix.output import tables

ROUNDS = 8  # of runs that a search may take
SEED = 0
"""Searches have a seed of their own: the seeds that a comparison reports must not have chosen its settings."""
BETA2S = (0.9, 0.95, 0.99, 0.999, 0.9999)
USUAL_RUNS, USUAL_RUNS_OF_RATES = 6.8, 3.4
"""How many runs a search that begins with three rates takes, in the mean of sixteen searches of `horizon-rule` each."""

Runner = Callable[[Mapping[str, Run]], Mapping[str, Result]]


@dataclass(frozen=True)
class Choice:
    """A choice in a search; `beta2` is None if the config states it, or if there is none."""

    lr: float
    beta2: float | None = None

    def __str__(self) -> str:
        return f"lr={self.lr:g}" + ("" if self.beta2 is None else f" beta2={self.beta2:g}")


@dataclass(frozen=True)
class SearchedLosses:
    """The validation losses that were found, by choice; NaN for a run that diverged."""

    losses: Mapping[Choice, float]

    @property
    def best(self) -> Choice:
        """The choice with the lowest loss.

        >>> print(SearchedLosses({Choice(1e-3): 1.5, Choice(2e-3): 1.4, Choice(4e-3): float("nan")}).best)
        lr=0.002
        """
        return min(self.losses, key=lambda choice: _comparable(self.losses[choice]))

    @property
    def settled(self) -> bool:
        """Whether all neighbours of the best were tried, and are worse.

        >>> SearchedLosses({Choice(1e-3): 1.5, Choice(2e-3): 1.4, Choice(4e-3): 1.6}).settled
        True
        >>> SearchedLosses({Choice(1e-3): 1.5, Choice(2e-3): 1.4}).settled
        False
        """
        return not self.missing()

    def missing(self) -> list[Choice]:
        """Return the neighbours of the best that were not tried: in learning rate first, then in beta2."""
        best = self.best
        rates = [replace(best, lr=best.lr / 2), replace(best, lr=best.lr * 2)]
        for neighbours in (rates, [replace(best, beta2=beta2) for beta2 in _beside(best.beta2)]):
            if left := [choice for choice in neighbours if choice not in self.losses]:
                return left
        return []


@dataclass(frozen=True)
class Search:
    """A finished search: where each arm started, by name, and the losses found for it."""

    bases: Mapping[str, Run]
    found: Mapping[str, SearchedLosses]

    @property
    def runs(self) -> dict[str, Run]:
        """The bases with the best choices."""
        return {name: with_choice(self.bases[name], found.best) for name, found in self.found.items()}

    def report(self, width: int, subject: str = "Validation loss") -> str:
        """Lay out the losses that were found, under a heading that begins with `subject`."""
        return f"{subject} by learning rate and beta2, seed {SEED}:\n{table(self.found, width)}"

    def records(self) -> dict[str, Any]:
        """Return the runs and the losses found, for a JSON file."""
        return records(self.bases, self.found)


def search(arms: Mapping[str, Run], count: int, run: Runner, *, rounds: int) -> Search:
    """Find the best learning rate and beta2 of each arm, by name, on the seed of searches; see :func:`tune`."""
    bases = {name: arm.model_copy(update={"seed": SEED}) for name, arm in arms.items()}
    return Search(bases, tune(bases, count, run, rounds=rounds))


def tune(bases: Mapping[str, Run], count: int, run: Runner, *, rounds: int = ROUNDS) -> dict[str, SearchedLosses]:
    """Find the best learning rate and beta2 for each of `bases`, by name, with complete runs.

    The search begins with `count` rates, a factor of two apart, with that of the base in the middle. Then the
    neighbours of the best are tried until all are worse: half and twice its rate, then, at the best rate, the values
    of `BETA2S` next to its beta2; if that moves beta2, the rates again. It ends after `rounds` in any case. For an
    optimizer with no beta2, or whose betas are stated, only the rate is searched. `run(runs)` carries out runs by name
    and returns their results.
    """
    losses: dict[str, dict[Choice, float]] = {name: {} for name in bases}
    wanted = {name: _first_choices(base.optimizer, count) for name, base in bases.items()}
    for _ in range(rounds):
        named = {
            f"{name} {choice}": (name, choice, with_choice(bases[name], choice))
            for name in bases
            for choice in wanted[name]
        }
        results = run({label: config for label, (_, _, config) in named.items()})
        for label, (name, choice, _) in named.items():
            result = results[label]
            losses[name][choice] = math.nan if result.diverged else result.validation_loss
        wanted = {name: SearchedLosses(found).missing() for name, found in losses.items()}
        if not any(wanted.values()):
            break
    return {name: SearchedLosses(found) for name, found in losses.items()}


def usual_runs(optimizer: Optimizer) -> float:
    """Return about how many runs the search for an optimizer takes, if it begins with three rates."""
    return USUAL_RUNS_OF_RATES if _first_choices(optimizer, 1)[0].beta2 is None else USUAL_RUNS


def with_choice(base: Run, choice: Choice) -> Run:
    """Return a run with the learning rate and beta2 chosen; a beta2 that is the constructor's is not written out."""
    beta2 = {} if choice.beta2 is None else {"beta2": choice.beta2}
    return changed(base, lr=choice.lr, **beta2)


def records(bases: Mapping[str, Run], losses: Mapping[str, SearchedLosses]) -> dict[str, Any]:
    """Return the bases and the losses that were found, for a JSON file."""
    return {
        name: {
            "run": bases[name].model_dump(mode="json", exclude_defaults=True),
            "losses": [
                {"lr": choice.lr, "beta2": choice.beta2, "validation_loss": loss if math.isfinite(loss) else None}
                for choice, loss in sorted(found.losses.items(), key=lambda item: _by_rate(item[0]))
            ],
            "settled": found.settled,
        }
        for name, found in losses.items()
    }


def table(losses: Mapping[str, SearchedLosses], width: int) -> str:
    """Lay out the losses of each name by learning rate and beta2."""
    parts = []
    for name, found in losses.items():
        rates = sorted({choice.lr for choice in found.losses})
        rows = {
            "loss" if beta2 is None else f"beta2 {beta2:g}": [_cell(found, Choice(rate, beta2)) for rate in rates]
            for beta2 in sorted({choice.beta2 for choice in found.losses}, key=lambda beta2: beta2 or 0.0)
        }
        columns = [(f"lr {rate:g}", [cells[number] for cells in rows.values()]) for number, rate in enumerate(rates)]
        parts += [
            tables.wrapped(f"{name}, best: {found.best}{_reservation(found)}", width),
            tables.indented(tables.laid_out(list(rows), columns, width - 2)),
        ]
    return "\n".join(parts)


def _reservation(found: SearchedLosses) -> str:
    """Say so if a better choice may lie outside the ones tried."""
    if not found.settled:
        return " (the search ended before all of its neighbours were tried)"
    return " (at the end of the list of beta2)" if found.best.beta2 in (BETA2S[0], BETA2S[-1]) else ""


def _first_choices(optimizer: Optimizer, count: int) -> list[Choice]:
    row = OPTIMIZERS[optimizer.name]
    betas: Any = optimizer.settings.get("betas", row.betas)
    searched = row.betas is not None and betas in (row.betas, row.settings.get("betas"))  # any others are stated
    beta2 = betas[1] if searched else None
    return [Choice(rate, beta2) for rate in ladder(optimizer.lr / 2.0 ** (count // 2), 2.0, count)]


def _beside(beta2: float | None) -> list[float]:
    """Return the values of `BETA2S` on both sides of `beta2`."""
    if beta2 is None:
        return []
    below, above = [b for b in BETA2S if b < beta2], [b for b in BETA2S if b > beta2]
    return below[-1:] + above[:1]


def _cell(found: SearchedLosses, choice: Choice) -> str:
    loss = found.losses.get(choice)
    if loss is None:
        return ""
    return f"{loss:.4f}" if math.isfinite(loss) else "diverged"


def _comparable(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _by_rate(choice: Choice) -> tuple[float, float]:
    return choice.lr, choice.beta2 or 0.0
