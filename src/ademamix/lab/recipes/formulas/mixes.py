"""The weights of m1 and m2 as a sum and as a convex mix, under the schedules of eta and alpha."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ademamix import alpha_at
from ademamix.lab.config import Cosine
from ademamix.lab.optimizers.learning_rate import learning_rate
from ademamix.lab.report.charts import Lines, Series
from ademamix.lab.reproduction.panel import Table

STEPS = 1000
ALPHA, CONVEX_ALPHA = 8.0, 0.9
COSINE = Cosine(kind="cosine", warmup=0, final=0.01)
PROGRESS = np.arange(1, STEPS + 1) / STEPS
MARKS = {"1": 1, "T/8": STEPS // 8, "T/4": STEPS // 4, "T/2": STEPS // 2, "3T/4": 3 * STEPS // 4, "T": STEPS}
"""The steps of tables."""

Pair = tuple[float, float]
"""The weights of m1 and of m2, in units of the largest learning rate; or an eta and an alpha."""


def schedules(t: int, alpha: float = ALPHA) -> Pair:
    """Return eta, in units of its largest value, and alpha at step t of `STEPS`.

    >>> schedules(500), schedules(1000)
    ((0.505, 4.0), (0.01, 8.0))
    """
    return learning_rate(COSINE, 1.0, t, STEPS), alpha_at(t, alpha, STEPS)


def added(eta: float, alpha: float) -> Pair:
    r"""Return the weights of m1 and m2 in AdEMAMix, :math:`\eta (m_1 + \alpha m_2)`."""
    return eta, eta * alpha


def convex(eta: float, alpha: float) -> Pair:
    r"""Return the weights of m1 and m2 in the convex mix, :math:`\eta ((1 - \alpha) m_1 + \alpha m_2)`.

    >>> convex(eta=0.5, alpha=0.25)
    (0.375, 0.125)
    """
    return eta * (1 - alpha), eta * alpha


def equal_schedules(t: int) -> Pair:
    r"""Return the eta and the alpha with which the convex mix gives the weights of AdEMAMix.

    .. math:: \hat\eta^{(t)} = \eta^{(t)} (\alpha^{(t)} + 1), \qquad
              \hat\alpha^{(t)} = \frac{\alpha^{(t)}}{\alpha^{(t)} + 1}

    Reference: appendix C of the paper, "Comparing m1 + alpha m2 versus (1 - alpha) m1 + alpha m2".
    """
    eta, alpha = schedules(t)
    return eta * (alpha + 1), alpha / (alpha + 1)


def over_time(pair: Callable[[int], Pair]) -> NDArray[np.float64]:
    """Return both numbers of a pair at steps 1 to `STEPS`."""
    return np.array([pair(t) for t in range(1, STEPS + 1)]).T


def least_growth() -> float:
    """Return by how much m2/m1 in the convex mix grows at least more than a line does, whatever alpha ends at.

    Equal weights, up to a factor, would need one value of m2/m1 over t.
    """
    ratios = []
    for alpha in np.linspace(0.05, 0.95, 19):
        early, late = (convex(*schedules(t, alpha)) for t in (STEPS // 4, STEPS))
        ratios.append((late[1] / late[0]) / (4 * early[1] / early[0]))
    return min(ratios)


def chart(title: str, y_label: str, lines: dict[str, NDArray[np.float64]]) -> Lines:
    """Return lines over the share of the run."""
    series = [Series.of(label, PROGRESS, values) for label, values in lines.items()]
    return Lines(title, "$t/T$", y_label, series, legend="lower right" if "share" in y_label else "upper right")


def table(header: list[str], columns: list[NDArray[np.float64]]) -> Table:
    """Return the values of columns at a few steps."""
    return Table(header, [[name, *(f"{column[t - 1]:.3f}" for column in columns)] for name, t in MARKS.items()])
