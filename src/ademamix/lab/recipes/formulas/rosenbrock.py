"""Descents along the valley of the Rosenbrock function, at a learning rate that one rule chooses."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ademamix.lab.recipes.formulas.descents import METHODS, Descent, Method, measured_of_each, optimizer, points_passed
from ademamix.lab.reproduction.panel import Table

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


arrivals = partial(measured_of_each, "the first step within 1", lambda run: run.first_within(1.0))
path_lengths = partial(measured_of_each, "the path length", lambda run: run.path_length)
strayings = partial(measured_of_each, "the farthest from the floor", off_the_floor)
ends = partial(measured_of_each, "the last distance", lambda run: run.distances[-1])


class Study(NamedTuple):
    """Descents by method."""

    sweep: dict[Method, list[Descent]]
    """Over the method's beta, the smallest first."""
    rates: dict[Method, list[Descent]]
    """Those that the learning rate was chosen from."""


def run_study(steps: int = STEPS) -> Study:
    """Choose each method's learning rate at its smallest beta, and run its sweep with it."""
    rates = {method: [descend(method, SWEEP[method][0], lr, steps) for lr in RATES] for method in METHODS}
    chosen = {method: choose_rate(runs) for method, runs in rates.items()}
    sweep = {
        method: [first, *(descend(method, beta, first.lr, steps) for beta in SWEEP[method][1:])]
        for method, first in chosen.items()
    }
    return Study(sweep, rates)


def sweep_table(study: Study) -> Table:
    """Return the distances of the sweep over time, and how soon each descent arrives by how long a path."""
    runs = [run for method in METHODS for run in study.sweep[method]]
    marks = [runs[0].steps // part for part in (4, 2, 1)]
    header = ["method", "learning rate", *(f"distance after {mark:,}" for mark in marks), "first within 1", "path"]
    rows = []
    for run in runs:
        first = run.first_within(1.0)
        arrived = "never" if np.isinf(first) else f"{first:,.0f}"
        distances = [f"{run.distances[mark]:#.2g}" for mark in marks]
        rows.append([run.name, f"{run.lr:g}", *distances, arrived, f"{run.path_length:.1f}"])
    return Table(header, rows, f"Distance to the minimum; the way through the valley is {valley_length():.1f} long")


def rates_table(study: Study) -> Table:
    """Return what each learning rate that was tried leads to."""
    rows = []
    for method, runs in study.rates.items():
        stars = ["*" if run is study.sweep[method][0] else "" for run in runs]
        paths = [f"{run.path_length:.1f}{star}" for run, star in zip(runs, stars, strict=True)]
        ends = [f"{run.distances[-1]:#.2g}{star}" for run, star in zip(runs, stars, strict=True)]
        rows += [[f"{runs[0].name}, path length", *paths], [f"{runs[0].name}, last distance", *ends]]
    return Table(["", *(f"lr = {lr:g}" for lr in RATES)], rows, "The learning rates tried; a star marks the chosen one")
