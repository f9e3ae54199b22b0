"""Optimizer states of torch without their model: loaded into real optimizers of stand-ins for the parameters."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix import hyperparameters
from ademamix.checkpoints import flat_states, torch_form
from ademamix.checkpoints.errors import CheckpointError, outside_cause
from ademamix.checkpoints.explanation import Change, of_group, of_parameter
from ademamix.checkpoints.wish import AFTER_ADAMW, Wish
from ademamix.pytorch import foreign
from ademamix.pytorch.checkpoint import recognised
from ademamix.pytorch.optimizer import AdEMAMix
from ademamix.schedules import beta3_for_horizon
from ademamix.state_keys import CORRECTION_KEY

StateDict = Mapping[str, Any]
WIDE = (torch.float64, torch.complex64, torch.complex128)  # whose moments are not fp32


class Converted(NamedTuple):
    """A state in its new form, in the form that it was found in, and what there is to say about it."""

    node: Any
    origin: str
    changes: list[Change]
    notes: list[str]


class Source(NamedTuple):
    """A state that was found, and the same in our names or AdamW's."""

    found: StateDict
    translated: StateDict
    origin: str
    """Whose it is: "ademamix", "AdamW", or the name of another AdEMAMix."""

    @property
    def keys(self) -> list[Any]:
        """The keys of all parameters, in their order."""
        return list(itertools.chain.from_iterable(group["params"] for group in self.found["param_groups"]))

    @property
    def names(self) -> dict[Any, str]:
        """The name of each parameter by its key: one that the file has, or else its number."""
        names = {}
        for group in self.found["param_groups"]:
            for key, name in zip(group["params"], group.get("param_names") or group["params"], strict=True):
                names[key] = str(name)
        return names


def read(node: Any) -> Source:
    """Return a state that was found in a checkpoint, or raise ValueError if it is none of AdamW or an AdEMAMix."""
    state_dict = flat_states.nested(node) if flat_states.is_flat(node) else flat_states.with_numbers(node)
    torch_form.check_found(state_dict)
    try:
        translated = foreign.translated(state_dict)  # refuses what it does not know
    except (IndexError, RuntimeError) as error:  # of 8-bit codes
        raise outside_cause(error, "the codes of this state") or CheckpointError(
            "the codes of this state do not fit its scales or its table of values: the checkpoint is damaged. Go back "
            "to an earlier one."
        ) from error
    torch_form.check_moments(translated)
    groups = [group for group in state_dict["param_groups"] if set(group) != {"params"}]
    if not groups:
        raise CheckpointError(
            "this optimizer state has no parameter groups, or only empty ones, so that nothing says whose it is: save "
            "the state_dict() of an optimizer that has parameters"
        )
    torch_form.check_named(state_dict)
    origins = {layout.origin for group in groups if (layout := foreign.layout_of(group))}
    if len(origins) > 1:
        raise CheckpointError(
            f"the groups of one optimizer belong to {', '.join(sorted(origins))}: they must all be alike"
        )
    return Source(state_dict, translated, origins.pop())


def convert(node: Any, wish: Wish) -> Converted:
    """Return an optimizer state as the wished optimizer has it."""
    source = read(node)
    wish.check(source.origin)
    settings = {**AFTER_ADAMW, **wish.settings} if source.origin == "AdamW" else wish.settings
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer = _loaded(source, keeps_masters=wish.to == "ademamix", **settings)
    reports = [str(warning.message).removeprefix(recognised(source.origin)).strip() for warning in told]
    notes = [report for report in reports if report]
    if wish.to == "ademamix":
        notes += _choice_without_horizon(source, wish, optimizer) + advice(optimizer)
    new = _as_found((optimizer.to_adamw() if wish.to == "adamw" else optimizer).state_dict(), source)
    changes = _changes(source, new)
    tree = (flat_states.flattened if flat_states.is_flat(node) else flat_states.without_numbers)(new, before=node)
    return Converted(tree, source.origin, changes, notes)


def verify(node: Any, to: str) -> None:
    """Load a state that was written, as a training script would, or raise."""
    source = read(node)
    if to == "ademamix":
        loaded(source)
    else:
        torch.optim.AdamW(_groups_of_stand_ins(source)).load_state_dict(dict(source.found))


