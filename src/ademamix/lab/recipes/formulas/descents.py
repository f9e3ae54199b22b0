"""Descents on functions of two variables, for the toy recipes: where they pass, and how that is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ademamix import AdEMAMix
from ademamix.lab.report.charts import Series
from ademamix.lab.reproduction.claims import Check, Operand, Quantity, every, lower, measured

Method = Literal["Adam", "AdEMAMix"]
METHODS: tuple[Method, ...] = ("Adam", "AdEMAMix")
FAMILIES: dict[Method, str] = {"Adam": "adamw", "AdEMAMix": "ademamix"}
BETA1, BETA2 = 0.9, 0.999
SMOKE_STEPS = 40


@dataclass(frozen=True, eq=False)
class Descent:
    """One descent: the points that it passed, the start first, on its way to a minimum."""

    method: Method
    beta: float
    """Adam's beta1 or AdEMAMix's beta3."""
    lr: float
    points: NDArray[np.float64]
    minimum: tuple[float, float]

    def __str__(self) -> str:
        return f"{self.name}, lr = {self.lr:g}"

    @property
    def name(self) -> str:
        """The method and its beta."""
        return f"{self.method}, {self.beta_name} = {self.beta:g}"

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return len(self.points) - 1

    @property
    def beta_name(self) -> str:
        """The beta that belongs to the method."""
        return "beta1" if self.method == "Adam" else "beta3"

    @property
    def distances(self) -> NDArray[np.float64]:
        """The distance to the minimum before the first step and after each."""
        return np.asarray(np.linalg.norm(self.points - self.minimum, axis=1))

    @property
    def path_length(self) -> float:
        """The length of the path through all points: our measure of oscillation."""
        return float(np.linalg.norm(np.diff(self.points, axis=0), axis=1).sum())

    @property
    def unrest(self) -> float:
        """The largest distance to the minimum in the last tenth of the steps."""
        return float(self.distances[-(self.steps // 10) :].max())

    @property
    def symbol(self) -> str:
        """The beta in the legend of a chart."""
        return f"$\\beta_{self.beta_name[-1]}={self.beta:g}$"

    def path(self, label: str) -> Series:
        """Return the points for a chart."""
        return Series.of(label, self.points[:, 0], self.points[:, 1], FAMILIES[self.method])

    def approach(self) -> Series:
        """Return the distances over the steps for a chart."""
        return Series.of(f"{self.method}, {self.symbol}", range(self.steps + 1), self.distances, FAMILIES[self.method])

    def first_within(self, distance: float) -> float:
        """Return the first step after which the iterate is nearer to the minimum than `distance`; infinite: none is."""
        near = np.flatnonzero(self.distances < distance)
        return float(near[0]) if len(near) else np.inf


def optimizer(method: Method, point: torch.Tensor, lr: float, beta: float, alpha: float) -> torch.optim.Optimizer:
    """Return Adam with a beta1, or AdEMAMix with a beta3, an alpha and no schedules."""
    if method == "Adam":
        return torch.optim.Adam([point], lr=lr, betas=(beta, BETA2))
    betas = (BETA1, BETA2, beta)
    return AdEMAMix([point], lr, betas, alpha=alpha, alpha_warmup=0, beta3_warmup=0, weight_decay=0.0)


def points_passed(
    point: torch.Tensor,
    stepping: torch.optim.Optimizer,
    gradient: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    steps: int,
) -> NDArray[np.float64]:
    """Let an optimizer move a point, in place, and return all points that it passes, the first one included.

    >>> point = torch.tensor([1.0], dtype=torch.float64)
    >>> points_passed(point, torch.optim.SGD([point], lr=0.25), lambda x: 2 * x, steps=2).tolist()
    [[1.0], [0.5], [0.25]]
    """
    passed = [point.numpy().copy()]
    for _ in range(steps):
        point.grad = torch.from_numpy(gradient(passed[-1]))
        stepping.step()
        passed.append(point.numpy().copy())
    return np.array(passed)


def measured_of_each(what: str, of: Callable[[Descent], float], runs: Iterable[Descent]) -> list[Quantity]:
    """Return a number of each descent, for claims."""
    return [measured(f"{what} of {run}", of(run)) for run in runs]


def all_lower(below: Sequence[Operand], above: Sequence[Operand]) -> Check:
    """Check that each of some quantities is below each of others."""
    return every(*(lower(one, other) for one in below for other in above))
