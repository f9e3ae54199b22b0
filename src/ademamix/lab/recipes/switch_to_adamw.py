"""From AdEMAMix to AdamW in mid-run: the paper's figure adema_to_adamw.

m2 is removed at step 128k; the learning rate stays AdEMAMix's. The paper has a batch of 32 here, half of that of its
other runs; below paper scale the batch stays, for which the settings were found. There the schedules of alpha and beta3
last for the whole run, and not also for 90k steps as in the paper. It does not say when the drop and the increase of
the loss are seen: here the drop at the first validation after the switch, against the last before it, and the increase
in the 25k steps that follow, as the largest rise of the validation loss, against that of the run without a switch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ademamix.lab.config import Optimizer
from ademamix.lab.report.kinds import Curves
from ademamix.lab.reproduction.claims import Claim, Quantity, at_step, every, largest_rise, lower
from ademamix.lab.reproduction.outcome import VALIDATION_LOSS
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting

SWITCH = 128_000
LATER = 25_000


def plan(at: Scale) -> Panels:
    """Yield AdamW, and AdEMAMix with a switch and without."""
    lm = at.lm("110m")
    if at.name == "paper":
        lm = lm.with_base(lm.title, batch=32)
    runs = {f"AdEMAMix, T = {lm.base.steps:,}": lm.run("ademamix")}
    if at.name == "paper":
        runs["AdEMAMix, T = 90,000"] = lm.run("ademamix", alpha_warmup=90_000, beta3_warmup=90_000)
    adamw = Optimizer(name="adamw", lr=lm.ademamix.lr)
    after = {_switched(name): run.then(lm.steps(SWITCH), adamw) for name, run in runs.items()}
    yield Panel(
        "From AdEMAMix to AdamW",
        {"AdamW": lm.run("adamw"), **runs, **after},
        show=[Curves()],
        claims=list(_claims(lm, [*runs])),
        caption=f"m2 is removed at step {lm.steps(SWITCH):,}; T is the warm-up of alpha and beta3.",
    )


def _switched(name: str) -> str:
    return f"{name}, then AdamW"


def _claims(lm: Setting, names: Sequence[str]) -> Iterator[Claim]:
    soon, later = (lm.steps(SWITCH) + steps for steps in (lm.base.validate_every, lm.steps(LATER)))

    def rise(arm: str) -> Quantity:
        return largest_rise(arm, VALIDATION_LOSS, between=(soon, later))

    yield Claim(
        "Right after the switch the loss drops",
        every(*(lower(at_step(_switched(name), soon), at_step(_switched(name), lm.steps(SWITCH))) for name in names)),
    )
    yield Claim(
        "The drop is followed by an increase of the loss",
        every(*(lower(rise(name), rise(_switched(name))) for name in names)),
    )
    yield Claim(
        "The final loss is in between those of AdEMAMix only and of AdamW only",
        every(*(lower(name, _switched(name)) for name in names), *(lower(_switched(name), "AdamW") for name in names)),
    )
