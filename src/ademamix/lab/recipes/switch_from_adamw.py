"""From AdamW to AdEMAMix in mid-run: the paper's figures from_adamw_110 and from_adamw_1300.

AdEMAMix takes over AdamW's state and settings, the learning rate among them; m2 starts at 0, and there are no schedules
for alpha and beta3. Runs share their steps with AdamW.

The paper gives neither the length of these runs nor the steps of the switch, but for a t_switch = 300k in its appendix.
Here they are 500k steps with switches every 100k for the 110M model, and 770k with switches every 200k for the 1.3B
one. Below paper scale, where all models are one, there is only the first of the two. AdEMAMix from scratch has its own
settings and schedules, so it is compared by a claim of its own. "At first" is while m2 fills, the 10k
steps after the switch that beta3 = 0.9999 remembers, and the loss then the mean training loss, on the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ademamix.lab.config import Optimizer, Run
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, Quantity, every, gap, lower, ordered, smoothed
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting

STEPS = 500_000
SWITCHES = (100_000, 200_000, 300_000)
ALPHA, BETA3 = 2.0, 0.9999
FILLED = 10_000
SCRATCH = "AdEMAMix from scratch"


def plan(at: Scale) -> Panels:
    """Yield a panel for each model."""
    yield _panel(at.lm("110m").of_length(STEPS), SWITCHES, ALPHA)
    if at.name == "paper":
        yield _panel(at.lm("1.3b"), (200_000, 400_000, 600_000), alpha=1.0)


def switched(lm: Setting, step: int, alpha: float = ALPHA, warmup: int = 0) -> Run:
    """Return the run of AdamW that continues as AdEMAMix; steps are the paper's."""
    warmups = dict.fromkeys(("alpha_warmup", "beta3_warmup"), lm.steps(warmup)) if warmup else {}
    settings = {"alpha": alpha, "beta3": lm.beta3(BETA3), **warmups}
    return lm.run("adamw").then(lm.steps(step), Optimizer(name="ademamix", lr=lm.adamw.lr, settings=settings))


def _panel(lm: Setting, switches: Sequence[int], alpha: float) -> Panel:
    arms = {_name(lm, step): switched(lm, step, alpha) for step in switches}
    return Panel(
        f"From AdamW to AdEMAMix: {lm.title}",
        {"AdamW": lm.run("adamw"), **arms, SCRATCH: lm.run("ademamix")},
        show=[Curves(level="AdamW")],
        claims=list(_claims(lm, switches)),
        caption=f"Switched with alpha = {alpha:g}, beta3 = {lm.beta3(BETA3):g}, m2 = 0 and no schedules for them.",
    )


def _name(lm: Setting, step: int) -> str:
    return f"switched at {lm.steps(step):,}"


def _claims(lm: Setting, switches: Sequence[int]) -> Iterator[Claim]:
    arms = earliest, middle, latest = [_name(lm, step) for step in switches]
    yield Claim(
        "Activating AdEMAMix later during training improves upon the baseline",
        every(*(lower(arm, "AdamW") for arm in arms)),
        source="it is possible to improve upon the baseline when activating AdEMAMix later during training",
    )
    yield Claim("The earlier the switch to AdEMAMix, the better the final loss", ordered(*arms))
    yield Claim(
        "AdEMAMix from scratch ends below each switch",
        every(*(lower(SCRATCH, arm) for arm in arms)),
        source="the earlier AdEMAMix is used, the better the final loss",
    )
    yield Claim(
        "The gain of an earlier switch has diminishing returns",
        lower(gap(middle, earliest), gap(latest, middle)),
        source="the earlier the switch, the larger the gain, with diminishing returns",
    )

    def at_first(arm: str, step: int) -> Quantity:
        return smoothed(arm, lm.steps(step) + lm.steps(FILLED), lm.steps(FILLED), "loss")

    rises = [lower(at_first("AdamW", step), at_first(arm, step)) for arm, step in zip(arms, switches, strict=True)]
    yield Claim(
        "At first, after the switch, the loss is above AdamW's",
        every(*rises),
        source="we observe the loss increases slightly at first before decreasing and outperforming the baseline",
    )
