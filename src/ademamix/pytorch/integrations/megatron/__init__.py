"""Megatron-Core: AdEMAMix in the place of Adam, inside the optimizers that Megatron builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ademamix.pytorch.optimizer import AdEMAMix

if TYPE_CHECKING:
    from megatron.core.optimizer import MegatronOptimizer
    from torch.optim import Optimizer


def use_ademamix(
    optimizer: MegatronOptimizer, *, total_steps: int, beta3: float | None = None, **settings: Any
) -> None:
    """Let an optimizer of Megatron-Core step with AdEMAMix, in the place of the Adam that it was built with.

    Call this before the first step, and before a checkpoint is loaded:

    .. code-block:: python

        optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, ...), model_chunks)
        use_ademamix(optimizer, total_steps=args.train_iters, alpha=8.0)

    Learning rate, beta1, beta2, epsilon and weight decay are those of the ``OptimizerConfig``; with ``adam_beta1 = 0``
    no m1 is stored. CPU offload, the precision-aware optimizer and Megatron FSDP are refused.

    Args:
        optimizer: what ``get_megatron_optimizer`` returned.
        total_steps: number of optimizer steps of the run.
        beta3: None for the value that suits `total_steps`.
        settings: other arguments of :class:`ademamix.AdEMAMix`.
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    from ademamix.pytorch.integrations.megatron.distributed import DistributedAdEMAMix, init_state

    parts = [part for part in getattr(optimizer, "chained_optimizers", [optimizer]) if part.optimizer is not None]
    for part in parts:
        _refuse(part)
    for part in parts:
        adam = part.optimizer
        settings_of_groups = [_settings_of(adam, group, beta3) for group in adam.param_groups]
        part.optimizer = AdEMAMix(settings_of_groups, total_steps=total_steps, **settings)
        for group, before in zip(part.optimizer.param_groups, adam.param_groups, strict=True):
            group["params"] = before["params"]  # not by the constructor: slices of fp32 parameters are not leaves
        part.init_state_fn = init_state
        if type(part) is DistributedOptimizer:
            part.__class__ = DistributedAdEMAMix  # which Megatron would refuse to build: it takes Adam only


def _refuse(part: Any) -> None:
    config = part.config
    problems = {
        f"it was built for {config.optimizer!r}: set optimizer='adam'": config.optimizer != "adam",
        "Adam has L2 weight decay: set decoupled_weight_decay=True": not config.decoupled_weight_decay,
        "it offloads its state to the CPU: set optimizer_cpu_offload=False": config.optimizer_cpu_offload,
        "it is precision-aware: set use_precision_aware_optimizer=False": config.use_precision_aware_optimizer,
        "Megatron FSDP is not supported: set use_megatron_fsdp=False": getattr(
            getattr(part, "ddp_config", None), "use_megatron_fsdp", False
        ),
        "it has taken steps or loaded a checkpoint already: call use_ademamix before": bool(part.optimizer.state),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ValueError(f"AdEMAMix cannot take the place of this optimizer's Adam: {problem}")


def _settings_of(adam: Optimizer, group: Mapping[str, Any], beta3: float | None) -> dict[str, Any]:
    """Return an empty group with Megatron's own entries, such as multipliers, and without those of Adam alone."""
    shared, dropped = ("lr", "betas", "eps", "weight_decay"), (*adam.defaults, "step", "params")
    own = {name: value for name, value in group.items() if name in shared or name not in dropped}
    if beta3 is not None:
        own["betas"] = (*group["betas"][:2], beta3)
    return {"params": [], **own}
