"""Parts that the lab's optimizers share: checks of settings, gathering of tensors, and the end of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from ademamix import hyperparameters


class Batch(NamedTuple):
    """Parameters of one group that take the same step: lists in the same order."""

    step: int
    params: list[Tensor]
    grads: list[Tensor]
    moments: list[list[Tensor]]


def batches(optimizer: Optimizer, group: Mapping[str, Any], moments: tuple[str, ...]) -> Iterator[Batch]:
    """Advance the clock of each parameter that has a gradient, and yield them by clock, device and dtype."""
    alike: dict[tuple[int, torch.device, torch.dtype], list[Tensor]] = {}
    for param in group["params"]:
        if param.grad is None:
            continue
        state = optimizer.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state.update({name: torch.zeros_like(param) for name in moments})
        state["step"] += 1
        alike.setdefault((int(state["step"]), param.device, param.dtype), []).append(param)
    for (step, _, _), params in alike.items():
        columns = [[optimizer.state[param][name] for param in params] for name in moments]
        yield Batch(step, params, [param.grad for param in params if param.grad is not None], columns)


def descend_(params: list[Tensor], directions: Any, group: Mapping[str, Any], gain: float = 1.0) -> None:
    """Take the step: theta <- theta - lr (gain direction + weight_decay theta)."""
    changes = torch._foreach_mul(directions, group["lr"] * gain)
    torch._foreach_add_(changes, params, alpha=group["lr"] * group["weight_decay"])
    torch._foreach_sub_(params, changes)


def evaluated(closure: Callable[[], Any] | None) -> Any:
    """Return the loss that `closure` computes, if there is one."""
    with torch.enable_grad():
        return None if closure is None else closure()


def nonnegative(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the settings of these names, or raise ValueError if one is not a finite number >= 0."""
    return {name: hyperparameters.checked_nonnegative(name, raw[name]) for name in names}


def checked_betas(betas: Any, count: int | None) -> tuple[float, ...]:
    """Return `betas`, `count` numbers in [0, 1), or raise ValueError; None takes any count but 0."""
    values = tuple(betas) if isinstance(betas, Sequence) else ()
    if not values or len(values) != (count or len(values)):
        raise ValueError(f"betas must be {count or 'one or more'} numbers in [0, 1), got {betas!r}")
    return tuple(hyperparameters.checked_beta(f"beta{i}", beta) for i, beta in enumerate(values, start=1))


def refuse_low_precision(optimizer: Optimizer) -> None:
    """Remove the last group and raise if its parameters have less precision than these optimizers need."""
    try:
        check_precision(type(optimizer).__name__, optimizer.param_groups[-1]["params"])
    except ValueError:
        optimizer.param_groups.pop()
        raise


def check_precision(name: str, params: Iterable[Tensor]) -> None:
    """Raise ValueError if one of the parameters has fewer bits than fp32."""
    for param in params:
        if param.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name} takes fp32 and fp64 parameters, got {param.dtype}: its averages have the dtype of their "
                "parameter, and would stop moving. Use fp32 parameters, or AdEMAMix, which with alpha=0 is AdamW"
            )
