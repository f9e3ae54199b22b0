"""Optimizer states whose keys torch has changed: those that it has flattened, and those with numbers as strings.

``flatten_optimizer_state_dict=True`` makes one dict of a state. Keys are ``state.<parameter>.<entry>`` and
``param_groups.<parameter>.<setting>``: each parameter repeats the settings of its group.

``torch.distributed.checkpoint`` makes strings of all keys, so that of an ``optimizer.state_dict()`` the state of
parameter 0 is found under ``"0"``, while the groups name it 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATE, GROUPS = "state.", "param_groups."
NAMES = "param_names"  # of all parameters of the group; torch repeats them for each


def is_flat(node: Any) -> bool:
    """Tell whether a node is such a dict.

    >>> is_flat({"state.layer.weight.step": 1, "param_groups.layer.weight.lr": 0.1}), is_flat({"state": {}})
    (True, False)
    """
    return (
        isinstance(node, Mapping)
        and any(isinstance(key, str) and key.startswith(GROUPS) for key in node)
        and all(isinstance(key, str) and key.startswith((STATE, GROUPS)) for key in node)
    )


def nested(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return it as torch's optimizers have it, with a group for each parameter, which is known by its key alone.

    >>> nested({"state.layer.weight.step": 1, "param_groups.layer.weight.lr": 0.1})
    {'state': {'layer.weight': {'step': 1}}, 'param_groups': [{'lr': 0.1, 'params': ['layer.weight']}]}
    """
    state: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in node.items():
        part, prefix = (state, STATE) if key.startswith(STATE) else (groups, GROUPS)
        parameter, _, name = key.removeprefix(prefix).rpartition(".")
        entries = part.setdefault(parameter, {})
        if part is state or name != NAMES:
            entries[name] = value
    return {
        "state": state,
        "param_groups": [{**settings, "params": [parameter]} for parameter, settings in groups.items()],
    }


def flattened(state_dict: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Undo :func:`nested`, and repeat the names that the flat state had `before`.

    >>> flattened({"state": {"w": {"step": 1}}, "param_groups": [{"lr": 0.1, "params": ["w"]}]}, before={})
    {'state.w.step': 1, 'param_groups.w.lr': 0.1}
    """
    flat = {
        f"{STATE}{parameter}.{name}": value
        for parameter, entries in state_dict["state"].items()
        for name, value in entries.items()
    }
    for group in state_dict["param_groups"]:
        (parameter,) = group["params"]
        flat |= {f"{GROUPS}{parameter}.{name}": value for name, value in group.items() if name != "params"}
        names = f"{GROUPS}{parameter}.{NAMES}"
        if names in before:
            flat[names] = before[names]
    return flat


def with_numbers(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state whose keys are the numbers in its groups, where they are these numbers as strings.

    >>> with_numbers({"state": {"0": {"step": 1}}, "param_groups": [{"params": [0]}]})["state"]
    {0: {'step': 1}}
    """
    numbers = {str(key): key for key in _numbers(node)}
    return {**node, "state": {numbers.get(key, key): entries for key, entries in node["state"].items()}}


def without_numbers(state_dict: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Undo :func:`with_numbers` for the keys that were strings `before`.

    >>> before = {"state": {"0": {"step": 1}}, "param_groups": [{"params": [0]}]}
    >>> without_numbers(with_numbers(before), before)["state"]
    {'0': {'step': 1}}
    """
    strings = {key: str(key) for key in _numbers(before)}
    return {**state_dict, "state": {strings.get(key, key): entries for key, entries in state_dict["state"].items()}}


def _numbers(node: Mapping[str, Any]) -> list[int]:
    """List the numbers of parameters whose state has them as strings."""
    keys = [key for group in node["param_groups"] if isinstance(group["params"], list) for key in group["params"]]
    return [key for key in keys if isinstance(key, int) and key not in node["state"] and str(key) in node["state"]]
