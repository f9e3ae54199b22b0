"""What `ademamix compare` trains unless the user says otherwise: the base that laptop recipes share."""

from __future__ import annotations

from ademamix.lab.config import Cosine, Optimizer, Run, Text, validation_interval
from ademamix.lab.presets import PRESETS


def warmup(steps: int) -> int:
    """Return over how many steps the learning rate of a run rises, unless it is stated: a hundredth, at least one.

    The paper's is 3,000 of 256,000.

    >>> warmup(20_000), warmup(20)
    (200, 1)
    """
    return max(1, steps // 100)


WEIGHT_DECAY = {"weight_decay": 0.1}
STEPS, BATCH = 20_000, 8
DEFAULT = Run(
    model=PRESETS["gpt-nano"],
    data=Text(kind="text"),
    optimizer=Optimizer(name="adamw", lr=8e-3, settings=WEIGHT_DECAY),
    schedule=Cosine(kind="cosine", warmup=warmup(STEPS)),
    steps=STEPS,
    batch=BATCH,
    validate_every=validation_interval(STEPS, BATCH),
)
OPTIMIZERS = {
    "adamw": DEFAULT.optimizer,
    "ademamix": Optimizer(name="ademamix", lr=4e-3, settings={**WEIGHT_DECAY, "alpha": 8.0}),
}
"""What is compared unless the user says otherwise."""

STARTING_POINTS: dict[str, Optimizer] = OPTIMIZERS | {
    name: Optimizer(name=name, lr=rate, settings=WEIGHT_DECAY)  # type: ignore[arg-type]
    for name, rate in {
        "adamw-scheduled-beta1": 1e-3,
        "convex-mix": 1e-3,
        "ad3emamix": 1e-3,
        "aggmo": 1e-3,
        "admeta-s": 1e-3,
        "lion": 1e-4,
    }.items()
}
"""Every optimizer before the user sets anything: those not tuned here have the learning rates of their constructors."""
