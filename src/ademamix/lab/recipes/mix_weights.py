"""The weights of m1 and m2 under two formulations: the paper's figures weights-m1-m2 and schedulers-convex.

AdEMAMix moves by eta (m1 + alpha m2), the convex mix by eta ((1 - alpha) m1 + alpha m2). The paper gives the final
alphas, 8 and 0.9, a cosine for eta and a line for alpha. It leaves out eta and where its cosine ends: here eta is in
units of its largest value and falls to 1/100 of it, as from 0.001 to 0.00001 in the 110M models, without warm-up. Only
t/T matters; T is ours.

The schedules with which the convex mix equals AdEMAMix (the second figure) are drawn for alpha = 8. Those of alpha end
at 8 and at 8/9, so panel (b) draws each relative to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ademamix import alpha_at
from ademamix.lab.config import Cosine
from ademamix.lab.learning_rate import learning_rate
from ademamix.lab.recipes import NO_TRAINING, Scale, report
from ademamix.lab.report import figures

STEPS = 1000
ALPHA, CONVEX_ALPHA = 8.0, 0.9
COSINE = Cosine(kind="cosine", warmup=0, final=0.01)

Weights = tuple[float, float]
"""Of m1 and of m2, in units of the largest learning rate."""


def eta_at(t: int) -> float:
    """Return the learning rate at step t of `STEPS`, in units of its largest value.

    >>> eta_at(500), eta_at(1000)
    (0.505, 0.01)
    """
    return learning_rate(COSINE, 1.0, t, STEPS)


def added(t: int) -> Weights:
    r"""Return the weights of m1 and m2 in AdEMAMix.

    .. math:: \eta^{(t)} (m_1 + \alpha^{(t)} m_2)

    >>> [round(weight, 3) for weight in added(500)]
    [0.505, 2.02]
    """
    return eta_at(t), eta_at(t) * alpha_at(t, ALPHA, STEPS)


def convex(eta: float, alpha: float) -> Weights:
    r"""Return the weights of m1 and m2 in the convex mix.

    .. math:: \eta ((1 - \alpha) m_1 + \alpha m_2)

    >>> convex(eta=0.5, alpha=0.25)
    (0.375, 0.125)
    """
    return eta * (1 - alpha), eta * alpha


def convex_as_scheduled(t: int) -> Weights:
    """Return the weights in the convex mix when eta follows a cosine and alpha a line, as they do in AdEMAMix."""
    return convex(eta_at(t), alpha_at(t, CONVEX_ALPHA, STEPS))


def equal_schedules(t: int) -> tuple[float, float]:
    r"""Return the eta and the alpha with which the convex mix gives the weights of AdEMAMix.

    .. math:: \hat\eta^{(t)} = \eta^{(t)} (\alpha^{(t)} + 1), \qquad
              \hat\alpha^{(t)} = \frac{\alpha^{(t)}}{\alpha^{(t)} + 1}

    >>> import numpy as np
    >>> all(np.allclose(convex(*equal_schedules(t)), added(t), rtol=1e-14) for t in range(1, STEPS + 1))
    True

    Reference: appendix C of the paper, "Comparing m1 + alpha m2 versus (1 - alpha) m1 + alpha m2".
    """
    alpha = alpha_at(t, ALPHA, STEPS)
    return eta_at(t) * (alpha + 1), alpha / (alpha + 1)


def table() -> str:
    """Return weights and schedules at several steps as a plain table."""
    lines = [
        f"{'':8}{'m1 + alpha m2':>18}{'convex mix':>18}{'schedules of AdEMAMix':>26}{'that make them equal':>23}",
        f"{'t':8}" + f"{'m1':>9}{'m2':>9}" * 2 + f"{'eta':>17}{'alpha':>9}" + f"{'eta':>14}{'alpha':>9}",
    ]
    for name, t in _marks().items():
        lines.append(
            f"{name:8}"
            + "".join(f"{weight:9.3f}" for weight in (*added(t), *convex_as_scheduled(t)))
            + f"{eta_at(t):17.3f}{alpha_at(t, ALPHA, STEPS):9.3f}"
            + "{:14.3f}{:9.3f}".format(*equal_schedules(t))
        )
    return "\n".join(lines)


def _marks() -> dict[str, int]:
    return {"1": 1, "T/8": STEPS // 8, "T/4": STEPS // 4, "T/2": STEPS // 2, "3T/4": 3 * STEPS // 4, "T": STEPS}


def reading() -> str:
    """Say what the numbers show."""
    half = STEPS // 2
    hats = _over_time(equal_schedules)
    peak = int(hats[0].argmax())
    return (
        f"In AdEMAMix m1 keeps the learning rate to itself and m2 comes on top: at T/2 they weigh {added(half)[0]:.2f} "
        f"and {added(half)[1]:.2f}. In the convex mix what m2 gains m1 loses: {convex_as_scheduled(half)[0]:.2f} and "
        f"{convex_as_scheduled(half)[1]:.2f}. A cosine and a line give the two formulations different weights whatever "
        f"the final alpha, for the weight of m2 over that of m1 is alpha(t), a line, in the one, and alpha(t) / "
        f"(1 - alpha(t)), a curve, in the other. To equal AdEMAMix, the convex mix needs a learning rate that rises to "
        f"{hats[0].max():.1f} times its first value at t = {(peak + 1) / STEPS:.2f} T and an alpha that is at "
        f"{hats[1][STEPS // 8 - 1] / hats[1][-1]:.0%} of its end after T/8."
    )


def _over_time(pair: Callable[[int], tuple[float, float]]) -> NDArray[np.float64]:
    return np.array([pair(t) for t in range(1, STEPS + 1)]).T


PROGRESS = np.arange(1, STEPS + 1) / STEPS


def draw_weights() -> Figure:
    """Draw the paper's figure weights-m1-m2: the weights of m1 and m2 in (a) AdEMAMix and (b) the convex mix."""
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    formulas = (
        (added, f"(a) $\\eta^{{(t)}}(m_1+\\alpha^{{(t)}}m_2)$, $\\alpha={ALPHA:g}$"),
        (
            convex_as_scheduled,
            f"(b) $\\eta^{{(t)}}((1-\\alpha^{{(t)}})m_1+\\alpha^{{(t)}}m_2)$, $\\alpha={CONVEX_ALPHA:g}$",
        ),
    )
    for axes, (formula, title) in zip(panels, formulas, strict=True):
        for weights, average, look in zip(_over_time(formula), ("m_1", "m_2"), figures.SERIES[1:3], strict=True):
            figures.draw_line(axes, PROGRESS, weights, look, f"weight of ${average}$")
        axes.set_xlabel("$t/T$")
        figures.finish(axes, title, legend="upper right")
    panels[0].set_ylabel("weight, in units of the largest $\\eta$")
    return figure


