"""Adam and AdEMAMix on the Rosenbrock function: the paper's figure toy_rosenbrock.

The paper gives the start, beta2, alpha and AdEMAMix's beta1, and says that AdEMAMix's learning rate is reduced. The
learning rates, the values of beta1 and beta3 and the number of steps are ours. The learning rate decides how much the
iterates oscillate, so one rule chooses it for both methods: the largest of `RATES` at which the path is at most
`LONGEST_PATH` times as long as the way through the valley, found at each method's smallest beta. The search is part
of the recipe and printed with its result.

How far the comparison depends on that limit, with learning rates from 0.005 to 2: from 1.25 to 1.4 AdEMAMix ends
closer; at 1.5 it settles within 0.1 sooner (step 946 against 1,464) but Adam ends as close; at 1.7 Adam ends far
closer; at 1.2 Adam is ahead. So the figure compares speed at equal, small oscillation. It does not show that Adam is
slow at every learning rate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ademamix import AdEMAMix
from ademamix.lab.recipes import Scale, report
from ademamix.lab.report import figures
from ademamix.lab.report.figures import Look

Method = Literal["Adam", "AdEMAMix"]
Number = TypeVar("Number", float, NDArray[np.float64])

START = (-3.0, 5.0)
MINIMUM = (1.0, 1.0)
BETA1, BETA2, ALPHA = 0.9, 0.999, 9.0
STEPS, SMOKE_STEPS = 3000, 40
SWEEP: dict[Method, tuple[float, ...]] = {"Adam": (0.9, 0.99, 0.999), "AdEMAMix": (0.99, 0.995, 0.999)}
RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
LONGEST_PATH = 4 / 3


def rosenbrock(x1: Number, x2: Number) -> Number:
    r"""Evaluate the Rosenbrock function, a curved valley with its minimum 0 at (1, 1).

    .. math:: f(x_1, x_2) = (1 - x_1)^2 + 100 (x_2 - x_1^2)^2

    >>> rosenbrock(*START), rosenbrock(*MINIMUM)
    (1616.0, 0.0)

    Reference: figure toy_rosenbrock of the paper.
    """
    return (1 - x1) ** 2 + 100 * (x2 - x1**2) ** 2


def gradient(x1: float, x2: float) -> tuple[float, float]:
    r"""Return the gradient of :func:`rosenbrock`; written out, it is twenty times as fast as autograd.

    .. math:: \nabla f = \big(-2 (1 - x_1) - 400 x_1 (x_2 - x_1^2),\ 200 (x_2 - x_1^2)\big)

    >>> gradient(*START)
    (-4808.0, -800.0)
    """
    above_floor = x2 - x1**2
    return -2 * (1 - x1) - 400 * x1 * above_floor, 200 * above_floor


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


@dataclass(frozen=True, eq=False)
class Run:
    """One descent: its settings and the points it passed, the start first."""

    method: Method
    beta: float
    lr: float
    points: NDArray[np.float64]

    @property
    def beta_name(self) -> str:
        """The beta that the figure varies for this method."""
        return "beta1" if self.method == "Adam" else "beta3"

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return len(self.points) - 1

    @property
    def distances(self) -> NDArray[np.float64]:
        """The distance to the minimum before the first step and after each."""
        return np.asarray(np.linalg.norm(self.points - MINIMUM, axis=1))

    @property
    def path_length(self) -> float:
        """The length of the path through all points: our measure of oscillation."""
        return float(np.linalg.norm(np.diff(self.points, axis=0), axis=1).sum())

    def first_within(self, distance: float) -> int | None:
        """Return the first step after which the iterate is nearer to the minimum than `distance`."""
        near = np.flatnonzero(self.distances < distance)
        return int(near[0]) if len(near) else None


@dataclass(frozen=True)
class Study:
    """The runs of the figure by method, and those that the learning rates were chosen from."""

    sweep: dict[Method, list[Run]]
    rates: dict[Method, list[Run]]


def descend(method: Method, beta: float, lr: float, steps: int = STEPS) -> Run:
    """Minimise the Rosenbrock function from (-3, 5) in float64; `beta` is Adam's beta1 or AdEMAMix's beta3.

    >>> run = descend("Adam", beta=0.9, lr=0.2, steps=10)
    >>> run.points[:2].round(3).tolist()
    [[-3.0, 5.0], [-2.8, 5.2]]
    """
    point = torch.tensor(START, dtype=torch.float64)
    optimizer: torch.optim.Optimizer
    if method == "Adam":
        optimizer = torch.optim.Adam([point], lr=lr, betas=(beta, BETA2))
    else:  # the figure's AdEMAMix has no schedules
        optimizer = AdEMAMix(
            [point],
            lr=lr,
            betas=(BETA1, BETA2, beta),
            alpha=ALPHA,
            alpha_warmup=0,
            beta3_warmup=0,
            weight_decay=0.0,
        )
    points = np.empty((steps + 1, 2))
    points[0] = START
    for step in range(1, steps + 1):
        point.grad = torch.tensor(gradient(*points[step - 1].tolist()), dtype=torch.float64)
        optimizer.step()
        points[step] = point.numpy()
    return Run(method, beta, lr, points)


def run_study(steps: int = STEPS, progress: Callable[[int, int], None] | None = None) -> Study:
    """Choose both learning rates, then sweep beta1 and beta3 at them; `progress` is told (runs done, runs in all)."""
    total = sum(len(RATES) + len(betas) - 1 for betas in SWEEP.values())
    done = 0

    def one(method: Method, beta: float, lr: float) -> Run:
        nonlocal done
        run = descend(method, beta, lr, steps)
        done += 1
        if progress is not None:
            progress(done, total)
        return run

    sweep: dict[Method, list[Run]] = {}
    rates: dict[Method, list[Run]] = {}
    for method, betas in SWEEP.items():
        rates[method] = [one(method, betas[0], lr) for lr in RATES]
        chosen = choose_rate(rates[method])
        sweep[method] = [chosen, *(one(method, beta, chosen.lr) for beta in betas[1:])]
    return Study(sweep, rates)


def choose_rate(runs: list[Run]) -> Run:
    """Return the run of the largest learning rate whose path is at most `LONGEST_PATH` times the way in the valley."""
    longest = LONGEST_PATH * valley_length()
    return max((run for run in runs if run.path_length <= longest), key=lambda run: run.lr)


def table(study: Study) -> str:
    """Return the sweep as a plain table: distances after 1/4, 1/2 and all of the steps, first arrival, path length."""
    marks = _marks(study)
    lines = [
        f"{'':28}{'distance to the minimum after step':>36}{'first step':>13}{'path':>9}",
        f"{'method':10}{'beta':14}{'lr':4}"
        + "".join(f"{mark:12,}" for mark in marks)
        + f"{'within 1':>13}{'length':>9}",
    ]
    for run in (*study.sweep["Adam"], *study.sweep["AdEMAMix"]):
        first = run.first_within(1.0)
        lines.append(
            f"{run.method:10}{f'{run.beta_name} = {run.beta:g}':14}{run.lr:<4g}"
            + "".join(f"{run.distances[mark]:#12.2g}" for mark in marks)
            + f"{'never' if first is None else f'{first:,}':>13}{run.path_length:9.1f}"
        )
    return "\n".join(lines)


def rates_table(study: Study) -> str:
    """Return the search for the learning rates as a plain table; a star marks what was chosen."""
    lines = [f"{'learning rate':40}" + "".join(f"{lr:>8g} " for lr in RATES)]
    for method, runs in study.rates.items():
        name = f"{method}, {runs[0].beta_name} = {runs[0].beta:g}"
        stars = ["*" if run is study.sweep[method][0] else " " for run in runs]
        for title, cells in (
            ("path length", [f"{run.path_length:.1f}" for run in runs]),
            ("last distance", [f"{run.distances[-1]:#.2g}" for run in runs]),
        ):
            row = "".join(f"{cell:>8}{star}" for cell, star in zip(cells, stars, strict=True))
            lines.append(f"{name:24}{title:16}{row}")
    return "\n".join(line.rstrip() for line in lines)


def reading(study: Study) -> str:
    """Say what the numbers of the full study show, and what they do not; a test holds every statement to them."""
    adam, slow = study.sweep["Adam"], study.sweep["AdEMAMix"]
    fast, last = adam[-1], slow[-1]
    return (
        f"Adam: a larger beta1 comes within 1 of the minimum sooner, but oscillates: at {fast.beta:g} the path is "
        f"{fast.path_length:.1f} long, where the way through the valley is {valley_length():.1f}, and it ends "
        f"{fast.distances[-1]:#.2g} from the minimum. AdEMAMix: beta3 = {slow[0].beta:g} and {slow[1].beta:g} come "
        f"within 1 sooner than beta1 = {adam[0].beta:g} and {adam[1].beta:g}, on paths about as short as that of "
        f"{adam[0].beta:g}, and end closer to the minimum than every Adam run of this table; beta3 = {last.beta:g}, a "
        f"memory of {1 / (1 - last.beta):,.0f} steps, does not zigzag, but runs past the minimum, as far as "
        f"x1 = {last.points[:, 0].max():.1f}."
    )


def rates_reading(study: Study) -> str:
    """Say how the learning rates were chosen, and how far the comparison depends on it."""
    adam, slow = study.sweep["Adam"][0], study.sweep["AdEMAMix"][0]
    return (
        "The paper does not give its learning rates. Ours (*) are the largest at which the path is at most a third "
        "longer than the way through the valley, one rule for both methods. The choice matters: at "
        f"{RATES[-1]:g}, over a longer path, Adam ends closer than AdEMAMix at {slow.lr:g}; and AdEMAMix at "
        f"{adam.lr / (1 + ALPHA):g}, which is Adam's {adam.lr:g} divided by 1 + alpha, ends behind Adam."
    )


def _marks(study: Study) -> tuple[int, int, int]:
    steps = study.sweep["Adam"][0].steps
    return steps // 4, steps // 2, steps


LOOKS: dict[Method, tuple[Look, ...]] = {"Adam": figures.ADAM, "AdEMAMix": figures.ADEMAMIX}
WIDTHS: dict[Method, tuple[float, ...]] = {"Adam": (1.8, 1.4, 1.0), "AdEMAMix": (1.3, 2.2, 3.2)}
"""Nested, since trajectories coincide."""


def draw(study: Study) -> Figure:
    """Draw the paper's three panels: distance to the minimum, Adam's trajectories, AdEMAMix's trajectories."""
    figure = Figure(figsize=(14, 5.2), layout="constrained")
    distance, adam, ademamix = figure.subplots(1, 3, width_ratios=(1.1, 1, 1))
    _draw_distances(distance, study)
    _draw_trajectories(adam, study.sweep["Adam"], "(b) Adam: a larger $\\beta_1$ is faster, but oscillates")
    _draw_trajectories(ademamix, study.sweep["AdEMAMix"], "(c) AdEMAMix: fast, and along the valley")
    quarter, _, steps = _marks(study)
    figure.supxlabel(
        f"Rosenbrock function from (−3, 5), {steps:,} steps, $\\beta_2={BETA2:g}$.  Adam: learning rate "
        f"{study.sweep['Adam'][0].lr:g}.  AdEMAMix: learning rate {study.sweep['AdEMAMix'][0].lr:g}, "
        f"$\\beta_1={BETA1:g}$, $\\alpha={ALPHA:g}$, no warm-up.\n"
        f"Markers in (b) and (c): where a run is after {quarter} steps.  Dips in (a): where a run passes the minimum.",
        fontsize=9.5,
    )
    return figure


