"""Schedules of alpha and beta3 after a switch from AdamW: the paper's figure from_adamw_warmup.

The switch is at 300k steps. The paper does not give the length of the run: here it is 500k, its longest of this model.
How fast a run converges is measured where the longest warm-up ends, at 400k steps. Below paper scale the warm-ups are 0
and 100k steps only.
"""

from __future__ import annotations

from ademamix.lab.recipes.switch_from_adamw import ALPHA, BETA3, STEPS, switched
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import SIMILAR, Claim, at_step, every, lower, ordered, within
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale

SWITCH = 300_000


def plan(at: Scale) -> Panels:
    """Yield the runs that switch without a warm-up and with longer and longer ones."""
    lm = at.lm("110m").of_length(STEPS)
    warmups = (0, 25_000, 50_000, 100_000) if at.name == "paper" else (0, 100_000)
    arms = {f"T = {lm.steps(warmup) if warmup else 0:,}": switched(lm, SWITCH, warmup=warmup) for warmup in warmups}
    without, *longer = arms
    compared = lm.steps(SWITCH + warmups[-1])
    yield Panel(
        "Schedules after a switch from AdamW",
        {"AdamW": lm.run("adamw"), **arms},
        show=[Curves()],
        claims=[
            Claim(
                "Increasing the warm-up of alpha and beta3 only slows down the convergence",
                ordered(*(at_step(arm, compared) for arm in arms)),
            ),
            Claim(
                f"The final losses are very similar, within {SIMILAR:g}",
                every(*(within(SIMILAR, arm, without) for arm in longer)),
            ),
            Claim("Without schedules the switch improves upon the baseline", lower(without, "AdamW")),
        ],
        caption=f"Switched at step {lm.steps(SWITCH):,} with alpha = {ALPHA:g}, beta3 = {lm.beta3(BETA3):g}; T is the "
        "warm-up of both.",
    )
