"""The schedule of beta3 against a linear one: the paper's figure beta_scheduler.

Both go from 0.9 to 0.999 and to 0.9999, as in the paper. Only t/T matters for their shape; T is ours. Panel (a) is the
paper's. Panels (b) and (c) are ours: the half-life, which the schedule of the paper raises linearly.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ademamix import beta3_at, half_life
from ademamix.lab.recipes import NO_TRAINING, Scale, report
from ademamix.lab.report import figures

STEPS = 1000
START = 0.9
ENDS = (0.999, 0.9999)


def paper_schedule(t: int, end: float) -> float:
    """Return AdEMAMix's beta3 at step t of `STEPS`.

    >>> round(paper_schedule(500, end=0.9999), 4)
    0.9998
    """
    return beta3_at(t, end, START, STEPS)


def linear_schedule(t: int, end: float) -> float:
    r"""Return what would be beta3 at step t if it grew linearly.

    .. math:: \beta_{start} + (\beta_{end} - \beta_{start})\, t/T

    >>> round(linear_schedule(500, end=0.9999), 5)
    0.94995
    """
    return START + (end - START) * t / STEPS


SCHEDULES: dict[str, Callable[[int, float], float]] = {"AdEMAMix": paper_schedule, "linear": linear_schedule}
LOOKS = {
    ("AdEMAMix", 0.999): figures.SERIES[3],
    ("AdEMAMix", 0.9999): figures.SERIES[0],
    ("linear", 0.999): figures.SERIES[4],
    ("linear", 0.9999): figures.SERIES[2],
}


def betas(name: str, end: float) -> NDArray[np.float64]:
    """Return beta3 at steps 1 to `STEPS` under one of `SCHEDULES`."""
    return np.array([SCHEDULES[name](t, end) for t in range(1, STEPS + 1)])


def half_lives(name: str, end: float) -> NDArray[np.float64]:
    """Return the half-life at steps 1 to `STEPS` under one of `SCHEDULES`."""
    return np.array([half_life(beta) for beta in betas(name, end)])


def table() -> str:
    """Return beta3 and its half-life after 1/4, 1/2, 3/4 and all of the steps as a plain table."""
    quarters = [STEPS // 4, STEPS // 2, 3 * STEPS // 4, STEPS]
    lines = [
        f"{'':20}{'beta3 at t =':>14}{'':26}{'half-life in steps at t =':>29}",
        f"{'schedule':12}{'to':8}" + "".join(f"{name:>10}" for name in ("T/4", "T/2", "3T/4", "T") * 2),
    ]
    for end in ENDS:
        for name, schedule in SCHEDULES.items():
            values = [schedule(t, end) for t in quarters]
            lines.append(
                f"{name:12}{end:<8g}"
                + "".join(f"{beta:10.6f}" for beta in values)
                + "".join(f"{half_life(beta):10,.1f}" for beta in values)
            )
    return "\n".join(line.rstrip() for line in lines)


def reading() -> str:
    """Say what the numbers show."""
    low, high = ENDS
    apart = {name: abs(betas(name, high) - betas(name, low)).max() for name in SCHEDULES}
    paper, linear = (half_life(schedule(STEPS // 2, high)) for schedule in (paper_schedule, linear_schedule))
    tenth = (paper_schedule(STEPS // 10, high) - START) / (high - START)
    return (
        f"AdEMAMix's schedule raises the half-life by the same amount at each step: half way to {high:g} it is "
        f"{paper:,.0f} steps, where a linear beta3 has {linear:.0f} and makes up for it at the end. It looks more "
        f"aggressive, covering {tenth:.0%} of the way in beta in the first tenth, for a small beta has to grow fast to "
        f"change its half-life at all: +0.0001 adds {half_life(0.9001) - half_life(0.9):.3f} steps at 0.9, and "
        f"{half_life(0.9991) - half_life(0.999):.0f} at 0.999. The linear schedules to {low:g} and {high:g} are never "
        f"more than {apart['linear']:.4f} apart until they end, though their half-lives end ten times apart; "
        f"AdEMAMix's are up to {apart['AdEMAMix']:.3f} apart."
    )


def draw() -> Figure:
    """Draw beta3 as the paper does, and the half-life for each final value."""
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    beta, *lives = figure.subplots(1, 3, width_ratios=(1.2, 1, 1))
    progress = np.arange(1, STEPS + 1) / STEPS
    for (name, end), look in LOOKS.items():
        label = f"{name}, to {end:g}"
        figures.draw_line(beta, progress, betas(name, end), look, label)
        figures.draw_line(lives[ENDS.index(end)], progress, half_lives(name, end), look, label)
    for axes in (beta, *lives):
        axes.set_xlabel("$t/T$")
    beta.set_ylabel("$\\beta_3$")
    lives[0].set_ylabel("half-life (steps)")
    figures.finish(beta, f"(a) $\\beta_3$ from {START:g}", legend="lower right")
    for axes, end, panel in zip(lives, ENDS, "bc", strict=True):
        figures.finish(axes, f"({panel}) Half-life, to $\\beta_3={end:g}$", legend="upper left")
    return figure


def reproduce(folder: Path, scale: Scale) -> str:
    """Write `beta3-schedule.png` and `.svg` into `folder` and return the report to print; scales do not differ."""
    return report(
        f"beta3 from {START:g} to {ENDS[0]:g} and to {ENDS[1]:g} over T steps",
        table(),
        reading(),
        NO_TRAINING,
        figures=figures.save(draw(), folder, "beta3-schedule"),
    )
