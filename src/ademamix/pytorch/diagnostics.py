"""What the optimizer is doing: its schedule now, and the sizes of the two averages and of the update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ademamix.pytorch.coefficients import Settings, float_coefficients
from ademamix.pytorch.parameter_state import values_of
from ademamix.pytorch.shards import local
from ademamix.pytorch.storage import is_reduced
from ademamix.schedules import alpha_at, beta3_at
from ademamix.state_keys import FAST_KEY, FAST_START, MOMENT_KEYS, SCALE_KEYS, SLOW_KEY, SQUARE_KEY

# In units of lr. The slow part is about alpha at most where gradients keep their size, since an average is no larger
# than they are. Where they have stayed away, the second moment decays before the average, and it grows.
LARGE_SLOW_STEP = 10.0

States = Mapping[Tensor, Mapping[str, Any]]


def schedule_of(group: Mapping[str, Any], states: States) -> dict[str, Any]:
    """Return clocks, alpha(t) and beta3(t) of a group, at the largest clocks of its parameters."""
    clocks = [states[param] for param in group["params"] if "step" in states.get(param, ())]
    step = max((int(state["step"]) for state in clocks), default=0)
    slow_step = max((int(state["slow_step"]) for state in clocks), default=0)
    t = max(slow_step, 1)  # before the first step: the values that it will use
    return {
        "step": step,
        "slow_step": slow_step,
        "alpha": alpha_at(t, group["alpha"], group["alpha_warmup"]),
        "beta3": beta3_at(t, group["betas"][2], group["beta3_start"], group["beta3_warmup"]),
    }


@torch.no_grad()
def diagnostics_of(group: Mapping[str, Any], states: States) -> dict[str, Any]:
    """Return :func:`schedule_of` and the norms of a group, as its state and gradients are now."""
    fast_sum = slow_sum = alpha_slow_sum = update_sum = dot = 0.0  # sums of squares, except the last
    largest_slow_steps, large_slow_steps = [torch.zeros(())], 0
    skipped = 0
    lr = float(group["lr"])
    sizes = {"reduced_bytes": 0, "full_bytes": 0}
    for param in group["params"]:
        state = states.get(param, {})
        for name, size in _bytes_of(state).items():
            sizes[name] += size
        if int(state.get("step", 0)) == 0:
            continue
        step = float(state["step"])
        fast_step = max(step - float(state.get(FAST_START, 0)), 1)  # an m1 that is still empty divides by 1
        slow_step = max(int(state["slow_step"]), 1)  # as in `schedule_of`
        c = float_coefficients(step, float(slow_step), fast_step, Settings.of_group(group)._replace(lr=1.0))
        fast, slow, square = _moments(param, state, group)
        alpha = alpha_at(slow_step, group["alpha"], group["alpha_warmup"])
        slow_part = (c.slow_gain * slow / (square.sqrt() + c.eps)).clamp(-c.slow_limit, c.slow_limit)
        direction = fast / (square.sqrt() + c.eps) + slow_part
        slow_steps = c.step_size * slow_part.abs()
        if slow_steps.numel():
            largest_slow_steps.append(slow_steps.max().float().cpu())
        large_slow_steps += int((slow_steps > LARGE_SLOW_STEP).sum())
        fast_sum += _sum(fast * fast)
        slow_sum += _sum(slow * slow)
        alpha_slow_sum += alpha**2 * _sum(slow * slow)
        update_sum += (lr * c.step_size) ** 2 * _sum(direction.square())
        dot += _sum(fast * slow)
        skipped += int(state.get("skipped", 0))
    return {
        **schedule_of(group, states),
        "m1_norm": math.sqrt(fast_sum),
        "alpha_m2_norm": math.sqrt(alpha_slow_sum),
        "update_norm": math.sqrt(update_sum),
        "cosine": dot / math.sqrt(fast_sum * slow_sum) if fast_sum * slow_sum > 0 else math.nan,
        "largest_slow_step": float(torch.stack(largest_slow_steps).max()),  # NaN if one is
        "large_slow_steps": large_slow_steps,
        "skipped": skipped,
        **sizes,
    }


def _bytes_of(state: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of the moments that are stored in fewer bits than they are computed in, and of the others."""
    parts = {key: local(state[key]) for key in (*MOMENT_KEYS.values(), *SCALE_KEYS.values()) if key in state}
    reduced = [key for key, part in parts.items() if key in SCALE_KEYS.values() or is_reduced(part)]
    sizes = {key: part.numel() * part.element_size() for key, part in parts.items()}
    coded = sum(sizes[key] for key in reduced)
    return {"reduced_bytes": coded, "full_bytes": sum(sizes.values()) - coded}


def _moments(param: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    slow, square = local(values_of(state, SLOW_KEY)), local(values_of(state, SQUARE_KEY))
    if FAST_KEY in state:
        fast = local(values_of(state, FAST_KEY))
    elif param.grad is not None:  # with beta1 = 0, m1 is the gradient, and is not stored
        fast = (-local(param.grad) if group["maximize"] else local(param.grad)).to(slow.dtype)
    else:
        fast = torch.full_like(slow, math.nan)
    if slow.is_complex():
        return torch.view_as_real(fast), torch.view_as_real(slow), torch.view_as_real(square)
    return fast, slow, square


def _sum(values: Tensor) -> float:
    return float(values.sum(dtype=torch.float64))
