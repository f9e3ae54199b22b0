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

from collections.abc import Iterator

import numpy as np

from ademamix.lab.recipes.formulas import steep_and_flat as toy
from ademamix.lab.recipes.formulas.descents import BETA1, BETA2, FAMILIES, SMOKE_STEPS, Descent, Method
from ademamix.lab.recipes.formulas.steep_and_flat import ALPHA, AT_REST, MOMENTA, RATE, SLOW_BETA, STEPS, Study
from ademamix.lab.report import figures
from ademamix.lab.report.charts import Range, Series
from ademamix.lab.report.landscape import Landscape
from ademamix.lab.reproduction.claims import Claim, every, lower, measured
from ademamix.lab.reproduction.panel import Panel, Panels, Table
from ademamix.lab.reproduction.scale import Scale

CORNERS: dict[str, figures.Corner] = {"a": "upper right", "b": "lower right"}


def plan(at: Scale) -> Panels:
    """Yield the paper's two panels: the trajectories of both methods from each momentum."""
    steps = SMOKE_STEPS if at.name == "smoke" else STEPS
    study = toy.run_study(steps)
    momenta = {case: f"m(0) = ({x:g}, {y:g})" for case, (x, y) in MOMENTA.items()}
    header = ["method", "lr", *(f"{m}, {what}" for m in momenta.values() for what in ("last", "last tenth"))]
    rows = []
    for method, runs in study.items():
        for cases in runs:
            lr = cases["a"].lr
            cells = [f"{value:.2g}" for run in cases.values() for value in (run.distances[-1], run.unrest)]
            rows.append([method, f"{lr:g}{'*' if lr == RATE else ''}", *cells])
    title = "Distance to the minimum after the last step, and the largest in the last tenth; * those of the figure"
    yield Panel(
        "f(x, y) = 8 (x - 1)^2 (1.3 x^2 + 2 x + 1) + 0.5 (y - 4)^2",
        charts=[_trajectories(case, toy.drawn(study)) for case in MOMENTA],
        tables=[Table(header, rows, title)],
        claims=list(_claims(study)),
        caption=f"From (0.3, -1.5) to the minimum at (1, 4) in {steps:,} steps, learning rate {RATE:g}, beta2 = "
        f"{BETA2:g}. Adam: beta1 = {SLOW_BETA:g}. AdEMAMix: beta1 = {BETA1:g}, beta3 = {SLOW_BETA:g}, alpha = "
        f"{ALPHA:g}, no warm-up. Arrow: where the momentum at the start pushes, not to scale. "
        "Markers: the last points.",
        warning=at.too_short(steps),
    )


def _claims(study: Study) -> Iterator[Claim]:
    adam, mix = toy.drawn(study)["Adam"], toy.drawn(study)["AdEMAMix"]
    unrest = [
        measured(f"unrest of Adam in ({case}), lr = {run.lr:g}", run.unrest)
        for cases in study["Adam"]
        for case, run in cases.items()
    ]
    yield Claim(
        "Adam fails to converge, at every learning rate tried", every(*(lower(AT_REST, each) for each in unrest))
    )
    cosines = [measured(f"cosine in ({case})", toy.first_direction(run, MOMENTA[case])) for case, run in adam.items()]
    yield Claim("Adam follows the direction imposed by m1(0)", every(*(lower(0.95, cosine) for cosine in cosines)))
    yield Claim(
        f"AdEMAMix converges, at the same learning rate, {RATE:g}",
        every(*(lower(measured(f"unrest of AdEMAMix in ({case})", run.unrest), AT_REST) for case, run in mix.items())),
    )
    yield Claim(
        "AdEMAMix initially overshoots the optimum",
        every(
            *(
                lower(toy.MINIMUM[1] + 1, measured(f"its highest y in ({case})", run.points[:, 1].max()))
                for case, run in mix.items()
            )
        ),
    )
    tenth = next(iter(mix.values())).steps // 10
    left = measured(f"the share of m2(0) that is left after {tenth} steps", SLOW_BETA**tenth)
    yield Claim(
        "AdEMAMix has to wait for the influence of m2(0) to fade away",
        every(
            lower(0.5, left),
            *(lower(1.0, measured(f"distance then in ({case})", run.distances[tenth])) for case, run in mix.items()),
        ),
    )


def _trajectories(case: str, runs: dict[Method, dict[str, Descent]]) -> Landscape:
    passed = np.concatenate([cases[case].points for cases in runs.values()])
    low, high = passed.min(axis=0) - 0.5, passed.max(axis=0) + 0.5
    x_range, y_range = (_range(low[axis], high[axis]) for axis in (0, 1))
    x, y = MOMENTA[case]
    return Landscape(
        f"({case}) $m_1^{{(0)}}=m_2^{{(0)}}=({{{x:g}}}, {{{y:g}}})$",
        "$x$",
        "$y$",
        [_path(method, cases[case]) for method, cases in runs.items()],
        toy.steep_and_flat,
        toy.START,
        toy.MINIMUM,
        x_range,
        y_range,
        push=(-x, -y),
        legend=CORNERS[case],
    )


def _path(label: str, run: Descent) -> Series:
    return Series.of(label, run.points[:, 0], run.points[:, 1], FAMILIES[run.method])


def _range(low: float, high: float) -> Range:
    return float(low), float(high)
