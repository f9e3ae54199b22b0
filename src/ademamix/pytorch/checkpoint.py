"""Loading a state_dict: parameters are matched by name, dtypes are kept, a changed horizon is reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from ademamix import hyperparameters
from ademamix.pytorch import diagnostics, foreign, parameter_state
from ademamix.schedules import OPEN

# Pieces that torch puts into the names of parameters when it wraps a model, or a part of it.
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class Verbatim:
    """Carries a state tensor past torch's loader, which would cast it to the dtype of its parameter."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def protect(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Refuse a state that cannot be continued, and wrap the tensors of any other. A pre-hook of load_state_dict."""
    state_dict = foreign.translated(state_dict)
    state = {
        param: {key: Verbatim(value) if isinstance(value, Tensor) else value for key, value in entries.items()}
        if isinstance(entries, dict)
        else entries  # something that the user keeps beside the parameters
        for param, entries in state_dict["state"].items()
    }
    groups = _in_order(state_dict["param_groups"], optimizer.param_groups)
    return {**state_dict, "state": state, "param_groups": groups}


def _in_order(saved: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups of a checkpoint with their parameters in the order of `own`, by name if all have names."""
    if len(saved) != len(own) or not all("param_names" in group for group in (*saved, *own)):
        return saved  # by position, as torch does; it reports a different number of groups
    names_left = [_plain_names(group) for group in saved]
    if names_left == [_plain_names(group) for group in own]:
        return saved
    left, ordered = list(saved), []
    for group in own:
        names = _plain_names(group)
        place = next((i for i, others in enumerate(names_left) if sorted(others) == sorted(names)), None)
        if place is None or len(set(names)) < len(names):
            raise ValueError(_other_names(saved, own))
        found = left.pop(place)
        key_of = dict(zip(names_left.pop(place), found["params"], strict=True))
        params = [key_of[name] for name in names]
        ordered.append({**found, "params": params, "param_names": list(group["param_names"])})
    return ordered


def _plain_names(group: Mapping[str, Any]) -> list[str]:
    """Return the names of a group's parameters, without the pieces that wrappers of the model put into them."""
    plain = []
    for name in group["param_names"]:
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "")
        plain.append(name.removeprefix("module."))
    return plain


def _other_names(saved: list[dict[str, Any]], own: list[dict[str, Any]]) -> str:
    theirs, ours = ({name for group in groups for name in _plain_names(group)} for groups in (saved, own))
    if theirs == ours:
        problem = "the checkpoint has the same parameters in other groups"
    else:
        problem = "the checkpoint has other parameters" + "".join(
            f": {', '.join(sorted(names)[:3])}{' and more' if len(names) > 3 else ''} {where} alone"
            for names, where in ((theirs - ours, "there"), (ours - theirs, "here"))
            if names
        )
    return (
        f"{problem}. Load it into an optimizer of the same model and groups, or delete 'param_names' from its groups "
        "to have parameters matched by their position, as torch does."
    )


def settle(own_groups: list[dict[str, Any]], loaded: dict[str, Any]) -> str | None:
    """Bring the state that torch's loader is about to install into shape, and return what there is to report.

    `own_groups` are the optimizer's groups so far.
    """
    reports = []
    notes: dict[str, None] = {}
    origins: dict[str, None] = {}
    notes |= dict.fromkeys(foreign.doubts(loaded["param_groups"], {key for own in own_groups for key in own}))
    for own, group in zip(own_groups, loaded["param_groups"], strict=True):
        own_settings = {key: value for key, value in own.items() if key not in ("params", "param_names")}
        origin = group.pop(foreign.ORIGIN, None)
        if origin is not None:
            origins[origin] = None
        saved = _as_resolved(group, own_settings)
        for key in foreign.ADAMW_ONLY:
            group.pop(key, None)
        settings = hyperparameters.override(saved, own_settings)
        if saved["total_steps"] == OPEN and (note := _early_end(settings)):
            notes[note] = None
        for param in group["params"]:
            if loaded["state"].get(param):
                entries = {key: _unwrapped(value) for key, value in loaded["state"][param].items()}
                parameter_state.refuse_bare_codes(entries, param, saved)
                if group.get("master") is not None and parameter_state.lacks_correction(entries, param, group):
                    notes[_NO_CORRECTIONS] = None
                loaded["state"][param] = parameter_state.adopt(entries, param, settings)
        before = diagnostics.schedule_of({**group, **saved}, loaded["state"])
        group.update(settings)
        after = diagnostics.schedule_of(group, loaded["state"])
        if (before["alpha"], before["beta3"]) != (after["alpha"], after["beta3"]):
            reports.append((before, after))
    for own, group in zip(own_groups, loaded["param_groups"], strict=True):
        own.clear()
        own.update(group)
    loaded["param_groups"] = own_groups  # the same dicts as before: lr schedulers of a converted AdamW hold them
    told = [recognised(origin) for origin in origins] + [_report(*report) for report in reports[:1]] + list(notes)
    return " ".join(told) or None


def _as_resolved(loaded: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a loaded group; those that another optimizer's group lacks are taken from `own`."""
    if "given" in loaded or "betas" not in loaded:
        return {key: loaded.get(key, value) for key, value in own.items()}
    raw = hyperparameters.restate(own)
    shared = {key: value for key, value in loaded.items() if key in raw and key != "betas"}
    beta3 = loaded["betas"][2:] or raw["betas"][2:]
    raw.update(shared, betas=(*loaded["betas"][:2], *beta3))
    return hyperparameters.resolve(raw)


def _unwrapped(value: Any) -> Any:
    return value.tensor if isinstance(value, Verbatim) else value


_NO_CORRECTIONS = (
    "the run of this checkpoint has masters, but the checkpoint has no corrections: the masters begin at the values of "
    "the parameters. If they were saved, load them with load_master_parameters. torch.distributed.checkpoint loads "
    "corrections if the optimizer is given the same `master`, or with planner="
    "ademamix.pytorch.distributed_checkpoint.AnyStorage()."
)


def recognised(origin: str) -> str:
    """Say whose state was loaded."""
    return (
        f"the state of the AdEMAMix of {origin} was loaded: its moments, its clock and the settings of its groups "
        "continue, except for settings that were given to the constructor explicitly."
    )


def _early_end(settings: Mapping[str, Any]) -> str | None:
    """Say that a run that was open ends before its warm-ups, if it does."""
    total_steps, warmup = settings["total_steps"], max(settings["alpha_warmup"], settings["beta3_warmup"])
    if total_steps in (OPEN, None) or warmup <= total_steps:
        return None
    return (
        f"the run was begun without a planned end, with warm-ups of {warmup:,} steps, and now ends after "
        f"{total_steps:,}, before alpha and beta3 have risen. To have them rise faster from here on, pass "
        "alpha_warmup, beta3_warmup and beta3 as well."
    )


def _report(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return (
        "the checkpoint's schedule was replaced by the one that was given: at slow step "
        f"{after['slow_step']}, alpha(t) goes from {before['alpha']:.6g} to {after['alpha']:.6g} and beta3(t) from "
        f"{before['beta3']:.8g} to {after['beta3']:.8g}. The clocks were kept. To continue the checkpoint's own "
        "schedule, leave total_steps, alpha, beta3 and the warm-ups out."
    )
