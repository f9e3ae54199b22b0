"""The weights of m1 and m2 under two formulations: the paper's figures weights-m1-m2 and schedulers-convex.

AdEMAMix moves by eta (m1 + alpha m2), the convex mix by eta ((1 - alpha) m1 + alpha m2). The paper gives the final
alphas, 8 and 0.9, a cosine for eta and a line for alpha. It leaves out eta and where its cosine ends: here eta is in
units of its largest value and falls to 1/100 of it, as from 0.001 to 0.00001 in the 110M models, without warm-up. Only
t/T matters; T is ours.

The schedules with which the convex mix equals AdEMAMix (the second figure) are drawn for alpha = 8. Those of alpha end
at 8 and at 8/9, so the last panel draws each relative to its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ademamix.lab.recipes.formulas.mixes import (
    ALPHA,
    CONVEX_ALPHA,
    STEPS,
    added,
    chart,
    convex,
    equal_schedules,
    least_growth,
    over_time,
    schedules,
    table,
)
from ademamix.lab.reproduction.claims import Claim, every, lower, measured
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale


def plan(at: Scale) -> Panels:
    """Yield the paper's two figures: the weights, and the schedules that make them equal."""
    titles = (
        f"(a) $\\eta^{{(t)}}(m_1+\\alpha^{{(t)}}m_2)$, $\\alpha={ALPHA:g}$",
        f"(b) $\\eta^{{(t)}}((1-\\alpha^{{(t)}})m_1+\\alpha^{{(t)}}m_2)$, $\\alpha={CONVEX_ALPHA:g}$",
    )
    sums, mixes = over_time(lambda t: added(*schedules(t))), over_time(lambda t: convex(*schedules(t, CONVEX_ALPHA)))
    labels = ("weight of $m_1$", "weight of $m_2$")
    yield Panel(
        "The weights of m1 and m2",
        charts=[
            chart(title, "weight, in units of the largest $\\eta$", dict(zip(labels, weights, strict=True)))
            for title, weights in zip(titles, (sums, mixes), strict=True)
        ],
        tables=[table(["t", "sum: m1", "m2", "convex mix: m1", "m2"], [*sums, *mixes])],
        claims=[_different(sums, mixes), _no_reparametrization()],
        caption=f"Weights in units of the largest learning rate; alpha ends at {ALPHA:g}, and at {CONVEX_ALPHA:g} in "
        "the convex mix.",
    )
    (etas, alphas), (hat_etas, hat_alphas) = over_time(schedules), over_time(equal_schedules)
    ends = (f"AdEMAMix: $\\alpha^{{(t)}}/{ALPHA:g}$", f"convex mix: $\\hat\\alpha^{{(t)}}/({ALPHA:g}/{ALPHA + 1:g})$")
    relative = dict(zip(ends, (alphas / alphas[-1], hat_alphas / hat_alphas[-1]), strict=True))
    charts = [
        chart(
            "(a) Schedules of $\\eta$",
            "in units of the largest $\\eta$",
            {"AdEMAMix: $\\eta^{(t)}$": etas, "convex mix: $\\hat\\eta^{(t)}$": hat_etas},
        ),
        chart("(b) Schedules of $\\alpha$", "share of the final value", relative),
    ]
    header = ["t", "AdEMAMix: eta", "alpha", "convex mix: eta", "alpha"]
    yield Panel(
        "The schedules that make them equal",
        charts=charts,
        tables=[table(header, [etas, alphas, hat_etas, hat_alphas])],
        claims=_equal(sums, hat_etas, hat_alphas),
        figure="schedules",
    )


def _different(sums: NDArray[np.float64], mixes: NDArray[np.float64]) -> Claim:
    fast, slow = mixes / sums
    return Claim(
        "The two formulations give very different weights to m1 and m2",
        every(
            lower(measured("the weight of m1 in the convex mix at T, as a share of that in the sum", fast[-1]), 0.2),
            lower(measured("the largest such share of m2", slow.max()), 0.2),
        ),
    )


def _no_reparametrization() -> Claim:
    return Claim(
        "With a cosine for eta and a line for alpha no final alpha makes the two formulations equal",
        lower(1.0, measured("the smallest growth of m2/m1 over a line in the convex mix", least_growth())),
    )


def _equal(sums: NDArray[np.float64], etas: NDArray[np.float64], alphas: NDArray[np.float64]) -> list[Claim]:
    mixed = np.array([convex(eta, alpha) for eta, alpha in zip(etas, alphas, strict=True)]).T
    return [
        Claim(
            "With these schedules the convex mix is the same as AdEMAMix",
            lower(measured("the largest relative difference of a weight", abs(mixed / sums - 1).max()), 1e-12),
        ),
        Claim(
            "AdEMAMix has the simpler schedules: here eta first rises, and alpha is no line",
            every(
                lower(2.5, measured("the largest eta, in units of the first", etas.max() / etas[0])),
                lower(0.3, measured("where it is reached, as a share of T", (etas.argmax() + 1) / STEPS)),
                lower(0.5, measured("the share of its end that alpha has at T/8", alphas[STEPS // 8 - 1] / alphas[-1])),
            ),
        ),
    ]
