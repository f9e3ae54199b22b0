"""What a conversion or an inspection is asked for, and the settings that only the user knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ademamix.checkpoints.errors import CheckpointError

TARGETS = ("ademamix", "adamw")
SETTINGS = ("total_steps", "alpha", "beta3", "alpha_warmup", "beta3_warmup", "slow_clip", "state_storage")

# Of a state of Optax, whose settings are in the program.
STATED = ("total_steps", "alpha", "beta1", "beta2", "beta3", "alpha_warmup", "beta3_warmup", "slow_clip", "eps")

# A switch in the middle of a run, as AdEMAMix.from_adamw makes it.
AFTER_ADAMW = {"alpha": 2.0, "alpha_warmup": 0, "beta3_warmup": 0}


@dataclass(frozen=True)
class Wish:
    """The optimizer that is to continue, and settings for it; those that are not given are the checkpoint's own."""

    to: str = "ademamix"
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.to not in TARGETS:
            raise CheckpointError(f"the target must be one of {', '.join(TARGETS)}, got {self.to!r}")
        unknown = sorted(set(self.settings) - set(SETTINGS))
        if unknown:
            raise CheckpointError(f"{unknown[0]} is no setting of a conversion; these are: {', '.join(SETTINGS)}")
        if self.to == "adamw" and self.settings:
            raise CheckpointError(f"AdamW has no {', '.join(self.settings)}: leave that out with the target adamw")

    @property
    def given(self) -> dict[str, Any]:
        """The settings that have a value: in Python, None may stand for one that is not given."""
        return {name: value for name, value in self.settings.items() if value is not None}

    def check(self, origin: str) -> None:
        """Raise if a state of this origin is what is wished already."""
        if self.to == "adamw" and origin == "AdamW":
            raise CheckpointError("this is a state of AdamW already: there is nothing to convert")
        if self.to == "ademamix" and origin == "ademamix" and not self.given:
            raise CheckpointError(
                "this is a state of ademamix already: there is nothing to convert. Name a setting to change, such as "
                "state_storage or total_steps, or the target adamw."
            )
