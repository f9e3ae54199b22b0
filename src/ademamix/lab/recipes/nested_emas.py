"""Nested EMAs, DEMA and AdMeta against a mixture of EMAs: the paper's figure dema.

The paper gives AdMeta's beta1 = 0.9 and beta2 from 0.1 to 0.4; the other betas, which methods are drawn, and how their
weights are scaled are ours. EMAs, nested EMAs and DEMA have weights that sum to 1. So have AdMeta's here: its learning
rate takes up their scale, 51 with beta1 = 0.9. AdEMAMix is m1 + alpha m2 as it is added, for m1 has in it the
weight that it has in Adam; the table gives shares of the total as well. All have seen 10,000 steps, and DEMA's
window is as long as that. The figure draws AdMeta-S with beta2 = 0.4, the one that gives old gradients more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ademamix.lab.recipes import NO_TRAINING, Scale, report
from ademamix.lab.recipes.ema_weights import ema_weights
from ademamix.lab.report import figures

BETA, SLOW_BETA, ALPHA = 0.9, 0.9999, 5.0
RECENT, OLD = 60, 1000
LOWEST = 1e-10  # where the figure ends


def chain(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of an average, `second`, of the values of another one, `first`; the newest gradient's first.

    >>> chain(np.array([0.5, 0.25]), np.array([0.5, 0.25])).tolist()
    [0.25, 0.25]
    """
    return np.convolve(first, second)[: len(first)]


def nested() -> NDArray[np.float64]:
    r"""Return the weights of an EMA of an EMA.

    .. math:: w_i = (1 - \beta)^2 (i + 1) \beta^i

    >>> nested()[:2].round(6).tolist()
    [0.01, 0.018]
    """
    return chain(ema_weights(BETA), ema_weights(BETA))


def dema() -> NDArray[np.float64]:
    r"""Return the weights of the double EMA of finance.

    .. math:: \text{DEMA} = 2\, \text{EMA} - \text{EMA}(\text{EMA})

    >>> dema()[:2].round(6).tolist()
    [0.19, 0.162]
    """
    return 2 * ema_weights(BETA) - nested()


def admeta(beta2: float) -> NDArray[np.float64]:
    r"""Return the weights of AdMeta-S, divided by their total.

    .. math:: m_1 = \beta_1 m_1 + g, \quad h = \kappa g + \mu m_1, \quad m_2 = \beta_2 m_2 + (1 - \beta_2) h, \qquad
              \mu = 25 - 10 (\beta_1 + 1/\beta_1), \quad \kappa = 10/\beta_1 - 9

    >>> admeta(beta2=0.4)[:2].round(4).tolist()
    [0.0824, 0.0847]
    """
    mu, kappa = 25 - 10 * (BETA + 1 / BETA), 10 / BETA - 9
    m1 = ema_weights(BETA) / (1 - BETA)  # a plain decaying sum
    h = mu * m1
    h[0] += kappa
    weights = chain(h, ema_weights(beta2))
    return np.asarray(weights / weights.sum())


def mixture() -> NDArray[np.float64]:
    r"""Return the weights of AdEMAMix, with alpha and beta3 at their final values.

    .. math:: m_1 + \alpha m_2

    >>> mixture()[0].round(6).tolist()
    0.1005
    """
    return ema_weights(BETA) + ALPHA * ema_weights(SLOW_BETA)


METHODS: dict[str, Callable[[], NDArray[np.float64]]] = {
    "EMA": lambda: ema_weights(BETA),
    "EMA of EMA": nested,
    "DEMA": dema,
    "AdMeta-S, beta2 = 0.1": lambda: admeta(0.1),
    "AdMeta-S, beta2 = 0.4": lambda: admeta(0.4),
    "AdEMAMix": mixture,
}
"""By name, the weights of the gradients, the newest first."""


