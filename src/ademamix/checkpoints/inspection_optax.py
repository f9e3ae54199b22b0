"""What an optimizer state of Optax holds. Its settings are not in it, so that nothing is said of schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ademamix.checkpoints.inspection import MOMENTS, Group, Parameter, State, not_finite
from ademamix.checkpoints.optax_states import SOURCES, leaves, origin_of

FIELDS = dict(zip(MOMENTS, ("mu", "slow", "nu"), strict=True))


def state_at(node: Mapping[str, Any], label: str, tree: Any) -> State:
    """Return what a state holds; it has all names itself."""
    origin = origin_of(node)
    sources = SOURCES[origin]
    stored = {moment: leaves(node[source]) for moment, name in FIELDS.items() if (source := sources[name])}
    scales = leaves(node.get("slow_scale"))
    step = int(node["count"])
    slow_step = int(node[sources["slow_count"]]) if sources["slow_count"] else None
    values = {
        name: {
            moment: _values(arrays[name], scales.get(name) if moment == "m2" else None)
            for moment, arrays in stored.items()
            if name in arrays
        }
        for name in stored["nu"]
    }
    sizes = {moment: sum(array.nbytes for array in stored.get(moment, {}).values()) for moment in MOMENTS}
    sizes["m2"] += sum(array.nbytes for array in scales.values())
    return State(
        label,
        origin,
        groups=[Group(step, slow_step)],
        parameters=[
            Parameter(name, tuple(moments["nu"].shape), step, slow_step, {m: _norm(v) for m, v in moments.items()})
            for name, moments in values.items()
        ],
        bytes=sizes,
        dtypes={
            moment: sorted({str(array.dtype) for array in arrays.values()})
            for moment, arrays in stored.items()
            if arrays
        },
        warnings=not_finite(
            {name: {m: int((~np.isfinite(v)).sum()) for m, v in moments.items()} for name, moments in values.items()}
        ),
    )


def _values(stored: Any, scale: Any) -> Any:
    if scale is None:
        return stored
    from ademamix.optax.storage import decode

    return np.asarray(decode(stored, scale))


def _norm(value: Any) -> float:
    wide = value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)
    return float(np.linalg.norm(wide.ravel()))
