"""Descents along the valley of the Rosenbrock function, at a learning rate that one rule chooses."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ademamix.lab.recipes.formulas.descents import METHODS, Descent, Method, optimizer, points_passed

START, MINIMUM = (-3.0, 5.0), (1.0, 1.0)
ALPHA = 9.0
STEPS = 3000
SWEEP: dict[Method, tuple[float, ...]] = {"Adam": (0.9, 0.99, 0.999), "AdEMAMix": (0.99, 0.995, 0.999)}
RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
LONGEST_PATH = 4 / 3


def rosenbrock(x1: NDArray[np.float64], x2: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Evaluate :math:`(1 - x_1)^2 + 100 (x_2 - x_1^2)^2`, a curved valley with its minimum 0 at (1, 1).

    >>> float(rosenbrock(*np.array(START)))
    1616.0
    """
    return (1 - x1) ** 2 + 100 * (x2 - x1**2) ** 2


def gradient(point: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the gradient of :func:`rosenbrock`; written out, it is twenty times as fast as autograd.

    >>> gradient(np.array(START)).tolist()
    [-4808.0, -800.0]
    """
    x1, x2 = point.tolist()
    above_floor = x2 - x1**2
    return np.array([-2 * (1 - x1) - 400 * x1 * above_floor, 200 * above_floor])


def valley_length() -> float:
    """Return the length of the way from the start straight to the valley's floor, x2 = x1^2, and along it to (1, 1).

    >>> round(valley_length(), 2)
    8.06
    """
    x1 = np.linspace(START[0], MINIMUM[0], 100_001)
    floor = np.stack([x1, x1**2], axis=1)
    to_floor = np.linalg.norm(floor - START, axis=1)
    nearest = int(to_floor.argmin())
    return float(to_floor[nearest] + np.linalg.norm(np.diff(floor[nearest:], axis=0), axis=1).sum())


def descend(method: Method, beta: float, lr: float, steps: int = STEPS) -> Descent:
    """Minimise the function from the start in float64.

    >>> descend("Adam", beta=0.9, lr=0.2, steps=10).points[:2].round(3).tolist()
    [[-3.0, 5.0], [-2.8, 5.2]]
    """
    point = torch.tensor(START, dtype=torch.float64)
    passed = points_passed(point, optimizer(method, point, lr, beta, ALPHA), gradient, steps)
    return Descent(method, beta, lr, passed, MINIMUM)


def choose_rate(runs: list[Descent]) -> Descent:
    """Return the run of the largest learning rate whose path is at most `LONGEST_PATH` times the way in the valley."""
    longest = LONGEST_PATH * valley_length()
    return max((run for run in runs if run.path_length <= longest), key=lambda run: run.lr)


def off_the_floor(run: Descent) -> float:
    """Return how far from the valley's floor a descent strays after its first tenth: how much it zigzags."""
    late = run.points[run.steps // 10 :]
    return float(abs(late[:, 1] - late[:, 0] ** 2).max())


def study(steps: int = STEPS) -> tuple[dict[Method, list[Descent]], dict[Method, list[Descent]]]:
    """Return by method the sweep over its beta, and the runs that its learning rate was chosen from."""
    rates = {method: [descend(method, SWEEP[method][0], lr, steps) for lr in RATES] for method in METHODS}
    chosen = {method: choose_rate(runs) for method, runs in rates.items()}
    sweep = {
        method: [first, *(descend(method, beta, first.lr, steps) for beta in SWEEP[method][1:])]
        for method, first in chosen.items()
    }
    return sweep, rates
