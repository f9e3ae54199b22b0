"""Adam with one slow EMA and AdEMAMix with two, started with a wrong momentum: the paper's figure convergence-toy.

The paper gives the function, the start, the betas and the momenta at the start. Its text says that the start is
(0.3, 1.5), its caption (0.3, -1.5); here it is the caption's. The paper leaves out alpha, the learning rates and the
number of steps: alpha is our default, the learning rate the same for both methods, the smallest of `RATES` at which
AdEMAMix comes to rest (stays within `AT_REST` of the minimum for the last tenth of the steps) from both momenta. Adam
does so at none of them, so the choice does not decide the comparison; the report has all of them.

Both methods are taken as they are, with bias correction and t = 1 at the first step, only that m1 and m2 do not start
at 0. Bias correction makes the first steps of Adam long, for it divides the m1 given at the start by 1 - beta1^t.
Without it Adam does not come to rest either (a test runs it).
"""

from __future__ import annotations

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

Method = Literal["Adam", "AdEMAMix"]
Number = TypeVar("Number", float, NDArray[np.float64])

START = (0.3, -1.5)
MINIMUM = (1.0, 4.0)
MOMENTA = ((-3.0, 0.0), (-0.8, -3.0))
BETA1, SLOW_BETA, BETA2, ALPHA = 0.9, 0.999, 0.999, 5.0
METHODS: tuple[Method, ...] = ("Adam", "AdEMAMix")
RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
RATE = 0.01
STEPS, SMOKE_STEPS = 3000, 40
AT_REST = 0.1


def steep_and_flat(x: Number, y: Number) -> Number:
    r"""Evaluate a function that is steep along x and flat along y, with its minimum 0 at (1, 4).

    .. math:: f(x, y) = 8 (x - 1)^2 (1.3 x^2 + 2 x + 1) + 0.5 (y - 4)^2

    >>> steep_and_flat(*MINIMUM), round(steep_and_flat(*START), 2)
    (0.0, 21.86)

    Reference: appendix C of the paper, "Limitations of a single EMA".
    """
    return 8 * (x - 1) ** 2 * (1.3 * x**2 + 2 * x + 1) + 0.5 * (y - 4) ** 2


