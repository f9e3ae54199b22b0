"""Accelerate: the number of optimizer steps of a loop over a prepared DataLoader."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator


def total_steps(accelerator: Accelerator, dataloader: Any, epochs: int) -> int:
    """Return the number of optimizer steps in `epochs` passes over `dataloader`, for AdEMAMix's ``total_steps``.

    Processes share the batches, and gradient accumulation takes several for a step. An epoch that ends in the middle of
    an accumulation ends with a step, unless ``sync_with_dataloader=False`` says that it continues in the next.

    .. code-block:: python

        dataloader = accelerator.prepare(dataloader)
        optimizer = AdEMAMix(model.parameters(), lr=1e-3, total_steps=total_steps(accelerator, dataloader, epochs=3))
        model, optimizer = accelerator.prepare(model, optimizer)

    Args:
        accelerator: the one that the loop accumulates with.
        dataloader: as `accelerator` prepared it: before, its length is that of all processes together.
        epochs: how many times the loop runs over it.
    """
    if not hasattr(dataloader, "end_of_dataloader"):
        raise ValueError(
            "pass the DataLoader that accelerator.prepare returned: before, its length is that of all processes"
        )
    accumulated: int = accelerator.gradient_accumulation_steps
    if accelerator.gradient_state.sync_with_dataloader:
        return epochs * math.ceil(len(dataloader) / accumulated)
    return epochs * len(dataloader) // accumulated
