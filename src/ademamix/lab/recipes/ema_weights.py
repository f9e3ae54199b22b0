"""The weight that an EMA gives to each past gradient: the paper's figure limitation-EMA.

After 10,000 steps, each weight is drawn over the step of its gradient, as in the paper. The paper names the betas 0.9
and 0.9999; the two between them and the logarithmic scale are ours, and so is panel (b): the same weights over the age
of the gradient, where the last few steps can be seen.

Weights are those of the sum itself, not divided by their total: AdEMAMix does not correct the bias of its slow EMA.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ademamix import half_life
from ademamix.lab.recipes.formulas.averages import STEPS, ema_weights
from ademamix.lab.report.charts import Lines, Series
from ademamix.lab.reproduction.claims import Claim, every, lower, measured, within
from ademamix.lab.reproduction.panel import Panel, Panels, Table
from ademamix.lab.reproduction.scale import Scale

BETAS = (0.9, 0.99, 0.999, 0.9999)
RECENT, OLD = 10, 5000
LOWEST = 1e-9  # where the figure ends


def recent_and_old(beta: float) -> tuple[float, float]:
    """Return the weight on the last `RECENT` gradients, and on those more than `OLD` steps old.

    >>> [round(weight, 3) for weight in recent_and_old(0.9999)]
    [0.001, 0.239]
    """
    weights = ema_weights(beta)
    return float(weights[:RECENT].sum()), float(weights[OLD + 1 :].sum())


def plan(at: Scale) -> Panels:
    """Yield the weights over the step of each gradient, as the paper does, and over its age."""
    charts = [
        _weights(f"(a) Weight of each gradient after {STEPS:,} steps", np.arange(0, STEPS + 1, 10), by_age=False),
        _weights("(b) The same, the last steps in full view", np.unique(np.geomspace(1, STEPS, 400).astype(int))),
    ]
    header = ["beta", "half-life (steps)", "on the newest", f"on the last {RECENT}", f"over {OLD:,} steps", "total"]
    rows = []
    for beta in BETAS:
        weights, (recent, old) = ema_weights(beta), recent_and_old(beta)
        rows.append([f"{beta:g}", f"{half_life(beta):,.1f}", f"{weights[0]:.4f}", f"{recent:.4f}", f"{old:.2g}"])
        rows[-1].append(f"{weights.sum():.3f}")
    yield Panel(
        "The weights of an average",
        charts=charts,
        tables=[Table(header, rows, f"Weight (1 - beta) beta^i of the gradient i steps ago, after {STEPS:,} steps")],
        claims=list(_claims()),
    )


def _claims() -> Iterator[Claim]:
    (recent, old), (_, old_of_large), large = (
        recent_and_old(BETAS[0]),
        recent_and_old(BETAS[-1]),
        ema_weights(BETAS[-1]),
    )
    yield Claim(
        "A small beta, 0.9, gives a high weight to the immediate past and a negligible one to older steps",
        every(
            lower(0.5, measured(f"its weight on the last {RECENT}", recent)),
            lower(measured(f"its weight on gradients over {OLD:,} steps old", old), 1e-9),
        ),
    )
    yield Claim(
        "A high beta, 0.9999, gives a relatively uniform, yet non-negligible weight to all gradients",
        every(
            lower(measured("its weight on the newest over that on the oldest", large[0] / large[-1]), 3.0),
            lower(0.2, measured(f"its weight on gradients over {OLD:,} steps old", old_of_large)),
        ),
    )
    near, far = (measured(f"the half-life of beta = {beta:g}", half_life(beta)) for beta in (BETAS[0], BETAS[-1]))
    yield Claim(
        "Half of the weight of beta = 0.9 is on about 6 steps, that of 0.9999 on about 6,930",
        every(within(0.5, near, 6.0), within(0.5, far, 6930.0)),
    )
    both = max(min(recent_and_old(float(beta))) for beta in 1 - np.geomspace(1e-6, 0.5, 200))
    yield Claim(
        "No beta gives weight to the immediate past and to very old steps at once",
        lower(measured("the largest weight that a beta gives to both", both), 0.01),
    )


def _weights(title: str, ages: NDArray[np.int64], by_age: bool = True) -> Lines:
    series = []
    for beta in BETAS:
        weights = ema_weights(beta)
        seen = ages[weights[ages] >= LOWEST]
        series.append(Series.of(f"$\\beta={beta:g}$", seen if by_age else STEPS - seen, weights[seen]))
    return Lines(
        title,
        f"age of the gradient, ${STEPS}-t$" if by_age else "step $t$ of the gradient",
        "weight $w_t$",
        series,
        logarithmic="xy" if by_age else "y",
        y_range=(LOWEST, 0.3),
        legend="lower left" if by_age else "upper left",
    )
