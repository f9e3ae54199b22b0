"""torchtitan: AdEMAMix in its container of optimizers, where it builds AdamW."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from ademamix import hyperparameters
from ademamix.pytorch.optimizer import AdEMAMix

if TYPE_CHECKING:
    from torchtitan.components.optimizer import OptimizersContainer
    from torchtitan.protocols.train_spec import TrainSpec


def with_ademamix(train_spec: TrainSpec, **settings: Any) -> TrainSpec:
    """Return `train_spec` with AdEMAMix in place of AdamW; its ``total_steps`` is ``training.steps`` of the job.

    If the job has ``lr_scheduler.total_steps``, the horizon is that, as for the learning rate.

    .. code-block:: python

        from torchtitan.protocols.train_spec import get_train_spec, register_train_spec

        register_train_spec("llama3_ademamix", with_ademamix(get_train_spec("llama3"), alpha=8.0))

    Learning rate, beta1, beta2, epsilon, weight decay and implementation are those of the job's ``optimizer``, whose
    name stays AdamW. Its ``early_step_in_backward`` is refused.

    Args:
        train_spec: how torchtitan trains a model.
        settings: arguments of :meth:`ademamix.AdEMAMix.from_adamw`; those of a run from its start are the default.
    """
    build = train_spec.build_lr_schedulers_fn

    def build_for_ademamix(optimizers: OptimizersContainer, config: Any, training_steps: int) -> Any:
        # Here, not where optimizers are built: the number of steps is known here first, and nothing has been trained.
        steps = training_steps if config.total_steps is None else config.total_steps
        replace_adamw(optimizers, **{"total_steps": steps, **settings})
        return build(optimizers, config, training_steps)

    return dataclasses.replace(train_spec, build_lr_schedulers_fn=build_for_ademamix)


def replace_adamw(optimizers: OptimizersContainer, *, total_steps: int, **settings: Any) -> None:
    """Put AdEMAMix in the place of every AdamW in `optimizers`, before its first step and its lr schedulers.

    Args:
        optimizers: a container of torchtitan; optimizers of another kind stay.
        total_steps: number of optimizer steps of the run.
        settings: other arguments of :meth:`ademamix.AdEMAMix.from_adamw`.
    """
    from torchtitan.components.optimizer import OptimizersInBackwardContainer

    if isinstance(optimizers, OptimizersInBackwardContainer):
        raise ValueError(
            "early_step_in_backward is not possible with AdEMAMix: torchtitan's hooks keep the AdamW they were made "
            "with. Set optimizer.early_step_in_backward to false."
        )
    from_the_start = {"alpha": hyperparameters.ALPHA, "alpha_warmup": None, "beta3_warmup": None}
    arguments = {**from_the_start, "total_steps": total_steps, **settings}
    optimizers.optimizers = [
        AdEMAMix.from_adamw(optimizer, **arguments) if isinstance(optimizer, torch.optim.Adam) else optimizer
        for optimizer in optimizers.optimizers
    ]
