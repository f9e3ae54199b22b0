"""DeepSpeed: AdEMAMix inside an engine, with the parameters that ZeRO-3 takes out of its groups between steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ademamix.pytorch.optimizer import AdEMAMix

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine


@contextmanager
def ademamix_of(engine: DeepSpeedEngine) -> Iterator[AdEMAMix]:
    """Yield the AdEMAMix of `engine`, with this process's slices of all parameters in its groups.

    ZeRO-3 fills the groups for a step and empties them after it: between steps ``schedule()`` would find no clock,
    ``diagnostics()`` no state, and ``reset_slow()`` nothing to empty. The other stages need nothing of this.

    .. code-block:: python

        with ademamix_of(engine) as optimizer:
            print(optimizer.schedule(), optimizer.diagnostics())
    """
    optimizer = engine.basic_optimizer
    if not isinstance(optimizer, AdEMAMix):
        raise TypeError(f"the engine's optimizer is {type(optimizer).__name__}: pass AdEMAMix to deepspeed.initialize")
    zero = engine.optimizer
    fill = getattr(zero, "_set_fp32_optimizer_param_groups", None)
    if fill is None:
        yield optimizer
        return
    fill()
    try:
        yield optimizer
    finally:
        zero._clear_fp32_optimizer_param_groups()
