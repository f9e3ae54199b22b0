"""The optimizers of the lab by name: the one list of them. A row says all that other modules need to know about one.

This module loads no framework: a config is checked against it, and `--help` lists it. The class itself is imported when
an optimizer is built (`construction.build`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ademamix.hyperparameters import BETAS

WEIGHT_DECAY = 0.1
"""All optimizers start from this one, so that comparisons do not compare weight decays."""


@dataclass(frozen=True)
class LabOptimizer:
    """An optimizer that a run can name."""

    constructor: str
    """Where its class is: "module:Class"."""
    display: str
    """Its name as papers write it."""
    summary: str
    """A phrase for `--help` and the documentation."""
    lr: float = 1e-3
    """The learning rate that comparisons and searches start from: that of the constructor, where none was tuned."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings to start from: where it was tuned, those that were found best."""
    betas: tuple[float, ...] | None = None
    """The constructor's default betas, if the second is that of squared gradients."""
    takes_beta3: bool = False
    """Whether a run may state `beta3` beside a pair of betas."""
    has_schedules: bool = False
    """Whether its steps depend on the length of the run, unless `total_steps` is among its settings."""


OPTIMIZERS: dict[str, LabOptimizer] = {
    "adamw": LabOptimizer(
        "torch.optim:AdamW", "AdamW", "torch's AdamW", lr=16e-3, settings={"betas": [0.9, 0.99]}, betas=BETAS
    ),
    "ademamix": LabOptimizer(
        "ademamix:AdEMAMix",
        "AdEMAMix",
        "this library's AdEMAMix, in every storage",
        lr=4e-3,
        settings={"alpha": 8},
        betas=BETAS,
        takes_beta3=True,
        has_schedules=True,
    ),
    "adamw-scheduled-beta1": LabOptimizer(
        "ademamix.lab.optimizers.variants:AdamWScheduledBeta1",
        "AdamW with scheduled beta1",
        "AdamW whose beta1 rises like AdEMAMix's beta3",
        betas=(0.99, 0.999),
        has_schedules=True,
    ),
    "convex-mix": LabOptimizer(
        "ademamix.lab.optimizers.variants:ConvexMix",
        "Convex mix",
        "AdEMAMix with (1 - a) m1 + a m2 in place of m1 + alpha m2",
        betas=BETAS,
        takes_beta3=True,
        has_schedules=True,
    ),
    "ad3emamix": LabOptimizer(
        "ademamix.lab.optimizers.variants:Ad3EMAMix",
        "Ad3EMAMix",
        "AdEMAMix with a third average",
        betas=(0.9, 0.999, 0.999, 0.9999),
        has_schedules=True,
    ),
    "log-time-ademamix": LabOptimizer(
        "ademamix.lab.optimizers.successors:LogTimeAdEMAMix",
        "Log-time AdEMAMix",
        "AdEMAMix whose memory, alpha and weight decay follow the step, not the horizon",
        betas=BETAS,
        takes_beta3=True,
        has_schedules=True,
    ),
    "simplified-ademamix": LabOptimizer(
        "ademamix.lab.optimizers.successors:SimplifiedAdEMAMix",
        "Simplified-AdEMAMix",
        "one slow momentum and the gradient itself in place of two averages",
        lr=1e-4,
        betas=(0.99, 0.95),
        has_schedules=True,
    ),
    "aggmo": LabOptimizer(
        "ademamix.lab.optimizers.baselines:AggMo", "AggMo", "gradient descent with the mean of several momenta"
    ),
    "admeta-s": LabOptimizer(
        "ademamix.lab.optimizers.baselines:AdMetaS", "AdMeta-S", "gradient descent with two nested averages"
    ),
    "lion": LabOptimizer(
        "ademamix.lab.optimizers.baselines:Lion", "Lion", "steps of one size along the sign of an average", lr=1e-4
    ),
}
