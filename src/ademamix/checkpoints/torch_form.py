"""The form that a state of torch must have before anything computes with it: a file may hold anything."""

from __future__ import annotations

import re
import reprlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ademamix import hyperparameters
from ademamix.checkpoints.errors import CheckpointError
from ademamix.pytorch import block_codes
from ademamix.pytorch.foreign import BITSANDBYTES_WRAPPER
from ademamix.pytorch.parameter_state import missing_entry
from ademamix.pytorch.storage import MOMENT_DTYPES
from ademamix.state_keys import CLOCK_KEYS, FAST_START, MOMENT_KEYS, SCALE_KEYS, SQUARE_KEY, STEP_KEY

StateDict = Mapping[str, Any]
CLOCKS = (*CLOCK_KEYS, FAST_START, "step_count", "warmup_steps")  # the last two are HeavyBall's
TENSORS = re.compile(r".*exp_avg.*|(state|qmap|absmax)[12]")  # by the names of all optimizers that are known
NEEDED = (STEP_KEY, SQUARE_KEY)  # in every state, by our names
LEFT_OUT = ("exp_avg", "exp_avg_fast")  # None with beta1 = 0, in some AdEMAMixes of others


def check_found(state_dict: StateDict) -> None:
    """Raise if the groups and entries of a state are not what optimizers write, under whatever names."""
    for number, group in enumerate(state_dict["param_groups"]):
        _check_group(f"group {number}", group)
    for label, entries in _parameters(state_dict):
        if not isinstance(entries, Mapping):
            raise _malformed(f"the state of {label}", "must be a dict", entries)
        for name, value in _leaves(entries):
            _check_entry(f"{name} of {label}", name, value)


def check_named(state_dict: StateDict) -> None:
    """Raise if there are moments of a parameter that no group has: nobody would look at them, or convert them."""
    named = {key for group in state_dict["param_groups"] for key in group["params"]}
    for key, entries in state_dict["state"].items():
        if key not in named and isinstance(entries, Mapping) and any(TENSORS.fullmatch(n) for n, _ in _leaves(entries)):
            raise CheckpointError(
                f"state has moments under {key!r}, and no group has a parameter of that name: the keys of state and "
                "the params of the groups were changed apart from each other. Save the state_dict() of the optimizer "
                "as it is."
            )


def check_moments(translated: StateDict) -> None:
    """Raise if the moments of a parameter, by our names, are missing, are no numbers, or have several shapes."""
    for label, entries in _parameters(translated):
        missing = next((key for key in NEEDED if entries.get(key) is None), None) or missing_entry(entries)
        if missing is not None:
            raise _malformed(f"the state of {label}", f"must have {missing}", [*entries])
        shape = getattr(entries[SQUARE_KEY], "shape", None)
        for moment, key in MOMENT_KEYS.items():
            if key not in entries:
                continue
            value, where = entries[key], f"{key} of {label}"
            if not isinstance(value, Tensor):
                raise _malformed(where, "must be a tensor", value)
            is_coded = value.dtype in block_codes.BY_DTYPE and isinstance(entries.get(SCALE_KEYS[moment]), Tensor)
            if value.dtype not in MOMENT_DTYPES and not is_coded:
                raise _malformed(where, "must have floating-point numbers, or codes with their scales", value)
            if shape is not None and value.shape != shape:
                raise _malformed(where, f"must have the shape of {MOMENT_KEYS['square']}, {tuple(shape)}", value)


