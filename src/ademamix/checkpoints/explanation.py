"""What a conversion did, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ademamix.checkpoints import trees
from ademamix.pytorch.foreign import BITSANDBYTES_WRAPPER, HEAVYBALL_ENTRY
from ademamix.pytorch.parameter_state import values_of
from ademamix.state_keys import CORRECTION_KEY, MOMENT_KEYS, SCALE_KEYS

Entries = Mapping[str, Any]
AUXILIARY = ("qmap1", "qmap2", "absmax1", "absmax2")  # of bitsandbytes: its codes are read by them


@dataclass(frozen=True)
class Change:
    """How one entry of the state of a parameter, or one setting of a group, came to be what it is now."""

    subject: str
    """The name or the number of a parameter, or the number of a group."""
    entry: str
    source: str
    """Where it was before; empty if it is new."""
    what: str


def of_parameter(name: str, origin: str, old: Entries, translated: Entries, new: Entries) -> list[Change]:
    """List what became of each entry. `translated` is the old state in our names, before it was stored anew."""
    sources = sources_of(origin, old)
    changes = []
    for key in new:
        if key not in SCALE_KEYS.values():
            source, operation = sources.get(key, (key, ""))
            changes.append(
                Change(name, key, source if key in translated else "", _what(key, translated, new, operation))
            )
    used = {change.source.partition("[")[0] for change in changes} | {*new, *SCALE_KEYS.values(), *AUXILIARY}
    return changes + [Change(name, "", key, "dropped") for key in _names(old) if key not in used]


def of_group(number: int, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """List the settings of a group that are new, dropped, or have another value."""
    changes = []
    for key in dict.fromkeys((*new, *old)):
        if key in ("params", "param_names", "given") or (key in old and key in new and _same(old[key], new[key])):
            continue
        source = _shown(old[key]) if key in old else ""
        changes.append(Change(f"group {number}", key, source, _shown(new[key]) if key in new else "dropped"))
    return changes


def stored_moments(origin: str, old: Entries) -> dict[str, Tensor]:
    """Return the tensors that a file has for the moments, by our names, as they are stored."""
    sources = sources_of(origin, old)
    flat: dict[str, Any] = {}
    for key, value in old.items():
        flat |= value if isinstance(value, Mapping) else {key: value}
    moments = {}
    for key in MOMENT_KEYS.values():
        name, _, place = sources.get(key, (key, ""))[0].partition("[")
        if isinstance(flat.get(name), Tensor):
            moments[key] = flat[name][int(place.removesuffix("]"))] if place else flat[name]
    return moments


def sources_of(origin: str, old: Entries) -> dict[str, tuple[str, str]]:
    """Say by which names another optimizer has what is here under ours, and what has to be done to its values."""
    sources: dict[str, tuple[str, str]] = {}
    if origin == "bitsandbytes":
        read = "read from 8-bit codes" if "qmap1" in old.get(BITSANDBYTES_WRAPPER, old) else ""
        places = {"exp_avg": "state1[0]", "exp_avg_slow": "state1[1]", "exp_avg_sq": "state2"}
        sources = {key: (place, read) for key, place in places.items()}
    elif origin == "heavyball":
        names = [name for view in old.values() for name in view if HEAVYBALL_ENTRY.fullmatch(name)]
        by_moment = {name.split("exp_avg")[1].rsplit("_", 1)[0]: name for name in names}
        sources = {
            "exp_avg": (by_moment["_fast"], "times 1 - beta1^t"),
            "exp_avg_slow": (by_moment["_slow"], ""),
            "exp_avg_sq": (by_moment["_sq"], "times 1 - beta2^t"),
            "step": ("step_count of the group", ""),
        }
    elif origin == "pytorch_optimizer":
        sources = {"step": ("step of the group", "")}
    elif "exp_avg_fast" in old:
        sources = {"exp_avg": ("exp_avg_fast", "")}
    if "slow_step" not in old:
        sources["slow_step"] = sources.get("step", ("step", ""))
    return sources


def _names(old: Entries) -> list[str]:
    """List the names in a state; those of inner dicts stand for the dicts."""
    return [str(name) for key, value in old.items() for name in (value if isinstance(value, Mapping) else [key])]


def _what(key: str, translated: Entries, new: Entries, operation: str) -> str:
    value = new[key]
    if not isinstance(value, Tensor) or key not in (*MOMENT_KEYS.values(), CORRECTION_KEY):
        shown = f"{float(value):g}" if isinstance(value, Tensor) and value.numel() == 1 else _shown(value)
        return shown if key in translated else f"new: {shown}"
    size = f"{_type(value)} of {'x'.join(map(str, value.shape)) or 'one element'}"
    if key not in translated:
        return f"new: zeros, {size}"
    before = translated[key]
    if operation:
        return f"{operation}, {size}"
    if trees.difference(before, value) is None:
        return f"the same bits, {size}"
    old, now = (values_of(entries, key).to(torch.float64) for entries in (translated, new))  # complex ones keep bits
    kept = trees.difference(old, now) is None
    return f"{_type(before)} to {size}, {'the same values' if kept else 'rounded to nearest'}"


def _type(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return list(old) == list(new)
    return bool(old == new)


def _shown(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() == 1:
        return f"{value.item():g}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
