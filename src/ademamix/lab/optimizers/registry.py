"""Builds the optimizers that a run can name, and switches between them in the middle of a run."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from ademamix import AdEMAMix, hyperparameters
from ademamix.lab.config import ConfigError, Optimizer, Run
from ademamix.lab.models import DTYPES
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.optimizers.stepping import check_precision, checked_betas
from ademamix.pytorch.step import fastest

Made = TypeVar("Made")


def build(config: Optimizer, groups: Iterable[dict[str, Any]], *, total_steps: int) -> torch.optim.Optimizer:
    """Construct the optimizer that `config` names, for a run of `total_steps`.

    Its settings are the arguments of the constructor. One with schedules is given `total_steps`, unless the settings
    state it; AdEMAMix and the convex mix accept a separate `beta3` beside a pair of betas. Settings of a group's own,
    such as a weight decay of 0, stay.

    >>> config = Optimizer(name="ademamix", lr=1e-3, settings={"alpha": 8.0, "beta3": 0.99})
    >>> optimizer = build(config, [{"params": [torch.ones(2)], "weight_decay": 0.0}], total_steps=1000)
    >>> [optimizer.param_groups[0][name] for name in ("betas", "total_steps", "weight_decay")]
    [(0.9, 0.999, 0.99), 1000, 0.0]
    """
    make = constructor(config.name)
    allowed = _arguments(make) - {"params", "lr", "differentiable"}
    beta3 = {"beta3"} if OPTIMIZERS[config.name].takes_beta3 else set()
    settings = _settings(config, make, allowed | beta3, total_steps)
    if "beta3" in settings:
        settings["betas"] = _with_beta3(settings.get("betas", hyperparameters.BETAS), settings.pop("beta3"))
    if config.name == "adamw" and "betas" in settings:  # a third one would raise at the first step only
        settings["betas"] = _constructed(config, lambda: checked_betas(settings["betas"], count=2))
    optimizer = _constructed(config, lambda: make(groups, lr=config.lr, **settings))
    if isinstance(optimizer, torch.optim.AdamW):
        _refuse_low_precision(optimizer, config)
        _fuse(optimizer)
    return optimizer


def constructor(name: str) -> Callable[..., torch.optim.Optimizer]:
    """Import the class of an optimizer.

    >>> constructor("lion").__name__
    'Lion'
    """
    found: Callable[..., torch.optim.Optimizer] = pkgutil.resolve_name(OPTIMIZERS[name].constructor)
    return found


def check(config: Run) -> None:
    """Construct the optimizers of a run for a single number, so that mistakes in them are reported before it begins.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> wrong = Optimizer(name="ademamix", lr=1e-3, settings={"alpha": -1})
    >>> check(DEFAULT.model_copy(update={"optimizer": wrong}))
    Traceback (most recent call last):
    ademamix.lab.config.ConfigError: optimizer 'ademamix': alpha must be a finite number >= 0, got -1
    """
    point = torch.zeros(1, dtype=DTYPES[config.parameters])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself will warn
        optimizer = build(config.optimizer, [{"params": [point]}], total_steps=config.steps)
        if config.switch is not None:
            switch(optimizer, config.switch.optimizer, total_steps=config.steps - config.switch.step)


def switch(optimizer: torch.optim.Optimizer, config: Optimizer, *, total_steps: int) -> torch.optim.Optimizer:
    """Go on from AdamW with AdEMAMix or the other way round, at the learning rate of `config`.

    `total_steps` are those still to come. The settings are the arguments of :meth:`ademamix.AdEMAMix.from_adamw`;
    there are none for AdamW. The optimizer that is left can no longer step.

    >>> adamw = build(Optimizer(name="adamw", lr=1e-3), [{"params": [torch.ones(2)]}], total_steps=1000)
    >>> config = Optimizer(name="ademamix", lr=5e-4, settings={"alpha": 1.0})
    >>> optimizer = switch(adamw, config, total_steps=500)
    >>> [optimizer.param_groups[0][name] for name in ("lr", "alpha", "total_steps", "alpha_warmup")]
    [0.0005, 1.0, 500, 0]

    Reference: section 4.1 of the paper, and appendix C, "Removing the second EMA mid-training".
    """
    new: torch.optim.Optimizer
    if isinstance(optimizer, torch.optim.AdamW) and config.name == "ademamix":
        allowed = _arguments(AdEMAMix.from_adamw) - {"adamw"}
        settings = _settings(config, AdEMAMix.from_adamw, allowed, total_steps)
        new = _constructed(config, lambda: AdEMAMix.from_adamw(optimizer, **settings))
    elif isinstance(optimizer, AdEMAMix) and config.name == "adamw":
        _settings(config, AdEMAMix.to_adamw, set(), total_steps)
        _refuse_low_precision(optimizer, config)
        new = optimizer.to_adamw()
        _fuse(new)
    else:
        raise ConfigError(
            f"a run cannot switch from {type(optimizer).__name__} to {config.name!r}: the switches there are go from "
            "'adamw' to 'ademamix' and from 'ademamix' to 'adamw'"
        )
    for group in new.param_groups:
        group["lr"] = config.lr
    return new


def _settings(config: Optimizer, taker: Callable[..., Any], allowed: set[str], total_steps: int) -> dict[str, Any]:
    """Return the settings as arguments: lists of JSON as tuples, and with the horizon, if it is one of them."""
    switches = {name for name, each in inspect.signature(taker).parameters.items() if "bool" in str(each.annotation)}
    for name, value in config.settings.items():
        if name not in allowed:
            may_be = f"it takes {', '.join(sorted(allowed))}" if allowed else "here it takes none"
            raise ConfigError(f"optimizer {config.name!r} has no setting {name!r}: {may_be}")
        if name not in switches and _has_boolean(value):  # which Python would take for 0 and 1
            raise ConfigError(f"optimizer {config.name!r}: {name} must not be a truth value, got {value}")
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in config.settings.items()}
    return {"total_steps": total_steps, **settings} if "total_steps" in allowed else settings


def _has_boolean(value: Any) -> bool:
    return any(map(_has_boolean, value)) if isinstance(value, list) else isinstance(value, bool)


def _arguments(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def _with_beta3(betas: Any, beta3: Any) -> tuple[Any, ...]:
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise ConfigError(f"beta3={beta3!r} goes with betas of (beta1, beta2), got betas={betas!r}")
    return (*betas, beta3)


def _constructed(config: Optimizer, construct: Callable[[], Made]) -> Made:
    try:
        return construct()
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {config.name!r}: {error}") from error


def _refuse_low_precision(optimizer: torch.optim.Optimizer, config: Optimizer) -> None:
    """Raise if parameters would hardly move with torch's AdamW: the gain over it would be that of precision."""
    for group in optimizer.param_groups:
        _constructed(config, functools.partial(check_precision, "AdamW", group["params"]))


def _fuse(adamw: torch.optim.AdamW) -> None:
    """Let AdamW be fused where AdEMAMix would be, so that their step times compare, unless the settings say how."""
    for group in adamw.param_groups:
        params = group["params"]
        if group["fused"] is None and group["foreach"] is None:
            group["fused"] = fastest(params, differentiable=False)[0] or None
