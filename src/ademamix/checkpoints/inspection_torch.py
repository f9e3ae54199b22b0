"""What an optimizer state of torch holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ademamix.checkpoints import torch_states, trees
from ademamix.checkpoints.errors import CheckpointError
from ademamix.checkpoints.explanation import stored_moments
from ademamix.checkpoints.inspection import MOMENTS, Group, Parameter, State, not_finite, some
from ademamix.checkpoints.inspection_growth import about_to_grow, grown, grows, idle_elements
from ademamix.checkpoints.torch_states import Source
from ademamix.pytorch import block_codes, foreign
from ademamix.pytorch.optimizer import AdEMAMix
from ademamix.pytorch.parameter_state import values_of
from ademamix.schedules import filled_at
from ademamix.state_keys import CORRECTION_KEY, MOMENT_KEYS, SCALE_KEYS

KEYS = dict(zip(MOMENTS, MOMENT_KEYS.values(), strict=True))
ROUNDS_STOCHASTICALLY = ("ademamix", "heavyball")
# The distance between neighbours over their value, at least; a change of less than half of it is lost.
SPACINGS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def state_at(node: Any, label: str, tree: Any) -> State:
    """Return what a state holds; `tree` is all that it was found in."""
    try:
        source = torch_states.read(node)
        optimizer = None if source.origin == "AdamW" else torch_states.loaded(source)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"at {label}: {error}") from error
    entries = {key: found for key in source.keys if (found := source.translated["state"].get(key))}
    values = {
        key: {moment: values_of(found, name) for moment, name in KEYS.items() if name in found}
        for key, found in entries.items()
    }
    names = _names(source, tree)
    sizes, dtypes = _stored(source)
    warnings = not_finite(
        {
            names[key]: {moment: int((~value.isfinite()).sum()) for moment, value in moments.items()}
            for key, moments in values.items()
        }
    )
    if optimizer is None:
        groups = _clocks(source)
    else:
        diagnostics = optimizer.diagnostics()
        groups = _groups(optimizer, diagnostics)
        warnings += _frozen(source, names) + _growing(source, names, optimizer.param_groups, values, diagnostics)
        warnings += torch_states.advice(optimizer)
    parameters = [
        Parameter(
            names[key],
            tuple(moments["nu"].shape),
            int(entries[key]["step"]),
            int(entries[key]["slow_step"]) if "slow_step" in entries[key] else None,
            {moment: _norm(value) for moment, value in moments.items()},
        )
        for key, moments in values.items()
    ]
    notes = foreign.doubts(source.found["param_groups"])
    return State(label, source.origin, groups, parameters, sizes, dtypes, warnings, notes)


def _names(source: Source, tree: Any) -> dict[Any, str]:
    """Return the names of parameters: those of the optimizer, of a model beside it that fits, or their numbers.

    The parameters of a model are in its state_dict in the order in which an optimizer without groups has them.
    """
    has_names = any("param_names" in group for group in source.found["param_groups"])
    entries = [source.translated["state"].get(key) for key in source.keys]
    if has_names or len(source.found["param_groups"]) != 1 or not all(entries):
        return source.names
    shapes = [found["exp_avg_sq"].shape for found in entries if found]
    models = [node for _, node in trees.find(tree, _is_model) if [value.shape for value in node.values()] == shapes]
    return dict(zip(source.keys, models[0], strict=True)) if len(models) == 1 else source.names


def _is_model(node: Any) -> bool:
    is_dict = isinstance(node, Mapping) and bool(node) and "exp_avg_sq" not in node
    return is_dict and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in node.items())


def _norm(value: Tensor) -> float:
    return float(torch.linalg.vector_norm(value.to(torch.complex128 if value.is_complex() else torch.float64)))


def _clocks(source: Source) -> list[Group]:
    """Return the groups of AdamW, which has no schedule."""
    state = source.translated["state"]
    steps = [
        [int(state[key]["step"]) for key in group["params"] if state.get(key)] for group in source.found["param_groups"]
    ]
    return [Group(max(clocks, default=0)) for clocks in steps]


def _groups(optimizer: AdEMAMix, found: list[dict[str, Any]]) -> list[Group]:
    return [
        Group(
            diagnostics["step"],
            diagnostics["slow_step"],
            group["total_steps"],
            alpha=diagnostics["alpha"],
            alpha_end=group["alpha"],
            alpha_warmup=group["alpha_warmup"],
            beta3=diagnostics["beta3"],
            beta3_end=group["betas"][2],
            beta3_warmup=group["beta3_warmup"],
            filled=filled_at(diagnostics["slow_step"], group["betas"][2], group["beta3_start"], group["beta3_warmup"]),
            largest_slow_step=diagnostics["largest_slow_step"],
        )
        for group, diagnostics in zip(optimizer.param_groups, found, strict=True)
    ]


def _stored(source: Source) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the bytes and the dtypes of each moment in the file, and of corrections."""
    sizes: dict[str, int] = dict.fromkeys(MOMENTS, 0)
    dtypes: dict[str, set[str]] = defaultdict(set)
    for entries in filter(None, map(source.found["state"].get, source.keys)):
        flat = {**entries, **entries.get(foreign.BITSANDBYTES_WRAPPER, {})}
        stored = stored_moments(source.origin, entries)
        for moment, scale_key, largest in zip(MOMENTS, SCALE_KEYS.values(), ("1", "1", "2"), strict=True):
            if KEYS[moment] in stored:
                tensor = stored[KEYS[moment]]
                scale = flat.get(scale_key, flat.get(f"absmax{largest}"))
                shared = 2 if scale_key not in flat and largest == "1" else 1  # of m1 and m2 in bitsandbytes
                sizes[moment] += tensor.nbytes + (0 if scale is None else scale.nbytes // shared)
                dtypes[moment].add(str(tensor.dtype).removeprefix("torch."))
        if isinstance(correction := entries.get(CORRECTION_KEY), Tensor):
            sizes[CORRECTION_KEY] = sizes.get(CORRECTION_KEY, 0) + correction.nbytes
            dtypes[CORRECTION_KEY].add(str(correction.dtype).removeprefix("torch."))
    return sizes, {part: sorted(found) for part, found in dtypes.items()}


def _frozen(source: Source, names: Mapping[Any, str]) -> list[str]:
    """Warn of an m2 that is rounded to nearest in a storage whose steps are larger than its own."""
    if source.origin in ROUNDS_STOCHASTICALLY:
        return []
    frozen: dict[str, tuple[float, float]] = {}
    for group in source.found["param_groups"]:
        for key in group["params"]:
            entries = source.found["state"].get(key)
            spacing = _spacing_of_m2(source.origin, entries) if entries else 0.0
            if 1 - group["betas"][2] < spacing / 2:
                frozen[names[key]] = (group["betas"][2], spacing)
    if not frozen:
        return []
    beta3, spacing = next(iter(frozen.values()))
    text = (
        f"m2 is likely frozen in {some(list(frozen))}: with beta3 = {beta3:g} a step moves it by {1 - beta3:.2g} of "
        f"the distance to the gradient, and it is rounded to nearest in steps of at least {spacing:.2g} of its value. "
        "After `ademamix convert` it moves again: no storage here rounds it to nearest in a step (docs/storage.md)."
    )
    return [text]


def _spacing_of_m2(origin: str, entries: Mapping[str, Any]) -> float:
    stored = stored_moments(origin, entries).get(KEYS["m2"])
    table = {**entries, **entries.get(foreign.BITSANDBYTES_WRAPPER, {})}.get("qmap1")
    if stored is None:
        return 0.0
    if table is not None:
        return float(table[-1] - table[-2])  # next to the largest of a block; below, the steps are as large or larger
    return SPACINGS.get(stored.dtype, 0.0)


def _growing(
    source: Source,
    names: Mapping[Any, str],
    groups: list[dict[str, Any]],
    values: Mapping[Any, Mapping[str, Tensor]],
    found: list[dict[str, Any]],
) -> list[str]:
    """Warn of elements whose slow step has grown, or is about to, in groups where nothing bounds it."""
    large, fastest = 0, 0.0
    counts: dict[str, int] = {}
    for group, old, diagnostics in zip(groups, source.found["param_groups"], found, strict=True):
        if group["slow_clip"] is not None:
            continue
        large += diagnostics["large_slow_steps"]
        growth = grows(*group["betas"][1:])
        if growth > 0:
            fastest = max(fastest, growth)
            keys = [key for key in old["params"] if key in values]
            counts |= {names[key]: _idle(source, key, values[key], group) for key in keys}
    return grown(large) + about_to_grow(counts, fastest)


def _idle(source: Source, key: Any, moments: Mapping[str, Tensor], group: Mapping[str, Any]) -> int:
    """Count the idle elements of a parameter."""
    entries = source.translated["state"][key]
    slow, square = _parts(moments["m2"]), _parts(moments["nu"])
    root = (square / (1 - group["betas"][1] ** float(entries["step"]))).sqrt() + group["eps"]
    stored = stored_moments(source.origin, source.found["state"][key]).get(KEYS["m1"])
    if stored is None:
        return idle_elements(slow, root)
    if stored.is_floating_point() or stored.is_complex():
        return idle_elements(slow, root, _parts(moments["m1"]).abs(), is_exact=True)
    scale = entries.get(SCALE_KEYS["fast"])
    if scale is None:
        return idle_elements(slow, root)
    step = block_codes.decode(torch.ones_like(stored), scale)  # what a code of 0 may have been rounded from
    return idle_elements(slow, root, moments["m1"].abs() + step)


def _parts(value: Tensor) -> Tensor:
    return torch.view_as_real(value) if value.is_complex() else value
