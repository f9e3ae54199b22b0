"""What an optimizer state of Optax holds. Its settings are in a program: the user states them, or misses schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ademamix import hyperparameters
from ademamix.checkpoints.errors import CheckpointError
from ademamix.checkpoints.inspection import MOMENTS, Group, Parameter, State, not_finite
from ademamix.checkpoints.inspection_growth import about_to_grow, grown, grows, idle_elements
from ademamix.checkpoints.optax_states import PERHAPS_ANOTHER, SOURCES, leaves, origin_of
from ademamix.checkpoints.torch_states import outlasting_warmups
from ademamix.pytorch.diagnostics import LARGE_SLOW_STEP
from ademamix.schedules import alpha_at, beta3_at, filled_at

FIELDS = dict(zip(MOMENTS, ("mu", "slow", "nu"), strict=True))
EPS = 1e-8  # the default of ademamix.optax and of optax.contrib
UNTOLD = (
    "a state of Optax has no settings in it, so that alpha(t), beta3(t), the place in the run, how much of the slow "
    "average is filled, idle elements and a beta3 that outlives the run cannot be told. State the settings, with "
    "--total-steps, --alpha, --beta2, --beta3 and others (in Python: total_steps= and so on)."
)
WITHOUT_SCHEDULE = "AdamW has no slow average: the settings that are stated say nothing about it."
Values = Mapping[str, Mapping[str, Any]]  # of the moments of each parameter


def state_at(node: Mapping[str, Any], label: str, stated: Mapping[str, Any]) -> State:
    """Return what a state holds, given the settings of its run that are known; it has all names itself."""
    origin = origin_of(node)
    sources = SOURCES[origin]
    stored = {moment: leaves(node[source]) for moment, name in FIELDS.items() if (source := sources[name])}
    scales = leaves(node.get("slow_scale"))
    step = int(node["count"])
    slow_step = int(node[sources["slow_count"]]) if sources["slow_count"] else None
    values = _by_parameter(stored, scales)
    sizes = {moment: sum(array.nbytes for array in stored.get(moment, {}).values()) for moment in MOMENTS}
    sizes["m2"] += sum(array.nbytes for array in scales.values())
    warnings = not_finite(
        {name: {m: int((~np.isfinite(v)).sum()) for m, v in moments.items()} for name, moments in values.items()}
    )
    group, notes = Group(step, slow_step), [PERHAPS_ANOTHER] if origin == "AdamW" else []
    if slow_step is not None and stated:
        settings = _settings(stated, has_fast=bool(stored["m1"]))
        group, more = _scheduled(settings, step, slow_step, values)
        warnings += more
    elif slow_step is not None or stated:
        notes.append(WITHOUT_SCHEDULE if stated else UNTOLD)
    return State(
        label,
        origin,
        groups=[group],
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
        warnings=warnings,
        notes=notes,
    )


def _settings(stated: Mapping[str, Any], *, has_fast: bool) -> dict[str, Any]:
    """Return all settings of a run; those that are not stated are as `ademamix.optax` has them by default."""
    beta1, beta2 = hyperparameters.BETAS
    betas = [stated.get("beta1", beta1 if has_fast else 0.0), stated.get("beta2", beta2)]
    names = ("total_steps", "alpha_warmup", "beta3_warmup", "slow_clip")
    raw = {
        **{name: stated.get(name) for name in names},
        "betas": (*betas, stated["beta3"]) if "beta3" in stated else tuple(betas),
        "alpha": stated.get("alpha", hyperparameters.ALPHA),
        "eps": stated.get("eps", EPS),
        "beta3_start": None,
        "weight_decay": 0.0,
    }
    try:
        return hyperparameters.resolve_algorithm(raw)
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def _scheduled(settings: Mapping[str, Any], step: int, slow_step: int, values: Values) -> tuple[Group, list[str]]:
    """Return where a run with these settings is, and what there is to warn of."""
    beta3, start, warmup = settings["betas"][2], settings["beta3_start"], settings["beta3_warmup"]
    t = max(slow_step, 1)
    alpha = alpha_at(t, settings["alpha"], settings["alpha_warmup"])
    largest, warnings = _slow_steps(settings, step, alpha, values) if step else (0.0, [])
    advice = hyperparameters.advice(settings) or outlasting_warmups(settings, slow_step)
    group = Group(
        step,
        slow_step,
        settings["total_steps"],
        alpha=alpha,
        alpha_end=settings["alpha"],
        alpha_warmup=settings["alpha_warmup"],
        beta3=beta3_at(t, beta3, start, warmup),
        beta3_end=beta3,
        beta3_warmup=warmup,
        filled=filled_at(slow_step, beta3, start, warmup),
        largest_slow_step=largest,
    )
    return group, warnings + ([] if advice is None else [advice])


def _slow_steps(settings: Mapping[str, Any], step: int, alpha: float, values: Values) -> tuple[float, list[str]]:
    """Return the largest slow step of an element, in units of lr, and what there is to warn of."""
    (_, beta2, beta3), bound = settings["betas"], settings["slow_clip"]
    largest, counts, large = [0.0], {}, 0
    with np.errstate(all="ignore"):  # damaged moments; with eps = 0, elements that never had a gradient
        for name, moments in values.items():
            slow = abs(_wide(moments["m2"]))
            root = np.sqrt(np.real(_wide(moments["nu"])) / (1 - beta2**step)) + settings["eps"]
            fast = abs(_wide(moments["m1"])) if "m1" in moments else math.inf
            counts[name] = idle_elements(slow, root, fast, is_exact="m1" in moments)
            slow_steps = alpha * slow / root
            largest.append(float(slow_steps.max(initial=0.0)))
            large += int((slow_steps > LARGE_SLOW_STEP).sum())
    if bound is not None:
        return min(max(largest), bound), []
    growth = grows(beta2, beta3)
    return max(largest), grown(large) + (about_to_grow(counts, growth) if growth > 0 else [])


def _by_parameter(stored: Mapping[str, Mapping[str, Any]], scales: Mapping[str, Any]) -> Values:
    return {
        name: {
            moment: _values(arrays[name], scales.get(name) if moment == "m2" else None)
            for moment, arrays in stored.items()
            if name in arrays
        }
        for name in stored["nu"]
    }


def _values(stored: Any, scale: Any) -> Any:
    if scale is None:
        return stored
    from ademamix.optax.storage import decode

    return np.asarray(decode(stored, scale))


def _norm(value: Any) -> float:
    return float(np.linalg.norm(_wide(value).ravel()))


def _wide(value: Any) -> Any:
    return value.astype(np.complex128 if np.iscomplexobj(value) else np.float64)
