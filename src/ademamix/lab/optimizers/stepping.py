"""Parts that the lab's optimizers share: checks of settings, gathering of tensors, momentum, and the end of a step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
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


class BatchedOptimizer(Optimizer, ABC):
    """An optimizer written as equations for parameters that take the same step; subclasses have the equations."""

    MOMENTS: tuple[str, ...] = ()
    """The names of the tensors that are kept for each parameter."""

    @abstractmethod
    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a group, or raise ValueError if they cannot be."""

    def _moments(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the tensors that are kept for the parameters of a group."""
        return self.MOMENTS

    @abstractmethod
    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        """Update moments and parameters in place."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, which may have its own value of every setting."""
        super().add_param_group(param_group | self._checked(self.defaults | param_group))
        try:
            check_precision(type(self).__name__, self.param_groups[-1]["params"])
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step, and return the loss if `closure` computes it."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for batch in self._batches(group):
                self._update(batch, group)
        return loss

    def _batches(self, group: Mapping[str, Any]) -> Iterator[Batch]:
        """Advance the clock of each parameter that has a gradient, and yield them by clock, device and dtype."""
        names = self._moments(group)
        alike: dict[tuple[int, torch.device, torch.dtype], list[Tensor]] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            state = self.state[param]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state.update({name: torch.zeros_like(param) for name in names})
            state["step"] += 1
            alike.setdefault((int(state["step"]), param.device, param.dtype), []).append(param)
        for (step, _, _), params in alike.items():
            columns = [[self.state[param][name] for param in params] for name in names]
            yield Batch(step, params, [param.grad for param in params if param.grad is not None], columns)


def accumulate_(momenta: list[Tensor], grads: list[Tensor], beta: float) -> None:
    """Update a momentum: m <- beta m + g."""
    torch._foreach_add_(
        momenta, momenta, alpha=beta - 1
    )  # not a product: fp32 has more digits of 1 - beta than of beta
    torch._foreach_add_(momenta, grads)


def normalise_(directions: Any, squares: list[Tensor], batch: Batch, beta2: float, eps: float) -> None:
    """Update the second moment of Adam and divide `directions` by its root: sqrt(nu / (1 - beta2^t)) + eps."""
    torch._foreach_lerp_(squares, torch._foreach_mul(batch.grads, batch.grads), 1 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, math.sqrt(1 - beta2**batch.step))
    torch._foreach_add_(roots, eps)
    torch._foreach_div_(directions, roots)


def descend_(params: list[Tensor], directions: Any, group: Mapping[str, Any], gain: float = 1.0) -> None:
    """Take the step: theta <- theta - lr (gain direction + weight_decay theta)."""
    changes = torch._foreach_mul(directions, group["lr"] * gain)
    torch._foreach_add_(changes, params, alpha=group["lr"] * group["weight_decay"])
    torch._foreach_sub_(params, changes)


def nonnegative(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the settings of these names, or raise ValueError if one is not a finite number >= 0."""
    return {name: hyperparameters.checked_nonnegative(name, raw[name]) for name in names}


def mixture_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings that are also AdEMAMix's; all schedules run over `total_steps`."""
    resolved = hyperparameters.resolve_algorithm(
        {**raw, "alpha_warmup": None, "beta3_warmup": None, "beta3_start": None}
    )
    names = ("betas", "alpha", "total_steps", "eps", "weight_decay")
    return nonnegative(raw, "lr") | {name: resolved[name] for name in names}


def rising_beta1(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Check the settings of a beta1 that rises from `beta1_start` over `total_steps`."""
    return {
        "betas": checked_betas(raw["betas"], count=2),
        "beta1_start": hyperparameters.checked_beta("beta1_start", raw["beta1_start"]),
        "total_steps": hyperparameters.checked_steps("total_steps", raw["total_steps"], least=1),
    }


def checked_betas(betas: Any, count: int | None) -> tuple[float, ...]:
    """Return `betas`, `count` numbers in [0, 1), or raise ValueError; None takes any count but 0."""
    values = tuple(betas) if isinstance(betas, Sequence) else ()
    if not values or len(values) != (count or len(values)):
        raise ValueError(f"betas must be {count or 'one or more'} numbers in [0, 1), got {betas!r}")
    return tuple(hyperparameters.checked_beta(f"beta{i}", beta) for i, beta in enumerate(values, start=1))


def check_precision(name: str, params: Iterable[Tensor]) -> None:
    """Raise ValueError if one of the parameters has fewer bits than fp32."""
    for param in params:
        if param.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{name} takes fp32 and fp64 parameters, got {param.dtype}: its averages have the dtype of their "
                "parameter, and would stop moving. Use fp32 parameters, or AdEMAMix, which with alpha=0 is AdamW"
            )
