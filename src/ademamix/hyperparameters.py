"""Defaults, checks, and the choices made for the user: the one place for all three.

Settings exist in two forms. *Raw* ones are what the caller said: ``betas`` may be a pair, a warm-up may be None.
*Resolved* ones are the numbers a step needs, together with ``given``, the names of those that the caller stated, so
that the others can be derived again when the horizon changes.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any

from ademamix import formats
from ademamix.schedules import OPEN, Horizon, beta3_for_horizon, open_warmup


class _DefaultFloat(float):
    """A default value that can be told from the same value stated by the caller."""


class _DefaultInt(int):
    """A default value that can be told from the same value stated by the caller."""


class _DefaultStr(str):
    """A default value that can be told from the same value stated by the caller."""

    __slots__ = ()


BETAS = (0.9, 0.999)
ALPHA = _DefaultFloat(5.0)
STATE_STORAGE = _DefaultStr("fp32")
ROUNDING_SEED = _DefaultInt(0)
STATE_STORAGES = tuple(formats.STORAGES)
MASTERS = (None, "24bit")
NONFINITE = ("propagate", "skip")
LAST_STEP = 2**53

# The settings of a loaded checkpoint that an explicit argument of the constructor changes; all others stay.
FOLLOWING_HORIZON = ("beta3", "alpha_warmup", "beta3_warmup")
OVERRIDING = ("total_steps", "alpha", *FOLLOWING_HORIZON, "beta3_start", "slow_clip", "state_storage", "master")


def given_names(settings: Mapping[str, Any]) -> list[str]:
    """List the overriding settings that the caller stated, among raw settings."""

    def stated(name: str) -> bool:
        if name == "beta3":
            return len(settings.get("betas", BETAS)) == 3
        value = settings.get(name)
        return value not in (None, math.inf) and not isinstance(value, _DefaultFloat | _DefaultStr)

    return [name for name in OVERRIDING if stated(name)]


def resolve(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Check raw settings and fill in what they leave open. Raises ValueError naming the argument and the value."""
    algorithm = resolve_algorithm(raw)
    _check_execution(raw)
    return {
        **raw,
        **algorithm,
        "lr": checked_lr(raw["lr"]),
        "state_storage": str(raw["state_storage"]),
        "rounding_seed": _checked_seed(raw["rounding_seed"]),
    }


