"""The schedule of beta3 against a linear one: the paper's figure beta_scheduler.

Both go from 0.9 to 0.999 and to 0.9999, as in the paper. Only t/T matters for their shape; T is ours. Panel (a) is the
paper's. Panels (b) and (c) are ours: the half-life, which the schedule of the paper raises by the same amount at each
step. It looks more aggressive, since a small beta has to grow fast to change its half-life at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ademamix import half_life
from ademamix.lab.recipes.formulas.schedules import HIGH, LOW, PROGRESS, SCHEDULES, START, STEPS, betas, half_lives
from ademamix.lab.report.charts import Lines, Series
from ademamix.lab.reproduction.claims import Claim, every, lower, measured, within
from ademamix.lab.reproduction.panel import Panel, Panels, Table
from ademamix.lab.reproduction.scale import Scale


def plan(at: Scale) -> Panels:
    """Yield beta3 as the paper draws it, and the half-life for each final value."""
    every_one = [(name, end) for end in (LOW, HIGH) for name in SCHEDULES]
    charts = [_chart(f"(a) $\\beta_3$ from {START:g}", "$\\beta_3$", every_one, betas)]
    for letter, end in zip("bc", (LOW, HIGH), strict=True):
        title = f"({letter}) Half-life, to $\\beta_3={end:g}$"
        charts.append(_chart(title, "half-life (steps)", [(name, end) for name in SCHEDULES], half_lives))
    quarters = {"T/4": STEPS // 4, "T/2": STEPS // 2, "3T/4": 3 * STEPS // 4, "T": STEPS}
    header = ["schedule", "to", *(f"beta3 at {t}" for t in quarters), *(f"half-life at {t}" for t in quarters)]
    rows = []
    for name, end in every_one:
        values = [betas(name, end)[t - 1] for t in quarters.values()]
        lives = [f"{half_life(beta):,.1f}" for beta in values]
        rows.append([name, f"{end:g}", *(f"{beta:.6f}" for beta in values), *lives])
    title = f"beta3 from {START:g} to {LOW:g} and to {HIGH:g} over T steps"
    yield Panel("The schedule of beta3", charts=charts, tables=[Table(header, rows, title)], claims=list(_claims()))


def _claims() -> Iterator[Claim]:
    rises = np.diff(half_lives("AdEMAMix", HIGH))
    yield Claim(
        "The schedule raises the half-life by the same amount at each step",
        lower(measured("the spread of the rises, relative to their mean", np.ptp(rises) / rises.mean()), 1e-6),
    )
    yield Claim(
        "A linear beta3 raises the half-life nearly all at its end",
        lower(measured("the half-life of a linear beta3 at T/2", half_lives("linear", HIGH)[STEPS // 2 - 1]), 15.0),
        ours=True,
    )
    slopes = np.diff(betas("AdEMAMix", HIGH)) * STEPS / (HIGH - START)
    yield Claim(
        "The schedule increases fast for small values of beta and slowly for large ones",
        every(
            lower(5.0, measured("its first slope, in units of the linear one", slopes[0])),
            lower(measured("its last slope, in units of the linear one", slopes[-1]), 0.02),
            lower(measured("the largest change of its slope", np.diff(slopes).max()), 0.0),
        ),
    )
    small, large = (half_life(beta + 0.0001) - half_life(beta) for beta in (0.9, 0.999))
    yield Claim(
        "The same increase has a bigger impact on a larger beta",
        lower(measured("the half-life gained by +0.0001 at 0.9", small), measured("the same at 0.999", large)),
    )
    yield Claim(
        "An increase of 0.0001 barely changes the half-life of beta = 0.9, and raises that of 0.999 by 77",
        every(
            lower(measured("the half-life gained at 0.9", small), 0.01),
            within(0.5, measured("the half-life gained at 0.999", large), 77.0),
        ),
    )
    apart = {name: float(abs(betas(name, HIGH) - betas(name, LOW)).max()) for name in SCHEDULES}
    yield Claim(
        "The two linear schedules look practically the same, those of AdEMAMix do not",
        every(
            lower(measured("the largest distance between the linear ones", apart["linear"]), 0.001),
            lower(0.05, measured("the largest distance between those of AdEMAMix", apart["AdEMAMix"])),
        ),
    )


def _chart(
    title: str, y_label: str, lines: list[tuple[str, float]], of: Callable[[str, float], NDArray[np.float64]]
) -> Lines:
    series = [Series.of(f"{name}, to {end:g}", PROGRESS, of(name, end)) for name, end in lines]
    return Lines(title, "$t/T$", y_label, series, legend="lower right" if of is betas else "upper left")
