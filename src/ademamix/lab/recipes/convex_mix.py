"""The sum m1 + alpha m2 against a convex mix of the two: the paper's figure convex-vs-nconvex.

The paper gives eta from 0.4 to 1.6 without a unit, and of the model only its 6 layers. Here eta is in units of the
learning rate that was found best, which is 1e-3 at paper scale, and everything else is that of the 110M model. Below
paper scale the model is that of the other recipes, the grids are thinned, and AdamW has the learning rate and beta2 of
its own search. There the best rates of AdamW and AdEMAMix differ; the convex mix takes steps of AdamW's size, so its
unit is AdamW's rate. beta3 is that of 0.9999 for both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from ademamix.lab.config import Run
from ademamix.lab.presets import PRESETS
from ademamix.lab.report.kinds import HeatMap
from ademamix.lab.reproduction.claims import Claim, every, lower, overall
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting, grid

RATES = {"smoke": (1.0,), "laptop": (0.4, 1.0, 1.6), "paper": (0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)}
ADAMW_RATES = {"smoke": (1.0,), "laptop": (1.0,), "paper": RATES["paper"]}
ALPHAS = {"smoke": (2, 10), "laptop": (2, 10), "paper": (2, 4, 6, 8, 10, 12, 14)}
CONVEX_ALPHAS = {"smoke": (0.3, 0.9), "laptop": (0.3, 0.9), "paper": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}


def plan(at: Scale) -> Panels:
    """Yield the grids of both formulations, with AdamW over its learning rate."""
    lm = _model(at)
    beta3 = {"beta3": lm.beta3(0.9999)}
    adamw = _grid("AdamW", lm.run("adamw"), lr=ADAMW_RATES[at.name])
    sums = _grid("sum", lm.run("ademamix", **beta3), lr=RATES[at.name], alpha=ALPHAS[at.name])
    mixes = _grid("convex", lm.run("convex-mix", **beta3), lr=RATES[at.name], alpha=CONVEX_ALPHAS[at.name])
    best_adamw, best_sum, best_mix = (
        overall(f"the best {label}", min, arms)
        for label, arms in (("AdamW", adamw), ("sum", sums), ("convex mix", mixes))
    )
    yield Panel(
        "The sum and the convex mix",
        adamw | sums | mixes,
        show=[HeatMap("lr", "alpha", list(arms), levels=list(adamw)) for arms in (sums, mixes)],
        claims=[
            Claim(
                "The sum outperforms the best AdamW for all pairs", every(*(lower(name, best_adamw) for name in sums))
            ),
            Claim(
                "The sum is better than the convex mix for all pairs, cell by cell of the two grids",
                every(*(lower(ours, theirs) for ours, theirs in zip(sums, mixes, strict=True))),
            ),
            Claim(
                "The convex mix outperforms the best AdamW for most pairs: in the median",
                lower(overall("the median convex mix", statistics.median, mixes), best_adamw),
            ),
            Claim("The improvement of the convex mix is smaller, at its best", lower(best_sum, best_mix)),
        ],
        caption=f"(a): the sum, (b): the convex mix; beta3 = {beta3['beta3']:g}. Framed: as low as the best AdamW.",
    )


def _model(at: Scale) -> Setting:
    lm = at.lm("110m")
    if at.name != "paper":
        return lm
    return lm.with_base("6 layers", model=PRESETS["gpt-110m"].model_copy(update={"layers": 6}))


def _grid(label: str, base: Run, *, lr: Iterable[float], **settings: Iterable[float]) -> dict[str, Run]:
    """Return a grid in which rates are in units of that of the base, to ten digits."""
    rates = [float(f"{rate * base.optimizer.lr:.10g}") for rate in lr]
    return {f"{label}, {name}": run for name, run in grid(base, lr=rates, **settings).items()}
