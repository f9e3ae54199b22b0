"""How a batch is learnt and forgotten: the paper's figure forgetting.

A batch B is held out of the training data, and put in at one step t_B. The loss on B, with that and without, shows what
of B stays. Runs share their steps before t_B.

The paper does not say when the drop and the rise of the loss on B are measured: here 50 steps after t_B, as in its
figure app_forgetting, and 10k steps after t_B. The 50 are not shrunk, since the fast average, which they wait for, is
not either. Below paper scale t_B is 90k and 230k only, and each optimizer has the learning rate that was found for it:
AdamW's is four times AdEMAMix's, which alone makes its drop, and what it can lose again, larger. So forgetting is also
compared as a share of the drop. A claim holds if it does at every t_B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ademamix.lab.config import Run
from ademamix.lab.probes import FollowBatch, InjectBatch
from ademamix.lab.report.kinds import Curves, Gap
from ademamix.lab.reproduction.claims import (
    Claim,
    Quantity,
    at_step,
    every,
    gap,
    last,
    lower,
    ordered,
    ratio,
    roughness,
)
from ademamix.lab.reproduction.panel import Panel, Panels, Show
from ademamix.lab.reproduction.scale import Scale, Setting

OPTIMIZERS = {"AdamW": "adamw", "AdEMAMix": "ademamix"}
METRIC = "loss_on_batch_0"
SOON = 50
RECORD_EVERY = 10
"""Below paper scale; there it is `SOON`."""


def plan(at: Scale) -> Panels:
    """Yield the runs without B and with B at several steps."""
    lm = at.lm("110m")
    injected = Injections(lm, (90_000, 170_000, 190_000, 230_000) if at.name == "paper" else (90_000, 230_000))
    yield Panel(
        "Loss on a held-out batch B",
        injected.arms(),
        show=injected.shown(),
        claims=list(_claims(injected)),
        caption="B is put into the training data at one step, or never.",
    )


@dataclass(frozen=True)
class Injections:
    """Runs of both optimizers without B and with B at each of several steps of the paper, and how they differ."""

    lm: Setting
    steps: Sequence[int]

    def arms(self, **fields: Any) -> dict[str, Run]:
        """Return the runs, with further changes; those without B first, since the others continue from them."""
        every_step = max(RECORD_EVERY, self.lm.steps(SOON))
        follow = FollowBatch(kind="follow-batch", every=every_step)
        data = self.lm.base.data.model_copy(update={"held_out_batches": 1})
        runs = {label: self.lm.run(name, data=data, probes=(follow,), **fields) for label, name in OPTIMIZERS.items()}
        arms = {_without(label): run for label, run in runs.items()}
        for step in self.steps:
            inject = InjectBatch(kind="inject-batch", step=self.lm.steps(step))
            arms |= {self.name(label, step): run.changed(probes=(follow, inject)) for label, run in runs.items()}
        return arms

    def name(self, label: str, step: int) -> str:
        """Return the name of an arm with B."""
        return f"{label}, B at {self.lm.steps(step):,}"

    def shown(self) -> list[Show]:
        """Return the losses on B of each optimizer, and how far they are below those without B."""
        shown: list[Show] = []
        for label in OPTIMIZERS:
            names = [self.name(label, step) for step in self.steps]
            shown += [
                Curves(METRIC, [_without(label), *names], about=label),
                Gap([(_without(label), name) for name in names], METRIC, about=f"its effect, {label}"),
            ]
        return shown

    def effect(self, label: str, step: int, after: int | None = None) -> Quantity:
        """Return how much lower the loss on B is for training on it, so many steps after that, or at the end."""
        without, trained, when = _without(label), self.name(label, step), "in the end"
        if after is None:
            losses = last(without, METRIC), last(trained, METRIC)
        else:
            time, when = self.lm.steps(step) + after, f"{after:,} steps later"
            losses = at_step(without, time, METRIC), at_step(trained, time, METRIC)
        return gap(*losses, label=f"the effect of {trained} {when}")


def _without(label: str) -> str:
    return f"{label}, no B"


def _claims(injected: Injections) -> Iterator[Claim]:
    effect, steps, later = injected.effect, injected.steps, injected.lm.steps(10_000)
    yield Claim(
        "For both optimizers the loss on B drops right after training on B",
        every(*(lower(0.0, effect(label, step, SOON)) for label in OPTIMIZERS for step in steps)),
    )
    yield Claim(
        "The drop of the loss on B is more pronounced for AdamW",
        every(*(lower(effect("AdEMAMix", step, SOON), effect("AdamW", step, SOON)) for step in steps)),
    )

    def rise(label: str, step: int) -> Quantity:
        losses = effect(label, step, SOON), effect(label, step, later)
        return gap(*losses, label=f"the rise after {injected.name(label, step)}")

    yield Claim(
        "When using AdamW, the loss on B then increases faster",
        every(*(lower(rise("AdEMAMix", step), rise("AdamW", step)) for step in steps)),
    )

    def left(label: str, step: int) -> Quantity:
        effects = effect(label, step, later), effect(label, step, SOON)
        return ratio(f"the share left of the drop after {injected.name(label, step)}", *effects)

    yield Claim(
        "AdamW forgets B faster: a smaller share of the drop is left then",
        every(*(lower(left("AdamW", step), left("AdEMAMix", step)) for step in steps)),
        source="AdamW models forget much faster---the loss over B increases faster---than AdEMAMix models",
    )
    yield Claim(
        "The curves for AdEMAMix are smoother",
        lower(*(roughness(_without(label), METRIC) for label in ("AdEMAMix", "AdamW"))),
    )
    yield Claim(
        "Ultimately B has a bigger impact when using AdEMAMix",
        every(*(lower(effect("AdamW", step), effect("AdEMAMix", step)) for step in steps)),
        source="ultimately B had a bigger impact on the training when using AdEMAMix---as can be seen by looking at "
        "the larger gap between the orange and blue curves for the last iteration",
    )
    yield Claim(
        "Later training batches are remembered better",
        every(*(ordered(*(effect(label, step) for step in steps)) for label in OPTIMIZERS)),
    )
    yield Claim(
        "At the end of training AdEMAMix improves its loss on B over many thousands of iterations",
        lower(effect("AdEMAMix", steps[-1], SOON), effect("AdEMAMix", steps[-1])),
        source="at the end of training, batches processed by AdEMAMix see their loss being improved over many "
        "thousands of iterations",
    )
