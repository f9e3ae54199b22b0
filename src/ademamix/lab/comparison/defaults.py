"""What `ademamix compare` trains unless the user says otherwise; recipes at laptop scale share it."""

from __future__ import annotations

from ademamix.lab import optimizers
from ademamix.lab.config import Cosine, Optimizer, Run, Text, validation_interval
from ademamix.lab.models import PRESETS


def warmup(steps: int) -> int:
    """Return over how many steps the learning rate rises unless that is stated: a hundredth of the run, at least one.

    The paper's is 3,000 of 256,000.

    >>> warmup(20_000), warmup(20)
    (200, 1)
    """
    return max(1, steps // 100)


WEIGHT_DECAY = {"weight_decay": optimizers.WEIGHT_DECAY}
STARTING_POINTS = {
    name: Optimizer(name=name, lr=row.lr, settings={**WEIGHT_DECAY, **row.settings})
    for name, row in optimizers.OPTIMIZERS.items()
}
"""Every optimizer before the user sets anything."""

STEPS, BATCH = 20_000, 8
DEFAULT = Run(
    model=PRESETS["gpt-nano"],
    data=Text(kind="text"),
    optimizer=STARTING_POINTS["adamw"],
    schedule=Cosine(kind="cosine", warmup=warmup(STEPS)),
    steps=STEPS,
    batch=BATCH,
    validate_every=validation_interval(STEPS, BATCH),
)
OPTIMIZERS = {name: STARTING_POINTS[name] for name in ("adamw", "ademamix")}
"""The two that are compared unless the user says otherwise."""
