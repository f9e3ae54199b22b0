"""Optimizer states of torch without their model: loaded into real optimizers of stand-ins for the parameters."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix import hyperparameters
from ademamix.checkpoints import flat_states
from ademamix.checkpoints.errors import CheckpointError
from ademamix.checkpoints.explanation import Change, of_group, of_parameter
from ademamix.checkpoints.wish import AFTER_ADAMW, Wish
from ademamix.pytorch import foreign
from ademamix.pytorch.optimizer import AdEMAMix

StateDict = Mapping[str, Any]
WIDE = (torch.float64, torch.complex64, torch.complex128)  # whose moments are not fp32


class Converted(NamedTuple):
    """A state in its new form, in the form that it was found in, and what there is to say about it."""

    node: Any
    origin: str
    changes: list[Change]
    notes: list[str]


def convert(node: Any, wish: Wish) -> Converted:
    """Return an optimizer state as the wished optimizer has it."""
    state_dict = flat_states.nested(node) if flat_states.is_flat(node) else node
    origin = origin_of(state_dict)
    wish.check(origin)
    settings = {**AFTER_ADAMW, **wish.settings} if origin == "AdamW" else wish.settings
    optimizer = loaded(state_dict, **settings)
    notes = [] if wish.to == "adamw" else advice(optimizer)
    saved = (optimizer.to_adamw() if wish.to == "adamw" else optimizer).state_dict()
    new = _with_keys_of(state_dict, saved)
    changes = _changes(state_dict, new, origin)
    return Converted(flat_states.flattened(new) if flat_states.is_flat(node) else new, origin, changes, notes)


def verify(node: Any, to: str) -> None:
    """Load a state that was written, as a training script would, or raise."""
    state_dict = flat_states.nested(node) if flat_states.is_flat(node) else node
    if to == "ademamix":
        loaded(state_dict)
    else:
        torch.optim.AdamW(_groups_of_stand_ins(state_dict)).load_state_dict(dict(state_dict))


def origin_of(state_dict: StateDict) -> str:
    """Say whose state it is: "ademamix", "AdamW", or the name of another AdEMAMix."""
    layouts = {foreign.layout_of(group) for group in state_dict["param_groups"] if set(group) != {"params"}}
    foreign.translated(state_dict)  # refuses what is none of these
    origins = {layout.origin for layout in layouts if layout is not None}
    if len(origins) != 1:
        raise CheckpointError(
            f"the groups of one optimizer belong to {', '.join(sorted(origins)) or 'nobody'}: they must all be alike"
        )
    return origins.pop()


def loaded(state_dict: StateDict, beta3: float | None = None, **settings: Any) -> AdEMAMix:
    """Return an AdEMAMix that has loaded a state, of itself or another, for stand-ins of its parameters."""
    betas = hyperparameters.BETAS if beta3 is None else (*hyperparameters.BETAS, beta3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of settings that the state replaces; `advice` is about those that remain
        optimizer = AdEMAMix(_groups_of_stand_ins(state_dict), betas=betas, **settings)
        optimizer.load_state_dict(dict(state_dict))
    for group, old in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        group["capturable"] = old.get("capturable", group["capturable"])
    return optimizer


def advice(optimizer: AdEMAMix) -> list[str]:
    """Return what there is to say about the settings of an optimizer, each once."""
    found = dict.fromkeys(hyperparameters.advice(group) for group in optimizer.param_groups)
    return [text for text in found if text is not None]


def keys_of(state_dict: StateDict) -> list[Any]:
    """List the keys of all parameters, in their order."""
    return list(itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"]))


def names_of(state_dict: StateDict) -> dict[Any, str]:
    """Return the name of each parameter by its key: one that the file has, or else its number."""
    names = {}
    for group in state_dict["param_groups"]:
        for key, name in zip(group["params"], group.get("param_names") or group["params"], strict=True):
            names[key] = str(name)
    return names


def _groups_of_stand_ins(state_dict: StateDict) -> list[dict[str, Any]]:
    """Return groups of parameters that have the shapes of the moments, and no values: nobody will step them."""
    state = foreign.translated(state_dict)["state"]
    groups = []
    for group in state_dict["param_groups"]:
        params = [_stand_in(state.get(key) or {}) for key in group["params"]]
        names = group.get("param_names")
        groups.append({"params": list(zip(names, params, strict=True)) if names else params})
    return groups


def _stand_in(entries: Mapping[str, Any]) -> Tensor:
    moment = entries.get("exp_avg_sq")
    if moment is None:
        return torch.empty(0)
    return torch.empty_like(moment, dtype=moment.dtype if moment.dtype in WIDE else torch.float32)


def _with_keys_of(old: StateDict, saved: StateDict) -> dict[str, Any]:
    """Return a state_dict of torch, which numbers parameters, with the keys that the old one has, and what else it has.

    heavyball has settings of its own there, which mean nothing to others.
    """
    keys = keys_of(old)
    others = {key: value for key, value in old.items() if key not in ("state", "param_groups", "heavyball")}
    groups = [
        {**group, "params": list(old_group["params"])}
        for group, old_group in zip(saved["param_groups"], old["param_groups"], strict=True)
    ]
    state = {key: value for key, value in old["state"].items() if key not in keys}
    state |= {keys[number]: entries for number, entries in saved["state"].items()}
    return {**others, "state": state, "param_groups": groups}


def _changes(old: StateDict, new: StateDict, origin: str) -> list[Change]:
    translated, names = foreign.translated(old)["state"], names_of(old)
    changes = []
    for key in keys_of(old):
        if old["state"].get(key):
            entries = old["state"][key], translated[key], new["state"][key]
            changes += of_parameter(names[key], origin, *entries)
    for number, groups in enumerate(zip(old["param_groups"], new["param_groups"], strict=True)):
        changes += of_group(number, *groups)
    return changes