def check_settings(number: int, group: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise if a group of ours has settings that no step can be taken with; those that it lacks are in `own`."""
    if "given" not in group:
        return  # of another optimizer, whose settings are checked when they become ours, or of no parameters
    given = group["given"]
    if not isinstance(given, (list, tuple)) or not set(map(str, given)) <= set(hyperparameters.OVERRIDING):
        raise _malformed(f"given of group {number}", "must be a list of settings", given)
    try:
        hyperparameters.check_for_step({**own, **group})
        hyperparameters.checked_horizon(group.get("total_steps"))
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"group {number} has a setting that no step can be taken with: {error}. Correct it in param_groups, or go "
            "back to an earlier checkpoint."
        ) from error


def _parameters(state_dict: StateDict) -> Iterator[tuple[str, Any]]:
    """List the parameters that have a state, with what to call them."""
    for group in state_dict["param_groups"]:
        for key, name in zip(group["params"], group.get("param_names") or group["params"], strict=True):
            entries = state_dict["state"].get(key, {})
            if not isinstance(entries, Mapping) or entries:
                yield f"parameter {name}", entries


def _leaves(entries: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """List entries; those of inner dicts, which other optimizers have, stand for the dicts."""
    for name, value in entries.items():
        if isinstance(value, Mapping) and name not in CLOCKS and not TENSORS.fullmatch(str(name)):
            yield from _leaves(value)
        else:
            yield str(name), value


def _check_group(label: str, group: Mapping[str, Any]) -> None:
    params, names = group["params"], group.get("param_names")
    if not isinstance(params, list) or not all(isinstance(key, (int, str)) for key in params):
        raise _malformed(f"params of {label}", "must be a list of numbers or names", params)
    is_named = isinstance(names, list) and len(names) in (0, len(params)) and all(isinstance(n, str) for n in names)
    if names is not None and not is_named:
        raise _malformed(f"param_names of {label}", f"must be a list of {len(params)} names, as params is", names)
    for name, value in group.items():
        _check_values(f"{name} of {label}", value)
        if name in CLOCKS and value is not None:
            _check_clock(f"{name} of {label}", value)
    if "betas" in group:
        betas = group["betas"]
        if not isinstance(betas, (list, tuple)) or not 2 <= len(betas) <= 3:
            raise _malformed(f"betas of {label}", "must be two or three numbers", betas)
        for name, beta in zip(("beta1", "beta2", "beta3"), betas, strict=False):
            hyperparameters.checked_beta(f"{name} of {label}", beta)


def _check_values(where: str, setting: Any) -> None:
    """Raise if something in a setting, which may be a list or a dict, cannot be compared and shown."""
    if isinstance(setting, (list, tuple, Mapping)):
        for value in setting.values() if isinstance(setting, Mapping) else setting:
            _check_values(where, value)
    elif isinstance(setting, Tensor) and not (_has_values(setting) and setting.numel() == 1):
        raise _malformed(where, "must be a value, or a tensor of one element", setting)
    elif _overflows(setting):
        raise _malformed(where, "must be small enough for a float", setting)


def _check_entry(where: str, name: str, value: Any) -> None:
    if not _has_values(value):
        raise _malformed(where, "must be a dense tensor that has its values", value)
    if name == BITSANDBYTES_WRAPPER:
        raise _malformed(where, "must be a dict", value)
    if name in CLOCKS:
        _check_clock(where, value)
    elif TENSORS.fullmatch(name) and not isinstance(value, Tensor) and not (value is None and name in LEFT_OUT):
        raise _malformed(where, "must be a tensor", value)


def _has_values(value: Any) -> bool:
    return not isinstance(value, Tensor) or (value.layout == torch.strided and not value.is_meta)


def _overflows(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > sys.float_info.max


def _check_clock(where: str, value: Any) -> None:
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number or not 0 <= number <= hyperparameters.LAST_STEP or number != int(number):
        raise _malformed(where, "must count steps, with a whole number of at least 0", number)


def _malformed(where: str, demand: str, found: Any) -> CheckpointError:
    return CheckpointError(
        f"{where} {demand}, got {_described(found)}: the checkpoint is damaged, or was changed since an optimizer "
        "wrote it. Go back to an earlier one."
    )


def _described(value: Any) -> str:
    if _overflows(value):
        return f"an integer of {value.bit_length():,} bits"  # Python refuses to write larger ones in full
    if not isinstance(value, Tensor):
        return " ".join(reprlib.repr(value).split())
    kind = " without values" if value.is_meta else "" if value.layout == torch.strided else f" as {value.layout}"
    return f"a tensor{kind}, {value.dtype} of shape {tuple(value.shape)}"
