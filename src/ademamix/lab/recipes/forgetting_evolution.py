"""How fast training batches are forgotten as training progresses: the paper's figure app_forgetting.

Every 10k steps a batch is followed, from before the step that trains on it until 10k steps later. The loss on it is
normalised to 0 before that step and to -1 at 50 steps after it.

A claim compares the share of the drop that is lost 10k steps later, the mean rise over the mean drop of several
batches, since the drop of a single one may be close to 0. Below paper scale every fourth batch is
followed, and the 50 steps are not shrunk, since the fast average, which they wait for, is not either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ademamix.lab.probes import FollowTrainingBatch
from ademamix.lab.report.kinds import Forgetting
from ademamix.lab.reproduction.claims import Claim, Quantity, every, gap, lower
from ademamix.lab.reproduction.injections import SOON, share_forgotten
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import BOTH, Scale, Setting

FOLLOWED = 10_000
LATE = 180_000
"""After it, the paper says, the difference between the optimizers is especially pronounced."""


def plan(at: Scale) -> Panels:
    """Yield a run of each optimizer in which the batches are followed."""
    lm = at.lm("110m")
    batches = range(30_000, 250_001, {"paper": 10_000, "laptop": 40_000, "smoke": 160_000}[at.name])
    probes = tuple(
        FollowTrainingBatch(
            kind="follow-training-batch", step=step, every=max(1, lm.steps(SOON)), until=step + _followed(lm)
        )
        for step in map(lm.steps, batches)
    )
    yield Panel(
        "Loss on training batches",
        {label: lm.run(name, probes=probes) for label, name in BOTH.items()},
        show=[Forgetting(label, [*map(lm.steps, batches)], SOON) for label in BOTH],
        claims=list(_claims(lm, batches)),
        caption=f"Normalised to 0 before training on the batch and to -1 {SOON} steps after it.",
    )


def _followed(lm: Setting) -> int:
    return max(SOON, lm.steps(FOLLOWED))


def _claims(lm: Setting, batches: Sequence[int]) -> Iterator[Claim]:
    early, late = ([step for step in batches if (step > LATE) is later] for later in (False, True))

    def forgotten(label: str, steps: Sequence[int], stage: str) -> Quantity:
        return share_forgotten(f"{label}, share forgotten {stage}", label, [*map(lm.steps, steps)], _followed(lm))

    overall = {label: forgotten(label, batches, "in all") for label in BOTH}
    at_first = {label: forgotten(label, early, "early") for label in BOTH}
    at_last = {label: forgotten(label, late, "late") for label in BOTH}
    yield Claim(
        "AdEMAMix improves its loss on training batches over many timesteps",
        lower(overall["AdEMAMix"], 0.0),
    )
    yield Claim(
        "The loss on training batches increases faster with AdamW", lower(overall["AdEMAMix"], overall["AdamW"])
    )
    yield Claim(
        "The models forget significantly slower at the end of training",
        every(*(lower(at_last[label], at_first[label]) for label in BOTH)),
    )
    yield Claim(
        "In the later stage of training the difference between the two optimizers is especially pronounced",
        lower(gap(at_first["AdamW"], at_first["AdEMAMix"]), gap(at_last["AdamW"], at_last["AdEMAMix"])),
    )
