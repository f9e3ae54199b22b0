"""How a batch is forgotten at a constant learning rate with a linear decay: the paper's figure forgetting_const_lr.

As `forgetting`, with 300k steps, the last 50k of them a linear decay to 0. "Not remembered" is taken to mean that at
the end less than a tenth is left of the effect that B had 50 steps after t_B. Below paper scale t_B = 270k and 290k are
left out, and the run is as long as all others of that scale. Each optimizer has the learning rate that was found for it
with a cosine.
"""

from __future__ import annotations

from collections.abc import Iterator

from ademamix.lab.config import ConstantThenLinear
from ademamix.lab.reproduction.claims import Claim, every, lower, part
from ademamix.lab.reproduction.injections import SOON, Injections
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import BOTH, Scale

STEPS, DECAY = 300_000, 50_000
LEFT = 0.1


def plan(at: Scale) -> Panels:
    """Yield the runs without B and with B before and during the decay."""
    lm = at.lm("110m").of_length(STEPS)
    injected = Injections(lm, (230_000, 270_000, 280_000, 290_000) if at.name == "paper" else (230_000, 280_000))
    schedule = ConstantThenLinear(kind="constant", warmup=lm.base.schedule.warmup, decay=lm.steps(DECAY))
    yield Panel(
        "Loss on a held-out batch B",
        injected.arms(schedule=schedule),
        show=injected.shown(),
        claims=list(_claims(injected)),
        caption=f"The learning rate is constant until it decays linearly over the last {schedule.decay:,} of "
        f"{lm.base.steps:,} steps. B is put into the training data at one step, or never.",
    )


def _claims(injected: Injections) -> Iterator[Claim]:
    before, *during = injected.steps
    effect = injected.effect
    yield Claim(
        "A batch from before the decay is not remembered at the end of training",
        every(*(lower(effect(label, before), part(LEFT, effect(label, before, SOON))) for label in BOTH)),
    )
    yield Claim(
        "Batches start to be remembered when the decay begins",
        every(*(lower(effect(label, before), effect(label, step)) for label in BOTH for step in during)),
        source="They only start to be remembered when the decay periods starts",
    )
    yield Claim(
        "Compared to AdamW, AdEMAMix keeps the training data longer in memory",
        every(*(lower(effect("AdamW", step), effect("AdEMAMix", step)) for step in during)),
    )
