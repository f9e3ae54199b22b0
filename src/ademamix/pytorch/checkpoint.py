"""Loading a state_dict: dtypes are kept, a changed horizon is reported, AdamW's state loads as a switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from ademamix import hyperparameters
from ademamix.pytorch import diagnostics, storage

ADAMW_ONLY = ("amsgrad", "decoupled_weight_decay")  # keys of its groups that mean nothing here


class Verbatim:
    """Carries a state tensor past torch's loader, which would cast it to the dtype of its parameter."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def protect(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Refuse what cannot be continued and wrap the tensors of the rest. A pre-hook of load_state_dict."""
    for group in state_dict["param_groups"]:
        refuse_other_adams(group)
    state = {
        param: {key: Verbatim(value) if isinstance(value, Tensor) else value for key, value in entries.items()}
        for param, entries in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def refuse_other_adams(group: Mapping[str, Any]) -> None:
    """Raise if `group` is of an Adam whose state or weight decay means something else than AdamW's."""
    if group.get("amsgrad"):
        raise ValueError(
            "amsgrad=True is not possible: AdEMAMix has no maximum of second moments. In a call, leave it out; to "
            "continue a run, load it into an AdamW with amsgrad=False first if dropping the maximum is what you want."
        )
    if not group.get("decoupled_weight_decay", True) and group["weight_decay"] != 0:
        raise ValueError(
            f"this is Adam with L2 weight decay ({group['weight_decay']}), not AdamW: AdEMAMix's weight decay is "
            "decoupled. Set weight_decay to 0 in its groups, then give AdEMAMix the decoupled decay you want."
        )


def settle(own_groups: list[dict[str, Any]], loaded: dict[str, Any]) -> str | None:
    """Bring what torch's loader is about to install into shape, and return what there is to report.

    `own_groups` are the optimizer's groups so far.
    """
    reports = []
    for own, group in zip(own_groups, loaded["param_groups"], strict=True):
        own_settings = {key: value for key, value in own.items() if key not in ("params", "param_names")}
        saved = _as_resolved(group, own_settings)
        for key in ADAMW_ONLY:
            group.pop(key, None)
        settings = hyperparameters.override(saved, own_settings)
        for param in group["params"]:
            if loaded["state"].get(param):
                entries = {key: _unwrapped(value) for key, value in loaded["state"][param].items()}
                loaded["state"][param] = storage.adopt(entries, param, settings)
        before = diagnostics.schedule_of({**group, **saved}, loaded["state"])
        group.update(settings)
        after = diagnostics.schedule_of(group, loaded["state"])
        if (before["alpha"], before["beta3"]) != (after["alpha"], after["beta3"]):
            reports.append((before, after))
    for own, group in zip(own_groups, loaded["param_groups"], strict=True):
        own.clear()
        own.update(group)
    loaded["param_groups"] = own_groups  # the same dicts as before: lr schedulers of a converted AdamW hold them
    return _report(*reports[0]) if reports else None


def _as_resolved(loaded: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a loaded group; what another optimizer's group lacks is taken from `own`."""
    if "given" in loaded:
        return {key: loaded.get(key, value) for key, value in own.items()}
    raw = hyperparameters.restate(own)
    shared = {key: value for key, value in loaded.items() if key in raw and key != "betas"}
    raw.update(shared, betas=(*loaded["betas"][:2], *raw["betas"][2:]))
    return hyperparameters.resolve(raw)


def _unwrapped(value: Any) -> Any:
    return value.tensor if isinstance(value, Verbatim) else value


def _report(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return (
        "the checkpoint's schedule was replaced by the one given to the constructor: at slow step "
        f"{after['slow_step']}, alpha(t) goes from {before['alpha']:.6g} to {after['alpha']:.6g} and beta3(t) from "
        f"{before['beta3']:.8g} to {after['beta3']:.8g}. The clocks were kept. To continue the checkpoint's own "
        "schedule, leave total_steps, alpha, beta3 and the warm-ups out of the constructor."
    )
