"""Switching a live optimizer: AdamW to AdEMAMix and back, in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.optim.optimizer import Optimizer

from ademamix.pytorch import parameter_state
from ademamix.pytorch.foreign import ADAMW_ONLY, refuse_other_adams
from ademamix.state_keys import FAST_KEY, SQUARE_KEY, STEP_KEY

if TYPE_CHECKING:
    from ademamix.pytorch.optimizer import AdEMAMix

SHARED = ("lr", "eps", "weight_decay", "maximize", "capturable", "differentiable", "foreach")


def from_adamw(
    build: Callable[[list[dict[str, Any]]], AdEMAMix],
    adamw: torch.optim.Adam,
    beta3: float | None,
    state_storage: str,
) -> AdEMAMix:
    """Hand the groups and the state of `adamw` over to the optimizer that `build` makes of groups."""
    if not isinstance(adamw, (torch.optim.Adam, torch.optim.AdamW)):  # in older torch AdamW is not an Adam
        raise TypeError(f"from_adamw takes a torch.optim.AdamW, got {type(adamw).__name__}")
    is_decoupled = isinstance(adamw, torch.optim.AdamW)  # which the groups of older torch do not say
    for group in adamw.param_groups:
        refuse_other_adams({"decoupled_weight_decay": is_decoupled, **group})
    new_groups = []
    for group in adamw.param_groups:
        betas = tuple(float(beta) for beta in group["betas"])
        settings = {
            **{name: group[name] for name in SHARED},
            "betas": betas if beta3 is None else (*betas, beta3),
        }
        new_groups.append({"params": _with_names(group), **settings})
    optimizer = build(new_groups)

    for group in optimizer.param_groups:
        for param in group["params"]:
            if STEP_KEY in adamw.state.get(param, ()):
                optimizer.state[param] = parameter_state.adopt(adamw.state[param], param, group)
    _take_over_groups(optimizer, adamw, drop=ADAMW_ONLY)
    _retire(adamw, "it was converted by AdEMAMix.from_adamw; step the AdEMAMix it returned")
    return optimizer


def to_adamw(optimizer: AdEMAMix) -> torch.optim.AdamW:
    """Hand the groups and the state of `optimizer`, less the slow average, over to an AdamW."""
    adamw = torch.optim.AdamW(
        [
            {
                "params": _with_names(group),
                **{name: group[name] for name in SHARED},
                # torch's fused kernel has no complex numbers, and torch captures steps on accelerators alone.
                "fused": group["fused"] if all(map(torch.is_floating_point, group["params"])) else None,
                "capturable": group["capturable"] and not all(param.is_cpu for param in group["params"]),
                "betas": tuple(group["betas"][:2]),
            }
            for group in optimizer.param_groups
        ]
    )
    for group in optimizer.param_groups:
        for param in group["params"]:
            if STEP_KEY in optimizer.state.get(param, ()):
                state = parameter_state.with_one_clock(optimizer.state[param], group)
                square = parameter_state.values_of(state, SQUARE_KEY)
                fast = parameter_state.values_of(state, FAST_KEY) if FAST_KEY in state else torch.zeros_like(square)
                adamw.state[param] = {
                    STEP_KEY: state[STEP_KEY],
                    # AdamW keeps its moments in the dtype of their parameter and cannot step otherwise.
                    FAST_KEY: fast.to(param.dtype),
                    SQUARE_KEY: square.to(param.dtype),
                }
    own_only = set(optimizer.defaults) - set(adamw.defaults) | {"given"}
    _take_over_groups(adamw, optimizer, drop=tuple(own_only))
    _retire(optimizer, "it was converted by to_adamw; step the AdamW it returned")
    return adamw


def _with_names(group: dict[str, Any]) -> list[Any]:
    names = group.get("param_names")
    return list(zip(names, group["params"], strict=True)) if names else list(group["params"])


def _take_over_groups(new: Optimizer, old: Optimizer, drop: tuple[str, ...]) -> None:
    """Let `new` continue with the very dicts of `old`, which attached lr schedulers write to."""
    for old_group, new_group in zip(old.param_groups, new.param_groups, strict=True):
        for key in drop:
            old_group.pop(key, None)
        old_group.update(new_group)
    new.param_groups = old.param_groups


def _retire(optimizer: Optimizer, reason: str) -> None:
    optimizer.state.clear()
    raiser = partial(_refuse_to_step, reason)
    raiser._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = raiser  # type: ignore[method-assign]
    optimizer._opt_called = True  # type: ignore[attr-defined]  # an lr scheduler's warning would be a false alarm


def _refuse_to_step(reason: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(f"this optimizer was retired: {reason}")