def _draw_distances(axes: Axes, study: Study) -> None:
    for method, runs in study.sweep.items():
        for run, look in zip(runs, LOOKS[method], strict=True):
            figures.draw_line(axes, range(run.steps + 1), run.distances, look, label=f"{method}, {_beta(run)}")
    axes.set_yscale("log")
    axes.set(xlabel="step", ylabel="distance $\\|x-x^\\star\\|_2$")
    figures.finish(axes, "(a) Distance to the minimum: AdEMAMix ends closest", legend="lower left")


def _draw_trajectories(axes: Axes, runs: list[Run], title: str) -> None:
    x1, x2 = np.meshgrid(np.linspace(-3.4, 2.5, 250), np.linspace(-1.5, 6.5, 250))
    levels = np.geomspace(0.1, 100_000, 13)
    axes.contourf(x1, x2, rosenbrock(x1, x2), levels=levels, norm=LogNorm(0.1, 1e12), cmap="Greys")
    quarter = runs[0].steps // 4
    method = runs[0].method
    for order, (run, look, width) in enumerate(zip(runs, LOOKS[method], WIDTHS[method], strict=True)):
        axes.plot(*run.points.T, **look.stroke, linewidth=width, zorder=3 - 0.1 * order)
        axes.plot(*run.points[quarter], **look.mark, linestyle="none", markersize=8, zorder=5)
        axes.plot([], [], **look.stroke | look.mark, linewidth=width, label=_beta(run))
    axes.plot(*MINIMUM, "*", color="red", markeredgecolor="white", markersize=15, zorder=6)
    axes.annotate("start", START, (-3.3, 4.55), fontsize=9)
    axes.annotate("minimum", MINIMUM, (1.2, 0.6), fontsize=9)
    axes.set(xlabel="$x_1$", ylabel="$x_2$", xlim=(-3.4, 2.5), ylim=(-1.5, 6.5))
    figures.finish(axes, title, legend="upper right", grid=False)


def _beta(run: Run) -> str:
    return f"$\\beta_{run.beta_name[-1]}={run.beta:g}$"


def reproduce(folder: Path, scale: Scale) -> str:
    """Run the study, write `toy-rosenbrock.png` and `.svg` into `folder`, and return the report to print."""
    steps = SMOKE_STEPS if scale == "smoke" else STEPS
    study = run_study(steps, progress=None if scale == "smoke" else _show_progress)
    parts = [
        "f(x1, x2) = (1 - x1)^2 + 100 (x2 - x1^2)^2 from (-3, 5), minimum at (1, 1)",
        table(study),
        reading(study),
        rates_table(study),
        rates_reading(study),
    ]
    figure = draw(study)
    if scale == "smoke":
        parts[2:] = [figures.warn_of_smoke(figure, steps)]
    return report(*parts, figures=figures.save(figure, folder, "toy-rosenbrock"))


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rrun {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done == 1:
        print(f"running {total} descents, about ten seconds", file=sys.stderr, flush=True)
