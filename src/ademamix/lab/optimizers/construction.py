"""The optimizers that a run can name, built from a config."""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from ademamix import hyperparameters
from ademamix.lab.config import ConfigError, Optimizer
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.optimizers.stepping import check_precision, checked_betas
from ademamix.pytorch.step import Flags, chosen

Made = TypeVar("Made")


def build(config: Optimizer, groups: Iterable[dict[str, Any]], *, total_steps: int) -> torch.optim.Optimizer:
    """Construct the optimizer that `config` names, for a run of `total_steps`.

    Its settings are the arguments of the constructor. One with schedules is given `total_steps`, unless the settings
    state it; AdEMAMix and the convex mix accept a separate `beta3` beside a pair of betas. A group's own settings, such
    as a weight decay of 0, stay.

    >>> config = Optimizer(name="ademamix", lr=1e-3, settings={"alpha": 8.0, "beta3": 0.99})
    >>> optimizer = build(config, [{"params": [torch.ones(2)], "weight_decay": 0.0}], total_steps=1000)
    >>> [optimizer.param_groups[0][name] for name in ("betas", "total_steps", "weight_decay")]
    [(0.9, 0.999, 0.99), 1000, 0.0]
    """
    make = constructor(config.name)
    allowed = arguments(make) - {"params", "lr", "differentiable"}
    beta3 = {"beta3"} if OPTIMIZERS[config.name].takes_beta3 else set()
    settings = settings_of(config, make, allowed | beta3, total_steps)
    if "beta3" in settings:
        settings["betas"] = _with_beta3(settings.get("betas", hyperparameters.BETAS), settings.pop("beta3"))
    if config.name == "adamw" and "betas" in settings:  # a third one would not raise until the first step
        settings["betas"] = constructed(config, lambda: checked_betas(settings["betas"], count=2))
    optimizer = constructed(config, lambda: make(groups, lr=config.lr, **settings))
    if isinstance(optimizer, torch.optim.AdamW):
        refuse_low_precision(optimizer, config)
        fuse(optimizer)
    return optimizer


def constructor(name: str) -> Callable[..., torch.optim.Optimizer]:
    """Import the class of an optimizer.

    >>> constructor("lion").__name__
    'Lion'
    """
    found: Callable[..., torch.optim.Optimizer] = pkgutil.resolve_name(OPTIMIZERS[name].constructor)
    return found


def settings_of(config: Optimizer, taker: Callable[..., Any], allowed: set[str], total_steps: int) -> dict[str, Any]:
    """Return the settings as arguments: lists of JSON as tuples, and with the horizon, if it is one of them."""
    switches = {name for name, each in inspect.signature(taker).parameters.items() if "bool" in str(each.annotation)}
    for name, value in config.settings.items():
        if name not in allowed:
            may_be = f"it takes {', '.join(sorted(allowed))}" if allowed else "here it takes none"
            raise ConfigError(f"optimizer {config.name!r} has no setting {name!r}: {may_be}")
        if name not in switches and _has_boolean(value):  # Python would take it for 0 or 1
            raise ConfigError(f"optimizer {config.name!r}: {name} must not be a truth value, got {value}")
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in config.settings.items()}
    return {"total_steps": total_steps, **settings} if "total_steps" in allowed else settings


def _has_boolean(value: Any) -> bool:
    return any(map(_has_boolean, value)) if isinstance(value, list) else isinstance(value, bool)


def arguments(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's arguments."""
    return set(inspect.signature(function).parameters)


def _with_beta3(betas: Any, beta3: Any) -> tuple[Any, ...]:
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise ConfigError(f"beta3={beta3!r} goes with betas of (beta1, beta2), got betas={betas!r}")
    return (*betas, beta3)


def constructed(config: Optimizer, construct: Callable[[], Made]) -> Made:
    """Return the optimizer that `construct` makes; errors that it raises name the optimizer."""
    try:
        return construct()
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {config.name!r}: {error}") from error


def refuse_low_precision(optimizer: torch.optim.Optimizer, config: Optimizer) -> None:
    """Raise if parameters would hardly move with torch's AdamW: the gain over it would be due to precision."""
    for group in optimizer.param_groups:
        constructed(config, functools.partial(check_precision, "AdamW", group["params"]))


def fuse(adamw: torch.optim.AdamW) -> None:
    """Let AdamW be fused where AdEMAMix would be, so that their step times compare, unless the settings say how."""
    for group in adamw.param_groups:
        params = group["params"]
        if group["fused"] is None and group["foreach"] is None:
            group["fused"] = chosen(Flags(), params)[0] or None