def gradient(points: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return the gradient of :func:`steep_and_flat` at each point, a row of `points`.

    .. math:: \nabla f = \big(8 x (x - 1) (5.2 x + 3.4),\ y - 4\big)

    >>> gradient(np.array([START])).round(3).tolist()
    [[-8.333, -5.5]]
    """
    x, y = points.T
    return np.stack([8 * x * (x - 1) * (5.2 * x + 3.4), y - 4], axis=1)


@dataclass(frozen=True, eq=False)
class Run:
    """Two descents, one for each of `MOMENTA`: their settings and the points they passed, the start first."""

    method: Method
    lr: float
    points: NDArray[np.float64]
    """By step, momentum and coordinate."""

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return len(self.points) - 1

    @property
    def distances(self) -> NDArray[np.float64]:
        """The distance to the minimum by step and momentum."""
        return np.asarray(np.linalg.norm(self.points - MINIMUM, axis=2))

    @property
    def unrest(self) -> NDArray[np.float64]:
        """The largest distance to the minimum in the last tenth of the steps, by momentum."""
        return np.asarray(self.distances[-(self.steps // 10) :].max(axis=0))


def descend(method: Method, lr: float, steps: int = STEPS) -> Run:
    """Minimise the function in float64 from the start of the figure, with each of `MOMENTA`.

    >>> descend("Adam", lr=0.01, steps=1).points[1].round(2).tolist()
    [[3.91, -1.49], [1.27, 3.96]]
    """
    points = torch.tensor([START] * len(MOMENTA), dtype=torch.float64)  # coordinates are independent of each other
    momenta = torch.tensor(MOMENTA, dtype=torch.float64)
    state = {"step": torch.tensor(0.0), "exp_avg": momenta.clone(), "exp_avg_sq": torch.zeros_like(momenta)}
    optimizer: torch.optim.Optimizer
    if method == "Adam":
        optimizer = torch.optim.Adam([points], lr=lr, betas=(SLOW_BETA, BETA2))
    else:  # no schedules: the slow EMA starts full
        betas = (BETA1, BETA2, SLOW_BETA)
        optimizer = AdEMAMix([points], lr, betas, alpha=ALPHA, alpha_warmup=0, beta3_warmup=0, weight_decay=0.0)
        state |= {"slow_step": torch.tensor(0.0), "exp_avg_slow": momenta.clone()}
    optimizer.state[points] = state
    passed = [points.numpy().copy()]
    for _ in range(steps):
        points.grad = torch.from_numpy(gradient(passed[-1]))
        optimizer.step()
        passed.append(points.numpy().copy())
    return Run(method, lr, np.array(passed))


def run_study(steps: int = STEPS) -> dict[Method, list[Run]]:
    """Run both methods at each of `RATES`."""
    return {method: [descend(method, lr, steps) for lr in RATES] for method in METHODS}


def drawn(study: dict[Method, list[Run]]) -> dict[Method, Run]:
    """Return the runs of the figure: those at `RATE`."""
    return {method: runs[RATES.index(RATE)] for method, runs in study.items()}


def table(study: dict[Method, list[Run]]) -> str:
    """Return the last distance and the unrest of every run as a plain table; a star marks those of the figure."""
    columns = [f"({case}) m(0) = ({x:g}, {y:g})" for case, (x, y) in zip("ab", MOMENTA, strict=True)]
    lines = [
        f"{'':21}" + "".join(f"{column:>27}" for column in columns),
        f"{'method':12}{'lr':9}" + f"{'last':>14}{'last tenth':>13}" * len(MOMENTA),
    ]
    for runs in study.values():
        for run in runs:
            rate = f"{run.lr:g}{'*' if run.lr == RATE else ''}"
            cells = zip(run.distances[-1], run.unrest, strict=True)
            lines.append(f"{run.method:12}{rate:9}" + "".join(f"{last:14.2g}{worst:13.2g}" for last, worst in cells))
    return "\n".join(lines)


def reading(study: dict[Method, list[Run]]) -> str:
    """Say what the numbers of the full study show; a test holds every statement to them."""
    adam, mix = drawn(study).values()
    return (
        f"Distances to the minimum after the last step, and the largest in the last {mix.steps // 10} steps. Adam "
        f"follows the momentum it was given: in (a) along x to {adam.points[:, 0, 0].max():.1f}, in (b) along y to "
        f"{adam.points[:, 1, 1].max():.1f}, past the minimum at (1, 4); it swings about it and comes to rest at no "
        f"learning rate of the table. AdEMAMix, at the same rate (*), overshoots too, to y = "
        f"{mix.points[:, 0, 1].max():.1f} and {mix.points[:, 1, 1].max():.1f}, and comes to rest as m2(0) fades, of "
        f"which {SLOW_BETA**mix.steps:.0%} is left: its fast EMA corrects the slow one."
    )


def draw(study: dict[Method, list[Run]]) -> Figure:
    """Draw the paper's two panels: the trajectories of both methods from each momentum."""
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    panels = figure.subplots(1, 2)
    corners: tuple[figures.Corner, ...] = ("upper right", "lower right")
    for case, (axes, panel, corner) in enumerate(zip(panels, "ab", corners, strict=True)):
        x, y = MOMENTA[case]
        _draw_case(axes, drawn(study), case)
        title = f"({panel}) $m_1^{{(0)}}=m_2^{{(0)}}=({{{x:g}}}, {{{y:g}}})$"
        figures.finish(axes, title, legend=corner, grid=False)
    figure.supxlabel(
        f"{drawn(study)['Adam'].steps:,} steps, learning rate {RATE:g}, $\\beta_2={BETA2:g}$.  Adam: "
        f"$\\beta_1={SLOW_BETA:g}$.  AdEMAMix: $\\beta_1={BETA1:g}$, $\\beta_3={SLOW_BETA:g}$, $\\alpha={ALPHA:g}$, no "
        "warm-up.\nArrow: where the momentum at the start pushes, not to scale.  Star: the minimum.  Large markers: "
        "the last points.",
        fontsize=9.5,
    )
    return figure


def _draw_case(axes: Axes, runs: dict[Method, Run], case: int) -> None:
    passed = np.concatenate([run.points[:, case] for run in runs.values()])
    (left, bottom), (right, top) = low, high = passed.min(axis=0) - 0.5, passed.max(axis=0) + 0.5
    grid = np.meshgrid(np.linspace(left, right, 250), np.linspace(bottom, top, 250))
    levels = np.geomspace(0.1, 100_000, 13)
    axes.contourf(*grid, steep_and_flat(*grid), levels=levels, norm=LogNorm(0.1, 1e12), cmap="Greys")
    for run, look in zip(runs.values(), (figures.ADAM[0], figures.ADEMAMIX[0]), strict=True):
        figures.draw_line(axes, run.points[:, case, 0], run.points[:, case, 1], look, run.method)
        axes.plot(*run.points[-1, case], **look.mark, markersize=11)
    axes.plot(*MINIMUM, "*", color="red", markeredgecolor="white", markersize=13, zorder=6)
    push = -np.array(MOMENTA[case])
    tip = START + push * 0.2 / abs(push / (high - low)).max()
    axes.annotate("", tip, START, arrowprops={"arrowstyle": "-|>", "linewidth": 2, "shrinkA": 0}, zorder=5)
    axes.annotate("start", START, (-6, 2), textcoords="offset points", ha="right", fontsize=9)
    axes.set(xlabel="$x$", ylabel="$y$", xlim=(left, right), ylim=(bottom, top))


def reproduce(folder: Path, scale: Scale) -> str:
    """Run the study, write `toy-two-emas.png` and `.svg` into `folder`, and return the report to print."""
    steps = SMOKE_STEPS if scale == "smoke" else STEPS
    study = run_study(steps)
    figure = draw(study)
    return report(
        "f(x, y) = 8 (x - 1)^2 (1.3 x^2 + 2 x + 1) + 0.5 (y - 4)^2 from (0.3, -1.5), minimum at (1, 4); "
        f"{steps:,} steps; Adam with beta1 = {SLOW_BETA:g}, AdEMAMix with beta1 = {BETA1:g}, beta3 = {SLOW_BETA:g}, "
        f"alpha = {ALPHA:g}; beta2 = {BETA2:g}",
        table(study),
        figures.warn_of_smoke(figure, steps) if scale == "smoke" else reading(study),
        figures=figures.save(figure, folder, "toy-two-emas"),
    )