def loaded(source: Source) -> AdEMAMix:
    """Return an AdEMAMix that has loaded a state, of itself or another, for stand-ins of its parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what `convert` notes
        return _loaded(source)


def _loaded(source: Source, beta3: float | None = None, *, keeps_masters: bool = True, **settings: Any) -> AdEMAMix:
    """Return it with settings of its own, and warn as it does of what it has loaded.

    Without masters, corrections are dropped, and moments are not limited to the precision of bf16 parameters.
    """
    betas = hyperparameters.BETAS if beta3 is None else (*hyperparameters.BETAS, beta3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of settings that the state replaces; `advice` is about those that remain
        optimizer = AdEMAMix(_groups_of_stand_ins(source, keeps_masters=keeps_masters), betas=betas, **settings)
    groups = zip(source.translated["param_groups"], optimizer.param_groups, strict=True)
    for number, (group, own) in enumerate(groups):
        torch_form.check_settings(number, group, own)
    optimizer.load_state_dict(dict(source.translated))
    return optimizer


def advice(optimizer: AdEMAMix) -> list[str]:
    """Return what there is to say about the settings of an optimizer, each once."""
    clocks = [schedule["slow_step"] for schedule in optimizer.schedule()]
    found = dict.fromkeys(map(_advice, optimizer.param_groups, clocks))
    return [text for text in found if text is not None]


def _advice(group: Mapping[str, Any], slow_step: int) -> str | None:
    """Return the library's advice; that to leave beta3 out does not help where a checkpoint has one."""
    text, total_steps = hyperparameters.advice(group), group["total_steps"]
    if total_steps is None:
        return text or outlasting_warmups(group, slow_step)
    if text is None:
        return None
    beta1, _, beta3 = group["betas"]
    fitting = beta3_for_horizon(total_steps, beta1)
    return (
        f"beta3 = {beta3:g} remembers about {_memory(beta3):,} steps, more than half of total_steps = {total_steps:,}: "
        f"the slow average outlives the run. Convert with --beta3 {fitting:g} (in Python: beta3={fitting:g}), which "
        "fits."
    )


def outlasting_warmups(group: Mapping[str, Any], slow_step: int) -> str | None:
    """Say that beta3 remembers more than half of the warm-ups, which most runs have for their whole length.

    Other implementations know nothing else of it. A run that is past its warm-ups is longer than they are.
    """
    beta1, _, beta3 = group["betas"]
    warmup = max(group["alpha_warmup"], group["beta3_warmup"])
    is_over = slow_step > warmup or not warmup
    if is_over or not group["alpha"] or beta3 <= beta1 or _memory(beta3) <= warmup / 2:
        return None
    fitting = beta3_for_horizon(warmup, beta1)
    return (
        f"beta3 = {beta3:g} remembers about {_memory(beta3):,} steps, more than half of the warm-ups of {warmup:,}. If "
        f"that is the length of the run, the slow average outlives it: take beta3 = {fitting:g}, which fits."
    )


def _choice_without_horizon(source: Source, wish: Wish, optimizer: AdEMAMix) -> list[str]:
    """Say which beta3 was chosen after AdamW if nobody has said how long the run will be: it may outlive that."""
    group = optimizer.param_groups[0]
    if source.origin != "AdamW" or {"total_steps", "beta3"} & wish.given.keys() or not group["alpha"]:
        return []
    beta3 = group["betas"][2]
    text = (
        f"no total_steps was given, so beta3 = {beta3:g} was chosen, with alpha = {group['alpha']:g}: it remembers "
        f"about {_memory(beta3):,} steps. If fewer than about {2 * _memory(beta3):,} are still to come, give "
        "--total-steps (in Python: total_steps), which lowers it."
    )
    return [text]


def _memory(beta3: float) -> int:
    return round(1 / (1 - beta3))


def _groups_of_stand_ins(source: Source, *, keeps_masters: bool = False) -> list[dict[str, Any]]:
    """Return groups of parameters that have the shapes of the moments, and no values: nobody will step them."""
    groups = []
    for group in source.found["param_groups"]:
        states = [source.translated["state"].get(key) or {} for key in group["params"]]
        params = [_stand_in(entries, is_bf16=keeps_masters and CORRECTION_KEY in entries) for entries in states]
        names = group.get("param_names")
        groups.append({"params": list(zip(names, params, strict=True)) if names else params})
    return groups


def _stand_in(entries: Mapping[str, Any], *, is_bf16: bool) -> Tensor:
    moment = entries.get("exp_avg_sq")
    if moment is None:
        return torch.empty(0)
    narrow = torch.bfloat16 if is_bf16 else torch.float32
    return torch.empty_like(moment, dtype=moment.dtype if moment.dtype in WIDE else narrow)


def _as_found(saved: StateDict, source: Source) -> dict[str, Any]:
    """Return what an optimizer of stand-ins has saved with the keys of the source, and with all else that it has.

    heavyball has settings of its own there, which mean nothing to others.
    """
    found, keys = source.found, source.keys
    groups = []
    for group, old in zip(saved["param_groups"], found["param_groups"], strict=True):
        capturable = old.get("capturable", group["capturable"])  # stand-ins are on a CPU, where AdamW has no such thing
        groups.append({**group, "params": list(old["params"]), "capturable": capturable})
    others = {key: value for key, value in found.items() if key not in ("state", "param_groups", "heavyball")}
    state = {key: value for key, value in found["state"].items() if key not in keys}
    state |= {keys[number]: saved["state"][number] for number in range(len(keys)) if number in saved["state"]}
    return {**others, "state": state, "param_groups": groups}


def _changes(source: Source, new: StateDict) -> list[Change]:
    old, names = source.found, source.names
    changes = []
    for key in source.keys:
        if old["state"].get(key):
            entries = old["state"][key], source.translated["state"][key], new["state"][key]
            changes += of_parameter(names[key], source.origin, *entries)
    for number, groups in enumerate(zip(old["param_groups"], new["param_groups"], strict=True)):
        changes += of_group(number, *groups)
    return changes
