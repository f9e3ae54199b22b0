"""How batches are forgotten: a held-out batch B that is put in at one step, and training batches that are followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ademamix.lab.config import Run
from ademamix.lab.probes import FollowBatch, InjectBatch
from ademamix.lab.report.kinds import Curves, Gap
from ademamix.lab.reproduction.claims import Quantity, at_step, gap, last, overall, ratio, roughness
from ademamix.lab.reproduction.panel import Show
from ademamix.lab.reproduction.scale import BOTH, Setting

METRIC = "loss_on_batch_0"
SOON = 50
"""Steps after training on B, at every scale: by then the fast average has taken B up."""
RECORD_EVERY = 10
"""Below paper scale; there it is `SOON`."""


@dataclass(frozen=True)
class Injections:
    """Runs of both optimizers without B and with B at each of several steps of the paper, and how they differ."""

    lm: Setting
    steps: Sequence[int]

    def arms(self, **fields: Any) -> dict[str, Run]:
        """Return the runs, with further changes."""
        every_step = max(RECORD_EVERY, self.lm.steps(SOON))
        follow = FollowBatch(kind="follow-batch", every=every_step)
        data = self.lm.base.data.model_copy(update={"held_out_batches": 1})
        runs = {label: self.lm.run(name, data=data, probes=(follow,), **fields) for label, name in BOTH.items()}
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
        for label in BOTH:
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

    def rise(self, label: str, step: int, until: int) -> Quantity:
        """Return how much of the drop soon after training on B is lost so many steps after it."""
        effects = self.effect(label, step, SOON), self.effect(label, step, until)
        return gap(*effects, label=f"the rise after {self.name(label, step)}")

    def left(self, label: str, step: int, until: int) -> Quantity:
        """Return which share of that drop is left so many steps after training on B."""
        effects = self.effect(label, step, until), self.effect(label, step, SOON)
        return ratio(f"the share left of the drop after {self.name(label, step)}", *effects)

    def roughness(self, label: str) -> Quantity:
        """Return how rough the curve of the loss on B is without B."""
        return roughness(_without(label), METRIC)


def _without(label: str) -> str:
    return f"{label}, no B"


def share_forgotten(label: str, arm: str, steps: Sequence[int], until: int) -> Quantity:
    """Return the share of the drop on followed training batches that is lost after `until` steps.

    Drops and rises are means over the batches. It is negative if the loss fell further.
    """

    def loss(step: int, after: int) -> Quantity:
        return at_step(arm, step + after, f"loss_on_training_batch_{step}")

    rises = overall("rise", fmean, [gap(loss(step, until), loss(step, SOON)) for step in steps])
    drops = overall("drop", fmean, [gap(loss(step, -1), loss(step, SOON)) for step in steps])
    return ratio(label, rises, drops)