def table() -> str:
    """Return for each method the weight of the newest gradient and of the old ones as a plain table."""
    old_name = f"over {OLD:,} steps"
    lines = [
        f"{'':24}{'weight on':>12}{'weight on':>18}{'':>8}{'share of':>12}{'share of':>18}",
        f"{'method':24}{'the newest':>12}{old_name:>18}{'total':>8}{'the newest':>12}{old_name:>18}",
    ]
    for name, method in METHODS.items():
        weights = method()
        total, old = weights.sum(), weights[OLD + 1 :].sum()
        lines.append(f"{name:24}{weights[0]:12.4f}{old:18.2g}{total:8.2f}{weights[0] / total:12.4f}{old / total:18.2g}")
    return "\n".join(lines)


def reading() -> str:
    """Say what the numbers show, and where it depends on the settings."""
    single, double, low, high, mix = ema_weights(BETA), dema(), admeta(0.1), admeta(0.4), mixture()
    turns_negative = int(np.flatnonzero(double < -LOWEST)[0])
    return (
        f"An EMA of an EMA gives the newest gradient {nested()[0]:.2g}, a single EMA {single[0]:.2g}. DEMA "
        f"subtracts it, to give {double[0]:.2g}, and a negative weight from {turns_negative} steps ago on. AdMeta-S, "
        f"which nests two, gives {high[0]:.3f} with beta2 = 0.4, less than the single EMA ({low[0]:.3f} with 0.1, "
        f"which is more), and practically nothing to old gradients. AdEMAMix keeps the {single[0]:.2g} of the single "
        f"EMA and adds a long tail: {mix[OLD + 1 :].sum():.1f} of its total of {mix.sum():.1f} is on gradients over "
        f"{OLD:,} steps old. As a share of that total the newest counts for {mix[0] / mix.sum():.3f}, less than in a "
        "single EMA, since the tail comes on top."
    )


LOOKS = {
    "EMA": figures.SERIES[0],
    "EMA of EMA": figures.SERIES[2],
    "DEMA": figures.SERIES[4],
    "AdMeta-S, beta2 = 0.4": figures.SERIES[3],
    "AdEMAMix": figures.SERIES[1],
}


def draw() -> Figure:
    """Draw the paper's two panels: recent weights on a linear scale, and all up to `OLD` steps on a logarithmic one."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    linear, log = figure.subplots(1, 2)
    ages = np.arange(OLD + 1)
    for order, (name, look) in enumerate(LOOKS.items()):
        weights = METHODS[name]()[: OLD + 1]
        label = name.replace("beta2 = ", "$\\beta_2=$")
        shift = order / len(LOOKS)  # three of the lines coincide
        figures.draw_line(linear, ages[: RECENT + 1], weights[: RECENT + 1], look, label, shift=shift)
        seen = abs(weights) >= LOWEST
        figures.draw_line(log, ages[seen], abs(weights[seen]), look, label, shift=shift)
    linear.set(xlabel="age of the gradient (steps)", ylabel="weight")
    log.set(yscale="log", ylim=(LOWEST, 0.5), xlabel="age of the gradient (steps)", ylabel="weight (absolute value)")
    figure.supxlabel(
        f"EMA, EMA of EMA and DEMA: $\\beta={BETA:g}$.  AdMeta-S: $\\beta_1={BETA:g}$.  AdEMAMix: $\\beta_1={BETA:g}$, "
        f"$\\beta_3={SLOW_BETA:g}$, $\\alpha={ALPHA:g}$.",
        fontsize=9.5,
    )
    figures.finish(linear, "(a) Linear scale: the last steps", legend="upper right")
    figures.finish(log, "(b) Logarithmic scale", legend="upper right")
    return figure


def reproduce(folder: Path, scale: Scale) -> str:
    """Write `nested-emas.png` and `.svg` into `folder` and return the report to print; scales do not differ."""
    return report(
        f"beta = {BETA:g} for EMA, EMA of EMA, DEMA and AdMeta-S's beta1; AdEMAMix with beta1 = {BETA:g}, beta3 = "
        f"{SLOW_BETA:g}, alpha = {ALPHA:g}",
        table(),
        reading(),
        NO_TRAINING,
        figures=figures.save(draw(), folder, "nested-emas"),
    )
