"""The numbers of a step: alpha, beta3 and the bias corrections, from the clocks and the settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ademamix.pytorch.core import core, reader
from ademamix.pytorch.tensors import Tensors
from ademamix.schedules import log_beta3, progress


class Coefficients(NamedTuple):
    """The numbers of one parameter's step.

    With bc1 and bc2 the bias corrections of m1 and nu, the update of Algorithm 1 is

        theta <- theta - (decay theta + step_size (m1 + slow_gain m2) / (sqrt(nu) + eps))

    which saves two passes over memory. All rates are small numbers: 1 - rate, rounded to fp32, would be off by 1e-4 of
    the rate, at every step in the same direction. The order of the fields is that of `Coefficients` in csrc/step.h.
    """

    fast_rate: Any  # 1 - beta1
    slow_rate: Any  # 1 - beta3(t)
    square_rate: Any  # 1 - beta2
    slow_gain: Any  # alpha(t) bc1
    step_size: Any  # lr sqrt(bc2) / bc1
    eps: Any  # eps sqrt(bc2)
    decay: Any  # lr weight_decay
    step: Any  # t, part of the key of stochastic rounding


class Settings(NamedTuple):
    """The hyperparameters that coefficients are made of."""

    lr: float | Tensor
    betas: tuple[float, float, float]
    alpha: float
    alpha_warmup: int
    beta3_warmup: int
    beta3_start: float
    eps: float
    weight_decay: float

    @classmethod
    def of_group(cls, group: Mapping[str, Any]) -> Settings:
        """Take the settings from a parameter group."""
        return cls(*(group[name] for name in cls._fields))


# One of floats for each tensor, or, under `capturable` and `torch.compile`, one of vectors over all tensors.
PerTensor: TypeAlias = "list[Coefficients] | Coefficients"


def next_step(
    tensors: Tensors, fast_starts: Mapping[int, Tensor], settings: Settings, *, as_tensors: bool
) -> tuple[PerTensor, Callable[[], None]]:
    """Return the coefficients of the coming step, and a function that advances the clocks to it.

    The clocks are advanced when the step has been taken: one that fails leaves them as they were. `fast_starts` has the
    step at which m1 was empty, by position, for parameters whose m1 began late.
    """
    clocks = [*tensors.steps, *tensors.slow_steps]
    if as_tensors:
        return _vectors(tensors, fast_starts, settings), lambda: torch._foreach_add_(clocks, 1)
    if core is not None and set(map(type, clocks)) == {Tensor} and {clock.dtype for clock in clocks} == {torch.float32}:
        # With 200 small tensors, torch would spend a fifth of the whole step on this.
        found = core.Clocks(clocks, reader)
        values, advance = found.next(), found.advance
    else:
        values, advance = [clock.item() + 1 for clock in clocks], lambda: torch._foreach_add_(clocks, 1)
    count = len(tensors.steps)
    now, slow_now = values[:count], values[count:]
    coefficients = _floats(now, slow_now, settings)
    for i, start in fast_starts.items():
        coefficients[i] = float_coefficients(now[i], slow_now[i], now[i] - start.item(), settings)
    return coefficients, advance


def taken(coefficients: PerTensor, positions: slice | list[int]) -> PerTensor:
    """Return the coefficients of the tensors at some positions."""
    if not isinstance(coefficients, list):
        return Coefficients(*(field[positions] for field in coefficients))
    if isinstance(positions, slice):
        return coefficients[positions]
    return [coefficients[i] for i in positions]


def one_per_tensor(coefficients: PerTensor, dtypes: list[torch.dtype]) -> list[Coefficients]:
    """Split vectors into 0-dim tensors of the dtype that each parameter is computed in; floats stay floats."""
    if isinstance(coefficients, list):
        return coefficients
    by_dtype = {
        dtype: [Coefficients(*row) for row in zip(*(field.to(dtype).unbind() for field in coefficients), strict=True)]
        for dtype in set(dtypes)
    }
    return [by_dtype[dtype][i] for i, dtype in enumerate(dtypes)]


def float_coefficients(step: float, slow_step: float, fast_step: float, settings: Settings) -> Coefficients:
    """Compute the coefficients at given clocks; `fast_step` counts the updates of m1."""
    return _coefficients(step, slow_step, fast_step, settings, math.sqrt, math.expm1)


def _floats(steps: list[float], slow_steps: list[float], settings: Settings) -> list[Coefficients]:
    all_clocks = list(zip(steps, slow_steps, strict=True))
    known = {clocks: float_coefficients(*clocks, clocks[0], settings) for clocks in set(all_clocks)}
    return [known[clocks] for clocks in all_clocks]


def _vectors(tensors: Tensors, fast_starts: Mapping[int, Tensor], settings: Settings) -> Coefficients:
    step = torch.stack(tensors.steps).to(torch.float64) + 1
    slow_step = torch.stack(tensors.slow_steps).to(torch.float64) + 1
    fast_step = step
    if fast_starts:
        at_zero = torch.zeros_like(tensors.steps[0])
        fast_step = step - torch.stack([fast_starts.get(i, at_zero) for i in range(len(tensors.steps))])
    fields = _coefficients(step, slow_step, fast_step, settings, torch.sqrt, torch.expm1)
    zeros = torch.zeros_like(step)
    return Coefficients(*(zeros + field for field in fields))


def _coefficients(
    step: Any,
    slow_step: Any,
    fast_step: Any,
    settings: Settings,
    sqrt: Callable[[Any], Any],
    expm1: Callable[[Any], Any],
) -> Coefficients:
    lr, (beta1, beta2, beta3) = settings.lr, settings.betas
    correction1 = -expm1(fast_step * math.log(beta1)) if beta1 > 0 else 1.0
    root2 = sqrt(-expm1(step * math.log(beta2))) if beta2 > 0 else 1.0
    alpha, slow_rate = settings.alpha, 1 - beta3
    if settings.alpha_warmup:
        alpha = alpha * progress(slow_step, settings.alpha_warmup)
    if settings.beta3_warmup and settings.beta3_start < beta3:
        # Through ln(beta3) and expm1: 1 - exp(ln(beta3)) would lose the digits that a slow EMA lives on.
        slow_rate = -expm1(log_beta3(progress(slow_step, settings.beta3_warmup), beta3, settings.beta3_start))
    return Coefficients(
        fast_rate=1 - beta1,
        slow_rate=slow_rate,
        square_rate=1 - beta2,
        slow_gain=alpha * correction1,
        step_size=lr * root2 / correction1,
        eps=settings.eps * root2,
        decay=lr * settings.weight_decay,
        step=step,
    )
