"""From one optimizer to another in the middle of a run: the state that they have in common is taken over."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from ademamix import AdEMAMix
from ademamix.lab.config import ConfigError, Optimizer, Run
from ademamix.lab.models.networks import DTYPES
from ademamix.lab.optimizers import construction
from ademamix.lab.optimizers.variants import AdamWScheduledBeta1

Groups = Iterable[dict[str, Any]]


class Place(NamedTuple):
    """Where a run switches, and the groups that a new optimizer is built from."""

    groups: Groups
    step: int
    steps: int


Transition = Callable[[Any, Optimizer, Place], torch.optim.Optimizer]


def check(config: Run) -> None:
    """Construct the optimizers of a run for a single number, so that mistakes in their settings raise before it begins.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> wrong = Optimizer(name="ademamix", lr=1e-3, settings={"alpha": -1})
    >>> check(DEFAULT.changed(optimizer=wrong))
    Traceback (most recent call last):
    ademamix.lab.config.ConfigError: optimizer 'ademamix': alpha must be a finite number >= 0, got -1
    """
    point = torch.zeros(1, dtype=DTYPES[config.parameters])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself will warn
        optimizer = construction.build(config.optimizer, [{"params": [point]}], total_steps=config.steps)
        for phase in config.phases:
            if phase.optimizer is not None:
                groups = [{"params": [point]}]
                optimizer = switch(optimizer, phase.optimizer, groups, step=phase.step, steps=config.steps)


def switch(
    optimizer: torch.optim.Optimizer, config: Optimizer, groups: Groups, *, step: int, steps: int
) -> torch.optim.Optimizer:
    """Return the optimizer that continues after `step` of `steps`, at the learning rate of `config`.

    From AdamW to AdEMAMix the settings are the arguments of :meth:`ademamix.AdEMAMix.from_adamw`, with the steps that
    are left as the horizon; from AdEMAMix to AdamW there are none. AdamW can continue with a beta1 that rises from its
    own, and every optimizer with other settings. A new optimizer is built from `groups`, which must be fresh: groups
    that another optimizer was built from have its settings. The old one can no longer step.

    >>> point = torch.ones(2)
    >>> adamw = construction.build(Optimizer(name="adamw", lr=1e-3), [{"params": [point]}], total_steps=1000)
    >>> config = Optimizer(name="ademamix", lr=5e-4, settings={"alpha": 1.0})
    >>> optimizer = switch(adamw, config, [{"params": [point]}], step=500, steps=1000)
    >>> [optimizer.param_groups[0][name] for name in ("lr", "alpha", "total_steps", "alpha_warmup")]
    [0.0005, 1.0, 500, 0]

    Reference: section 4.1 of the paper, and appendix C, "Removing the second EMA mid-training" and "Limitations of a
    single EMA".
    """
    new = _transition(optimizer, config.name)(optimizer, config, Place(groups, step, steps))
    optimizer.param_groups = []
    for group in new.param_groups:
        group["lr"] = config.lr
    return new


def _transition(optimizer: torch.optim.Optimizer, after: str) -> Transition:
    """Return what makes the optimizer of the name `after` from this one."""
    if type(optimizer) is construction.constructor(after):
        return _with_other_settings
    for (name, other), transition in TRANSITIONS.items():
        if other == after and type(optimizer) is construction.constructor(name):
            return transition
    raise ConfigError(
        f"a run cannot switch from {type(optimizer).__name__} to {after!r}: it can switch {_listed(TRANSITIONS)}, and "
        "to other settings of the same one"
    )


def _listed(switches: Iterable[tuple[str, str]]) -> str:
    """Return the switches in words.

    >>> _listed([("a", "b"), ("a", "c"), ("b", "a")])
    "from 'a' to 'b' or 'c', from 'b' to 'a'"
    """
    others: dict[str, list[str]] = {}
    for name, other in switches:
        others.setdefault(name, []).append(repr(other))
    return ", ".join(f"from {name!r} to {' or '.join(found)}" for name, found in others.items())


def _with_other_settings(optimizer: torch.optim.Optimizer, config: Optimizer, place: Place) -> torch.optim.Optimizer:
    new = construction.build(config, place.groups, total_steps=place.steps)
    new.state.update(optimizer.state)
    return new


def _from_adamw(adamw: torch.optim.AdamW, config: Optimizer, place: Place) -> AdEMAMix:
    allowed = construction.arguments(AdEMAMix.from_adamw) - {"adamw"}
    settings = construction.settings_of(config, AdEMAMix.from_adamw, allowed, place.steps - place.step)
    return construction.constructed(config, lambda: AdEMAMix.from_adamw(adamw, **settings))


def _to_adamw(optimizer: AdEMAMix, config: Optimizer, _: Place) -> torch.optim.AdamW:
    construction.settings_of(config, AdEMAMix.to_adamw, set(), 0)
    construction.refuse_low_precision(optimizer, config)
    adamw = optimizer.to_adamw()
    construction.fuse(adamw)
    return adamw


def _with_rising_beta1(adamw: torch.optim.AdamW, config: Optimizer, place: Place) -> torch.optim.Optimizer:
    """Continue with AdamW's averages; unless stated otherwise, beta1 rises from AdamW's over the steps that are left.

    The weight that all gradients have in the average so far is that of AdamW, 1 - beta1^t.
    """
    beta1 = adamw.param_groups[0]["betas"][0]
    own = {"beta1_start": beta1, "total_steps": place.steps - place.step, **config.settings}
    own["schedule_start"] = place.step
    new = construction.build(config.model_copy(update={"settings": own}), place.groups, total_steps=place.steps)
    assert isinstance(new, AdamWScheduledBeta1)
    for param, state in adamw.state.items():
        taken = {name: state[name] for name in ("step", "exp_avg", "exp_avg_sq")}
        new.state[param] = taken | {"weight": param.new_tensor(1 - beta1 ** float(state["step"]))}
    return new


TRANSITIONS: dict[tuple[str, str], Transition] = {
    ("adamw", "ademamix"): _from_adamw,
    ("adamw", "adamw-scheduled-beta1"): _with_rising_beta1,
    ("ademamix", "adamw"): _to_adamw,
}
"""What makes one optimizer from another, by the names of the two; any can continue with other settings."""
