"""A larger beta1 from the middle of an AdamW run on: the paper's figure single-ema-resume.

The paper gives the warm-up of beta1, 200k steps, but neither the values of beta1, nor the length of the run, nor the
step of the change. Here the values are those of single-ema, and the change is that of the paper's figure
from_adamw_warmup: at 300k of 500k steps, which leaves 200k. A gain below 0.01 is not noticeable. The switch to AdEMAMix
at the same step is shown for comparison.
"""

from __future__ import annotations

from ademamix.lab.config import Optimizer, Run
from ademamix.lab.recipes.single_ema import in_words, large_betas, with_beta1
from ademamix.lab.recipes.switch_from_adamw import STEPS, switched
from ademamix.lab.recipes.switch_schedules import SWITCH
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, as_low_as, every, lower
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting

WARMUP = 200_000
SWITCHED = "switched to AdEMAMix"


def plan(at: Scale) -> Panels:
    """Yield AdamW with a larger beta1 from a step on, at once and by a schedule."""
    lm = at.lm("110m").of_length(STEPS)
    betas = large_betas(at)
    at_once = {f"beta1 = {beta1:g}": _resumed(lm, "adamw", beta1) for beta1 in betas}
    rising = {
        f"scheduled beta1 = {beta1:g}": _resumed(lm, "adamw-scheduled-beta1", beta1, total_steps=lm.steps(WARMUP))
        for beta1 in betas
    }
    yield Panel(
        "Increasing beta1 later",
        {"AdamW": lm.run("adamw"), **at_once, **rising, SWITCHED: switched(lm, SWITCH)},
        show=[Curves(arms=["AdamW", *at_once, SWITCHED]), Curves(arms=["AdamW", *rising, SWITCHED])],
        claims=[
            Claim(
                "Resuming AdamW with a larger beta1 brings no gain of 0.01 over the baseline",
                every(*(as_low_as("AdamW", arm) for arm in at_once)),
            ),
            Claim(
                "With a scheduler over beta1 there is no gain of 0.01 over the baseline either",
                every(*(as_low_as("AdamW", arm) for arm in rising)),
            ),
            Claim(
                "Unlike a larger beta1, a switch to AdEMAMix outperforms the baseline, and each of them",
                every(*(lower(SWITCHED, arm) for arm in ("AdamW", *at_once, *rising))),
                source="Here again---unlike when using AdEMAMix---none of those experiments outperform the baseline",
            ),
        ],
        caption=f"beta1 changes at step {lm.steps(SWITCH):,}, (a) at once, (b) over {lm.steps(WARMUP):,} steps. "
        + in_words(lm, betas),
    )


def _resumed(lm: Setting, name: str, beta1: float, **settings: int) -> Run:
    betas = with_beta1(lm, beta1)
    optimizer = Optimizer(name=name, lr=lm.adamw.lr, settings={**lm.adamw.settings, "betas": betas, **settings})
    return lm.run("adamw").then(lm.steps(SWITCH), optimizer)
