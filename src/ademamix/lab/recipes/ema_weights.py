"""The weight that an EMA gives to each past gradient: the paper's figure limitation-EMA.

After 10,000 steps, each weight is drawn over the step of its gradient, as in the paper. The paper names the betas 0.9
and 0.9999; the two between them and the logarithmic scale are ours, and so is panel (b): the same weights over the age
of the gradient, where the last few steps can be seen.

Weights are those of the sum itself, not divided by their total: AdEMAMix does not correct the bias of its slow EMA.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ademamix import half_life
from ademamix.lab.recipes import NO_TRAINING, Scale, report
from ademamix.lab.report import figures

STEPS = 10_000
BETAS = (0.9, 0.99, 0.999, 0.9999)
RECENT, OLD = 10, 5000
LOWEST = 1e-9  # where the figure ends


def ema_weights(beta: float, steps: int = STEPS) -> NDArray[np.float64]:
    r"""Return the weights of the gradients g(T), g(T - 1), ..., g(0) in an EMA after T = `steps` steps.

    .. math:: \text{EMA}(\beta, g^{(0)}, \ldots, g^{(T)}) = \sum_{i=0}^T \beta^i (1-\beta)\, g^{(T-i)}

    >>> ema_weights(0.5, steps=3).tolist()
    [0.5, 0.25, 0.125, 0.0625]

    Reference: caption of figure limitation-EMA of the paper.
    """
    return np.asarray((1 - beta) * beta ** np.arange(steps + 1))


@dataclass(frozen=True)
class Split:
    """How one EMA divides its weight between the recent and the old gradients."""

    beta: float
    newest: float
    recent: float
    """On the last `RECENT` gradients."""
    old: float
    """On gradients that are more than `OLD` steps old."""
    total: float

    @classmethod
    def of(cls, beta: float) -> Split:
        """Split the weights that `beta` gives after `STEPS` steps.

        >>> round(Split.of(0.9).recent, 3), round(Split.of(0.9999).old, 3)
        (0.651, 0.239)
        """
        weights = ema_weights(beta)
        return cls(
            beta, float(weights[0]), float(weights[:RECENT].sum()), float(weights[OLD + 1 :].sum()), weights.sum()
        )


def table() -> str:
    """Return the split of each beta as a plain table."""
    lines = [
        f"{'':8}{'half-life':>10}{'weight on':>14}{'weight on':>18}{'weight on':>19}",
        f"{'beta':8}{'(steps)':>10}{'the newest':>14}{f'the last {RECENT}':>18}{f'over {OLD:,} steps':>19}{'total':>9}",
    ]
    for split in map(Split.of, BETAS):
        lines.append(
            f"{split.beta:<8g}{half_life(split.beta):10,.1f}{split.newest:14.4f}{split.recent:18.4f}"
            f"{split.old:19.2g}{split.total:9.3f}"
        )
    return "\n".join(line.rstrip() for line in lines)


def reading() -> str:
    """Say what the numbers show."""
    fast, slow = Split.of(BETAS[0]), Split.of(BETAS[-1])
    return (
        f"beta = {fast.beta:g} gives {fast.recent:.0%} of its weight to the last {RECENT} gradients and practically "
        f"none to those older than {OLD:,} steps. beta = {slow.beta:g} gives those {slow.old:.2f} of its "
        f"{slow.total:.2f}, but {slow.recent:.3f} to the last {RECENT}: its weights are nearly uniform, the newest "
        f"only {1 / slow.beta**STEPS:.1f} times the oldest. No beta does both, so AdEMAMix adds two."
    )


def draw() -> Figure:
    """Draw the weights over the step of each gradient, as the paper does, and over its age."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    by_step, by_age = figure.subplots(1, 2, sharey=True)
    even_ages = np.arange(0, STEPS + 1, 10)
    spread_ages = np.unique(np.geomspace(1, STEPS, 400).astype(int))
    for beta, look in zip(BETAS, figures.SERIES, strict=False):
        weights = ema_weights(beta)
        for axes, ages in ((by_step, even_ages), (by_age, spread_ages)):
            seen = ages[weights[ages] >= LOWEST]
            x = STEPS - seen if axes is by_step else seen
            figures.draw_line(axes, x, weights[seen], look, f"$\\beta={beta:g}$")
    by_step.set(yscale="log", ylim=(LOWEST, 0.3), xlabel="step $t$ of the gradient", ylabel="weight $w_t$")
    by_age.set(xscale="log", xlabel=f"age of the gradient, ${STEPS}-t$")
    figures.finish(by_step, f"(a) Weight of each gradient after {STEPS:,} steps", legend="upper left")
    figures.finish(by_age, "(b) The same, the last steps in full view", legend="lower left")
    return figure


def reproduce(folder: Path, scale: Scale) -> str:
    """Write `ema-weights.png` and `.svg` into `folder` and return the report to print; scales do not differ."""
    return report(
        f"weight (1 - beta) beta^i of the gradient i steps ago, after {STEPS:,} steps",
        table(),
        reading(),
        NO_TRAINING,
        figures=figures.save(draw(), folder, "ema-weights"),
    )
