"""Parameter groups: how their settings are taken from a caller who may have written them for AdamW."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import torch

from ademamix import hyperparameters
from ademamix.pytorch.foreign import refuse_other_adams

P = ParamSpec("P")

ADAMW_AFTER_BETAS = ("eps", "weight_decay", "amsgrad")  # the order in which AdamW takes them without names

_optimizers_of_one = itertools.count()  # in this process


def named_after_betas(init: Callable[P, None]) -> Callable[P, None]:
    """Let a constructor say which names to write for the arguments that AdamW takes by position after ``betas``."""

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        _, *positional = args
        misplaced = positional[3:]
        if misplaced:
            named = ", ".join(f"{name}={value!r}" for name, value in zip(ADAMW_AFTER_BETAS, misplaced, strict=False))
            raise TypeError(
                f"AdEMAMix takes what comes after betas by name, got {len(misplaced)} more by position. If they are in "
                f"AdamW's order, write AdEMAMix(params, lr, betas, {named})."
            )
        init(*args, **kwargs)

    return checked


def resolved(stated: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings that a group states and fill in the others.

    A group that AdEMAMix had before has all of them. As in loading a checkpoint, explicit settings in `defaults` then
    win, so that a new horizon counts.
    """
    refuse_other_adams(stated)
    settings = {name: stated.get(name, default) for name, default in defaults.items()}
    if "given" in stated:
        return hyperparameters.override({**settings, "given": stated["given"]}, hyperparameters.resolve(defaults))
    return hyperparameters.resolve(settings)


def advise(param_groups: list[dict[str, Any]], stacklevel: int) -> None:
    """Warn, once for all groups, of settings that commonly make a run diverge."""
    for advice in dict.fromkeys(hyperparameters.advice(group) for group in param_groups):
        if advice is not None:
            warnings.warn(advice, stacklevel=stacklevel)


def settle_seeds(param_groups: list[dict[str, Any]]) -> None:
    """Give an optimizer of one parameter random words of its own, unless the caller has chosen a seed.

    Words are keyed by the index of a parameter in its optimizer. Where each parameter has an optimizer, all are at 0,
    and only the seed can tell them apart: it is the number of such optimizers that this process had before, in bits
    that seeds chosen by hand do not reach. Nothing else will do. Shapes are those of many layers. Values are not the
    same on all replicas before these are synchronised. Names are unknown. A number is the same wherever a program
    constructs its optimizers in the same order, as replicas do, and is saved with the group, so that a resumed run has
    it whatever was constructed before. The first has 0, as do all optimizers of several parameters.
    """
    is_alone = sum(len(group["params"]) for group in param_groups) == 1
    for group in param_groups:
        if not hyperparameters.is_stated(group["rounding_seed"]):
            group["rounding_seed"] = next(_optimizers_of_one) << 32 if is_alone and group["params"] else 0


def check_for_step(group: dict[str, Any]) -> None:
    """Raise if a step cannot be taken with `group`, before anything is changed in this group or another."""
    if torch.compiler.is_compiling():
        return  # tracing would fail before anything runs; looking at symbolic values would add guards
    hyperparameters.check_for_step(group)
    if not all(type(beta) is float for beta in group["betas"]):
        group["betas"] = tuple(float(beta) for beta in group["betas"])
