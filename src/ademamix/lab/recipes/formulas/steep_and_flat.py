"""Descents on a function that is steep along x and flat along y, from a momentum that leads astray."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ademamix.lab.recipes.formulas.descents import METHODS, Descent, Method, optimizer, points_passed
from ademamix.lab.report.charts import Range
from ademamix.lab.reproduction.panel import Table

START, MINIMUM = (0.3, -1.5), (1.0, 4.0)
MOMENTA = {"a": (-3.0, 0.0), "b": (-0.8, -3.0)}
SLOW_BETA, ALPHA = 0.999, 5.0
RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
RATE = 0.01
STEPS = 3000
AT_REST = 0.1

Study = dict[Method, list[dict[str, Descent]]]
"""By method, learning rate and case: a or b."""


def steep_and_flat(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Evaluate :math:`8 (x - 1)^2 (1.3 x^2 + 2 x + 1) + 0.5 (y - 4)^2`, steep along x and flat along y.

    >>> float(steep_and_flat(*np.array(START)).round(2))
    21.86

    Reference: appendix C of the paper, "Limitations of a single EMA".
    """
    return 8 * (x - 1) ** 2 * (1.3 * x**2 + 2 * x + 1) + 0.5 * (y - 4) ** 2


def gradient(points: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return the gradient of :func:`steep_and_flat` at each point, a row of `points`.

    >>> gradient(np.array([START])).round(3).tolist()
    [[-8.333, -5.5]]
    """
    x, y = points.T
    return np.stack([8 * x * (x - 1) * (5.2 * x + 3.4), y - 4], axis=1)


def descend(method: Method, lr: float, steps: int = STEPS) -> dict[str, Descent]:
    """Minimise the function in float64 from the start, with each of `MOMENTA`.

    >>> {case: run.points[1].round(2).tolist() for case, run in descend("Adam", lr=0.01, steps=1).items()}
    {'a': [3.91, -1.49], 'b': [1.27, 3.96]}
    """
    points = torch.tensor([START] * len(MOMENTA), dtype=torch.float64)  # coordinates are independent of each other
    momenta = torch.tensor(list(MOMENTA.values()), dtype=torch.float64)
    stepping = optimizer(method, points, lr, SLOW_BETA, ALPHA)
    state = {"step": torch.tensor(0.0), "exp_avg": momenta.clone(), "exp_avg_sq": torch.zeros_like(momenta)}
    if method == "AdEMAMix":
        state |= {"slow_step": torch.tensor(0.0), "exp_avg_slow": momenta.clone()}
    stepping.state[points] = state
    passed = points_passed(points, stepping, gradient, steps)
    beta = SLOW_BETA
    return {case: Descent(method, beta, lr, passed[:, number], MINIMUM) for number, case in enumerate(MOMENTA)}


def run_study(steps: int = STEPS) -> Study:
    """Run both methods at each of `RATES`."""
    return {method: [descend(method, lr, steps) for lr in RATES] for method in METHODS}


def drawn(study: Study) -> dict[Method, dict[str, Descent]]:
    """Return the runs of the figure: those at `RATE`."""
    return {method: runs[RATES.index(RATE)] for method, runs in study.items()}


def first_direction(run: Descent, momentum: tuple[float, float]) -> float:
    """Return the cosine between the way of the first ten steps and where the momentum pushes."""
    way, push = run.points[10] - run.points[0], -np.array(momentum)
    return float(way @ push / np.linalg.norm(way) / np.linalg.norm(push))


def surroundings(runs: list[Descent]) -> tuple[Range, Range]:
    """Return the ranges of x and y that all points of some descents are in, with a margin."""
    passed = np.concatenate([run.points for run in runs])
    (left, bottom), (right, top) = passed.min(axis=0) - 0.5, passed.max(axis=0) + 0.5
    return (float(left), float(right)), (float(bottom), float(top))


def rates_table(study: Study) -> Table:
    """Return where each method ends at each learning rate, and whether it has come to rest."""
    momenta = [f"m(0) = ({x:g}, {y:g})" for x, y in MOMENTA.values()]
    header = ["method", "lr", *(f"{momentum}, {what}" for momentum in momenta for what in ("last", "last tenth"))]
    rows = []
    for method, runs in study.items():
        for lr, cases in zip(RATES, runs, strict=True):
            cells = [f"{value:.2g}" for run in cases.values() for value in (run.distances[-1], run.unrest)]
            rows.append([method, f"{lr:g}{'*' if lr == RATE else ''}", *cells])
    title = "Distance to the minimum after the last step, and the largest in the last tenth; * those of the figure"
    return Table(header, rows, title)