def resolve_algorithm(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Check and fill in the settings that every framework has: those of the paper's Algorithm 1, except lr."""
    betas = _checked_betas(raw["betas"])
    total_steps = checked_horizon(raw["total_steps"])
    beta3 = betas[2] if len(betas) == 3 else beta3_for_horizon(total_steps, betas[0])
    default_warmup = open_warmup(beta3) if total_steps == OPEN else total_steps or 0
    beta3_start = raw["beta3_start"]
    if beta3_start is None:
        beta3_start = betas[0]
    return {
        "betas": (betas[0], betas[1], beta3),
        "alpha": checked_nonnegative("alpha", raw["alpha"]),
        "total_steps": total_steps,
        "alpha_warmup": _warmup("alpha_warmup", raw["alpha_warmup"], default_warmup),
        "beta3_warmup": _warmup("beta3_warmup", raw["beta3_warmup"], default_warmup),
        "beta3_start": checked_beta("beta3_start", beta3_start),
        "eps": checked_nonnegative("eps", raw["eps"]),
        "weight_decay": checked_nonnegative("weight_decay", raw["weight_decay"]),
        "slow_clip": checked_clip(raw.get("slow_clip")),
        "given": given_names(raw),
    }


def check_for_step(resolved: Mapping[str, Any]) -> None:
    """Raise if a step cannot be taken with these settings: anyone may have written to them since they were resolved.

    An lr below 0 is possible, as in torch: schedules may end there by rounding.
    """
    betas = resolved["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 3:
        raise ValueError(
            f"betas must be (beta1, beta2, beta3) in a group that is being trained, got {betas!r}: to change beta1 and "
            "beta2 alone, write (beta1, beta2, group['betas'][2])"
        )
    _checked_betas(betas)
    checked_beta("beta3_start", resolved["beta3_start"])
    for name in ("alpha", "eps", "weight_decay"):
        checked_nonnegative(name, resolved[name])
    checked_clip(resolved["slow_clip"])
    for name in ("alpha_warmup", "beta3_warmup"):
        if checked_steps(name, resolved[name], least=0) is None:
            raise ValueError(f"{name} must be an integer >= 0, got None")
    lr = resolved["lr"]
    _check_lr_kind(lr)
    if getattr(lr, "is_cpu", True) and not -math.inf < lr < math.inf:  # elsewhere, reading it would wait for a GPU
        raise ValueError(f"lr must be a finite number, got {lr!r}")
    _checked_seed(resolved["rounding_seed"])
    _check_execution(resolved)


def restate(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the raw settings that resolve to `resolved`: derived ones are left open again."""
    given = resolved["given"]
    raw = {key: value for key, value in resolved.items() if key != "given"}
    for name in ("total_steps", "alpha_warmup", "beta3_warmup", "beta3_start"):
        if name not in given:
            raw[name] = math.inf if resolved[name] == OPEN else None
    raw["betas"] = tuple(resolved["betas"]) if "beta3" in given else tuple(resolved["betas"][:2])
    if "alpha" not in given:
        raw["alpha"] = _DefaultFloat(resolved["alpha"])
    if "state_storage" not in given:
        raw["state_storage"] = _DefaultStr(resolved["state_storage"])
    return raw


def override(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for continuing a checkpoint: its own, except those that `own` was given explicitly.

    Both are resolved settings, and so is the result. Settings that follow from a new horizon are derived again, except
    where an open run is given its end: its slow average continues as it began.
    `beta3_start` does not follow from it, and stays as it was resolved when the run began: lr schedulers may have
    rewritten beta1 since.
    """

    def value(settings: Mapping[str, Any], name: str) -> Any:
        return settings["betas"][2] if name == "beta3" else settings[name]

    if all(value(own, name) == value(saved, name) for name in own["given"]):
        return dict(saved)
    plans_end = saved["total_steps"] == OPEN and "total_steps" in own["given"] and own["total_steps"] != OPEN
    kept = FOLLOWING_HORIZON if plans_end else ()
    raw, own_raw = restate({**saved, "given": [*saved["given"], *kept]}), restate(own)
    for name in own["given"]:
        if name == "beta3":
            raw["betas"] = (*raw["betas"][:2], own_raw["betas"][2])
        else:
            raw[name] = own_raw[name]
    resolved = resolve(raw)
    if "beta3_start" not in own["given"]:
        resolved["beta3_start"] = saved["beta3_start"]
    return resolved


def advice(resolved: Mapping[str, Any]) -> str | None:
    """Return what to tell the caller about settings that commonly make a run diverge, or None."""
    beta1, _, beta3 = resolved["betas"]
    total_steps = resolved["total_steps"]
    unscheduled = not {"alpha_warmup", "beta3_warmup"} <= set(resolved["given"])
    if total_steps is None and unscheduled and resolved["alpha"] > 0:
        return (
            f"AdEMAMix was given no horizon: alpha = {resolved['alpha']:g} and beta3 = {beta3:g} apply from the first "
            "step, which often makes a run diverge. Pass total_steps=<number of optimizer steps of the run>, or "
            "total_steps='open' if its end is not planned, or alpha_warmup=0 and beta3_warmup=0 if no warm-up is what "
            "you want."
        )
    memory = round(1 / (1 - beta3))
    if total_steps is not None and total_steps != OPEN and beta3 > beta1 and memory > total_steps / 2:
        return (
            f"beta3 = {beta3:g} remembers about {memory:,} steps, more than half of total_steps = {total_steps:,}: "
            f"the slow average outlives the run. Leave beta3 out to have it chosen "
            f"({beta3_for_horizon(total_steps, beta1):g} for this horizon), or lower it."
        )
    return None


def _warmup(name: str, steps: Any, default: int) -> int:
    checked = checked_steps(name, steps, least=0)
    return default if checked is None else checked


def checked_horizon(total_steps: Any) -> Horizon:
    """Return `total_steps`, a whole number of at least 1, "open" or None, or raise ValueError.

    It is infinite in trainers whose epochs have no bound.
    """
    if isinstance(total_steps, float) and total_steps == math.inf:
        return OPEN
    if isinstance(total_steps, str):
        if total_steps != OPEN:
            raise ValueError(
                f"total_steps must be an integer >= 1, None, or {OPEN!r} for a run whose end is not planned yet, got "
                f"{total_steps!r}"
            )
        return OPEN
    return checked_steps("total_steps", total_steps, least=1)


def checked_steps(name: str, steps: Any, least: int) -> int | None:
    """Return `steps`, a whole number of at least `least` or None, or raise ValueError. A float may be whole: 1e4."""
    if steps is None:
        return None
    checked = _whole(steps)
    if checked is None or checked < least:
        raise ValueError(f"{name} must be an integer >= {least} or None, got {steps!r}")
    if checked > LAST_STEP:
        raise ValueError(f"{name} must be at most {LAST_STEP:,}, where clocks end, got {str(steps)[:40]}")
    return checked


def _whole(number: Any) -> int | None:
    """Return a whole number as an int, None if it is not one."""
    if type(number) is int:
        return number
    if isinstance(number, bool):
        return None
    if isinstance(number, numbers.Real) and not isinstance(number, numbers.Integral):
        return int(float(number)) if float(number).is_integer() else None
    try:
        return operator.index(number)
    except TypeError:
        return None


def _checked_betas(betas: Any) -> tuple[float, ...]:
    try:
        values = tuple(betas)
    except TypeError:
        values = ()
    if len(values) not in (2, 3):
        raise ValueError(f"betas must be (beta1, beta2) or (beta1, beta2, beta3), got {betas!r}")
    return tuple(checked_beta(f"beta{i}", beta) for i, beta in enumerate(values, start=1))


def checked_beta(name: str, beta: Any) -> float:
    """Return `beta`, a number or a one-element tensor in [0, 1), as a float, or raise ValueError."""
    if type(beta) is float and 0.0 <= beta < 1.0:
        return beta  # quickly, since every step checks
    if getattr(beta, "requires_grad", False):
        raise ValueError(f"{name} requires grad, but AdEMAMix is differentiable in lr alone: pass {name}.detach()")
    number = beta.item() if hasattr(beta, "numel") and beta.numel() == 1 else beta
    if not isinstance(number, numbers.Real) or not 0.0 <= float(number) < 1.0:
        raise ValueError(f"{name} must be a number in [0, 1), got {beta!r}")
    return float(number)


def checked_nonnegative(name: str, value: Any) -> float:
    """Return `value`, a finite number that is not negative, or raise ValueError."""
    if type(value) is float and 0.0 <= value < math.inf:
        return value
    if not isinstance(value, numbers.Real) or not 0.0 <= _as_float(value) < math.inf:
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")
    return float(value)


def _as_float(number: Any) -> float:
    """Return a number as a float; infinite if it is too large for one."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def checked_clip(slow_clip: Any) -> float | None:
    """Return `slow_clip`, a finite number above 0 or None, or raise ValueError."""
    if slow_clip is None:
        return None
    is_number = isinstance(slow_clip, numbers.Real) and not isinstance(slow_clip, bool)
    if not is_number or not 0.0 < _as_float(slow_clip) < math.inf:
        raise ValueError(f"slow_clip must be a finite number > 0, or None for no bound, got {slow_clip!r}")
    return float(slow_clip)


def checked_lr(lr: Any) -> Any:
    """Return `lr`, a number or a one-element tensor, or raise ValueError."""
    _check_lr_kind(lr)
    if not 0.0 <= (_as_float(lr) if isinstance(lr, int) else lr) < math.inf:
        raise ValueError(f"lr must be a finite number >= 0, got {lr!r}")
    return lr


def _check_lr_kind(lr: Any) -> None:
    if hasattr(lr, "numel"):
        if lr.numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    elif not isinstance(lr, numbers.Real):
        raise ValueError(f"lr must be a number or a 1-element Tensor, got {lr!r}")


def _checked_seed(seed: Any) -> int:
    if type(seed) is _DefaultInt:
        return seed
    if not isinstance(seed, numbers.Integral) or not 0 <= int(seed) < 2**63:
        raise ValueError(f"rounding_seed must be an integer in [0, 2**63), got {seed!r}")
    return int(seed)


def is_stated(seed: int) -> bool:
    """Tell whether the caller has chosen the `rounding_seed` of a new group."""
    return not isinstance(seed, _DefaultInt)


def _check_execution(raw: Mapping[str, Any]) -> None:
    if raw["nonfinite"] not in NONFINITE:
        raise ValueError(f"nonfinite must be one of {NONFINITE}, got {raw['nonfinite']!r}")
    if raw["state_storage"] not in STATE_STORAGES:
        raise ValueError(f"state_storage must be one of {STATE_STORAGES}, got {raw['state_storage']!r}")
    if raw["master"] not in MASTERS:
        raise ValueError(f"master must be one of {MASTERS}, got {raw['master']!r}")
    if raw["stochastic_rounding"] not in (None, True, False):
        raise ValueError(f"stochastic_rounding must be True, False or None, got {raw['stochastic_rounding']!r}")
    if raw["stochastic_rounding"] and raw["differentiable"]:
        raise ValueError("stochastic_rounding=True has no derivative: it cannot be used with differentiable=True")
    if raw["state_storage"] != "fp32" and raw["differentiable"]:
        raise ValueError(
            f"state_storage={str(raw['state_storage'])!r} rounds the moments, which has no derivative: "
            "differentiable=True needs state_storage='fp32'"
        )
    if raw["master"] is not None and raw["differentiable"]:
        raise ValueError(f"master={raw['master']!r} rounds the parameters, which has no derivative: leave it out")
    if raw["fused"] and raw["foreach"]:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together")
    if raw["fused"] and raw["differentiable"]:
        raise RuntimeError("`fused` does not support `differentiable`")
