"""States of Optax as Orbax keeps them: NumPy arrays in dicts. Settings are not among them: they are in the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ademamix.checkpoints.containers import OPTAX_FIELDS
from ademamix.checkpoints.errors import CheckpointError
from ademamix.checkpoints.explanation import Change
from ademamix.checkpoints.torch_states import Converted
from ademamix.checkpoints.wish import Wish

# Where each field of our state comes from; an empty name: it begins with zeros.
SOURCES = {
    "AdamW": {"count": "count", "slow_count": "", "mu": "mu", "nu": "nu", "slow": ""},
    "optax.contrib": {"count": "count", "slow_count": "count_m2", "mu": "m1", "nu": "nu", "slow": "m2"},
    "ademamix": {name: name for name in OPTAX_FIELDS["ademamix"]},
}
CLOCKS = ("count", "slow_count")
ONE_LATE = (
    "optax.contrib.ademamix takes alpha and beta3 of a schedule at t - 1, ademamix.optax at t, as the paper does: "
    "with warm-ups, the schedules are one step ahead from here on."
)

PERHAPS_ANOTHER = (
    "count, mu and nu are also the state of adabelief, adamax, lamb, nadam, novograd, radam and yogi of Optax, and of "
    "their variants. Nothing in it tells them apart: convert it only if this was adam or adamw."
)


def origin_of(node: Mapping[str, Any]) -> str:
    """Say whose state it is."""
    return next(origin for origin, fields in OPTAX_FIELDS.items() if set(fields) == set(node))


def convert(node: Mapping[str, Any], wish: Wish) -> Converted:
    """Return a state as the wished optimizer has it."""
    if wish.settings:
        raise CheckpointError(
            f"a state of Optax has no settings, so {', '.join(wish.settings)} cannot be written into it: give them to "
            "ademamix.optax.ademamix in the program that continues the run"
        )
    origin = origin_of(node)
    wish.check(origin)
    notes = {"AdamW": [PERHAPS_ANOTHER], "optax.contrib": [ONE_LATE]}.get(origin, []) if wish.to == "ademamix" else []
    ours = dict.fromkeys(OPTAX_FIELDS["ademamix"]) | {name: _field(name, node, origin) for name in SOURCES[origin]}
    if wish.to == "ademamix":
        new, sources = ours, SOURCES[origin]
    else:
        fast = mapped(np.zeros_like, ours["nu"]) if ours["mu"] is None else ours["mu"]
        new = {"count": ours["count"], "mu": fast, "nu": ours["nu"]}
        sources = {name: SOURCES[origin][name] for name in new}
        if ours["mu"] is None:
            sources["mu"] = ""
    return Converted(new, origin, _changes(node, new, sources), notes)


def verify(node: Mapping[str, Any], to: str) -> None:
    """Raise if a state that was written is not what it should be."""
    if origin_of(node) != {"ademamix": "ademamix", "adamw": "AdamW"}[to]:
        raise CheckpointError(f"what was written is the state of {origin_of(node)}, not of {to}")


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the arrays of a tree; masked parameters are None, and stay so."""
    if isinstance(tree, Mapping):
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [mapped(function, value) for value in tree]
    return None if tree is None else function(tree)


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Return the arrays of a tree by their paths, joined by dots.

    >>> leaves({"dense": {"kernel": 1, "bias": 2}, "masked": None})
    {'dense.kernel': 1, 'dense.bias': 2}
    """
    if isinstance(tree, (Mapping, list, tuple)):
        items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        found: dict[str, Any] = {}
        for key, value in items:
            found |= leaves(value, f"{path}.{key}" if path else str(key))
        return found
    return {} if tree is None else {path: tree}


def _field(name: str, node: Mapping[str, Any], origin: str) -> Any:
    source = SOURCES[origin][name]
    if source and origin == "ademamix":
        return node[source]
    if name in CLOCKS:
        return node[source] if source else np.zeros_like(node["count"])
    if name == "slow" and not source:
        return mapped(lambda array: np.zeros_like(array, dtype=_wide(array)), node["mu"])
    if name == "slow":
        return mapped(lambda array: array.astype(_wide(array)), node[source])
    if name == "nu":  # Optax keeps |g|^2 in a complex array
        return mapped(lambda array: np.real(array).astype(_wide(np.real(array))), node[source])
    return node[source]


def _wide(array: Any) -> Any:
    """Return the dtype of our slow average: fp32, or that of what is wider."""
    return array.dtype if array.dtype.itemsize >= 8 else np.dtype(np.float32)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], sources: Mapping[str, str]) -> list[Change]:
    changes = []
    for name, tree in new.items():
        source = sources.get(name, "")
        before = leaves(old[source]) if source else {}
        for path, array in leaves(tree).items():
            changes.append(Change(path or "all", name, source, _what(name, before.get(path), array)))
    dropped = set(old) - set(sources.values())
    return changes + [Change("all", "", name, "dropped") for name in sorted(dropped) if leaves(old[name])]


def _what(name: str, before: Any, after: Any) -> str:
    if name in CLOCKS:
        return f"{'new: ' if before is None else ''}{int(after)}"
    size = f"{after.dtype} of {'x'.join(map(str, after.shape)) or 'one element'}"
    if before is None:
        return f"new: zeros, {size}"
    if before.dtype == after.dtype:
        return f"the same bits, {size}"
    return f"{before.dtype} to {size}, the same values"