def draw_schedules() -> Figure:
    """Draw the paper's figure schedulers-convex: AdEMAMix's eta and alpha, and those that the convex mix needs."""
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    ours, needed = figures.SERIES[1:3]
    etas, alphas = _over_time(lambda t: (eta_at(t), alpha_at(t, ALPHA, STEPS)))
    needed_etas, needed_alphas = _over_time(equal_schedules)
    figures.draw_line(panels[0], PROGRESS, etas, ours, "AdEMAMix: $\\eta^{(t)}$")
    figures.draw_line(panels[0], PROGRESS, needed_etas, needed, "convex mix: $\\hat\\eta^{(t)}$")
    figures.draw_line(panels[1], PROGRESS, alphas / alphas[-1], ours, f"AdEMAMix: $\\alpha^{{(t)}}/{ALPHA:g}$")
    end = f"({ALPHA:g}/{ALPHA + 1:g})"
    figures.draw_line(
        panels[1], PROGRESS, needed_alphas / needed_alphas[-1], needed, f"convex mix: $\\hat\\alpha^{{(t)}}/{end}$"
    )
    panels[0].set(xlabel="$t/T$", ylabel="in units of the largest $\\eta$")
    panels[1].set(xlabel="$t/T$", ylabel="share of the final value")
    figures.finish(panels[0], "(a) Schedules of $\\eta$", legend="upper right")
    figures.finish(panels[1], "(b) Schedules of $\\alpha$", legend="lower right")
    return figure


def reproduce(folder: Path, scale: Scale) -> str:
    """Write two figures into `folder` and return the report to print; scales do not differ."""
    return report(
        f"weights of m1 and m2 in units of the largest learning rate; alpha ends at {ALPHA:g}, and at {CONVEX_ALPHA:g} "
        "in the convex mix",
        table(),
        reading(),
        NO_TRAINING,
        figures=[
            *figures.save(draw_weights(), folder, "mix-weights"),
            *figures.save(draw_schedules(), folder, "mix-weights-schedules"),
        ],
    )
