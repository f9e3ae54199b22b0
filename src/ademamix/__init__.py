"""AdEMAMix: AdamW with a second, slow average of the gradients.

>>> import torch
>>> from ademamix import AdEMAMix
>>> model = torch.nn.Linear(4, 1)
>>> optimizer = AdEMAMix(model.parameters(), lr=1e-3, total_steps=1000)

Importing this package loads no framework; each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ademamix.pytorch.optimizer import AdEMAMix
    from ademamix.recommendation import Recommendation, recommend
    from ademamix.schedules import alpha_at, beta3_at, beta_from_half_life, half_life

__version__ = "0.1.0"

__all__ = [
    "AdEMAMix",
    "Recommendation",
    "alpha_at",
    "beta3_at",
    "beta_from_half_life",
    "half_life",
    "recommend",
]

_HOME = {
    "AdEMAMix": "ademamix.pytorch.optimizer",
    "Recommendation": "ademamix.recommendation",
    "recommend": "ademamix.recommendation",
    "alpha_at": "ademamix.schedules",
    "beta3_at": "ademamix.schedules",
    "beta_from_half_life": "ademamix.schedules",
    "half_life": "ademamix.schedules",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
