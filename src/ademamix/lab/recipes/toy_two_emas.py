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

from ademamix.lab.recipes.formulas import steep_and_flat as toy
from ademamix.lab.recipes.formulas.descents import BETA1, BETA2, SMOKE_STEPS, Descent, all_lower
from ademamix.lab.recipes.formulas.steep_and_flat import ALPHA, AT_REST, MOMENTA, RATE, SLOW_BETA
from ademamix.lab.report import figures
from ademamix.lab.report.landscape import Landscape
from ademamix.lab.reproduction.claims import Claim, every, lower, measured
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale

CORNERS: dict[str, figures.Corner] = {"a": "upper right", "b": "lower right"}


def plan(at: Scale) -> Panels:
    """Yield the paper's two panels: the trajectories of both methods from each momentum."""
    steps = SMOKE_STEPS if at.name == "smoke" else toy.STEPS
    study = toy.run_study(steps)
    drawn = toy.drawn(study)
    yield Panel(
        "f(x, y) = 8 (x - 1)^2 (1.3 x^2 + 2 x + 1) + 0.5 (y - 4)^2",
        charts=[_trajectories(case, [cases[case] for cases in drawn.values()]) for case in MOMENTA],
        tables=[toy.rates_table(study)],
        claims=_claims(study, drawn["Adam"], drawn["AdEMAMix"]),
        caption=f"From (0.3, -1.5) to the minimum at (1, 4) in {steps:,} steps, learning rate {RATE:g}, beta2 = "
        f"{BETA2:g}. Adam: beta1 = {SLOW_BETA:g}. AdEMAMix: beta1 = {BETA1:g}, beta3 = {SLOW_BETA:g}, alpha = "
        f"{ALPHA:g}, no warm-up. Arrow: where the momentum at the start pushes, not to scale. "
        "Markers: the last points.",
        warning=at.too_short(steps),
    )


def _claims(study: toy.Study, adam: dict[str, Descent], mix: dict[str, Descent]) -> list[Claim]:
    restless = [
        measured(f"unrest of Adam in ({case}), lr = {run.lr:g}", run.unrest)
        for cases in study["Adam"]
        for case, run in cases.items()
    ]
    cosines = [measured(f"cosine in ({case})", toy.first_direction(run, MOMENTA[case])) for case, run in adam.items()]
    calm = [measured(f"unrest of AdEMAMix in ({case})", run.unrest) for case, run in mix.items()]
    tops = [measured(f"its highest y in ({case})", run.points[:, 1].max()) for case, run in mix.items()]
    tenth = mix["a"].steps // 10
    left = measured(f"the share of m2(0) that is left after {tenth} steps", SLOW_BETA**tenth)
    away = [measured(f"distance then in ({case})", run.distances[tenth]) for case, run in mix.items()]
    return [
        Claim("Adam fails to converge, at every learning rate tried", all_lower([AT_REST], restless)),
        Claim("Adam follows the direction imposed by m1(0)", all_lower([0.95], cosines)),
        Claim(f"AdEMAMix converges, at the same learning rate, {RATE:g}", all_lower(calm, [AT_REST])),
        Claim("AdEMAMix initially overshoots the optimum", all_lower([toy.MINIMUM[1] + 1], tops)),
        Claim(
            "AdEMAMix has to wait for the influence of m2(0) to fade away",
            every(lower(0.5, left), *(lower(1.0, distance) for distance in away)),
        ),
    ]


def _trajectories(case: str, runs: list[Descent]) -> Landscape:
    x, y = MOMENTA[case]
    title = f"({case}) $m_1^{{(0)}}=m_2^{{(0)}}=({{{x:g}}}, {{{y:g}}})$"
    paths = [run.path(run.method) for run in runs]
    places = (toy.START, toy.MINIMUM, *toy.surroundings(runs))
    return Landscape(title, "$x$", "$y$", paths, toy.steep_and_flat, *places, push=(-x, -y), legend=CORNERS[case])
