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

    which saves two passes over memory. The slow part of it, slow_gain m2 / (sqrt(nu) + eps), is bounded by slow_limit
    where there is one. All rates are small numbers: 1 - rate, rounded to fp32, would be off by 1e-4 of
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
    slow_limit: Any = math.inf  # slow_clip bc1 / sqrt(bc2); this very number, and no tensor, if there is none

    @property
    def bounds_slow(self) -> bool:
        """Tell whether the slow part is bounded."""
        return not isinstance(self.slow_limit, float) or self.slow_limit < math.inf

    def mapped(self, function: Callable[[Any], Any]) -> Coefficients:
        """Apply a function to all numbers, except to a limit that is none."""
        limit = function(self.slow_limit) if self.bounds_slow else self.slow_limit
        return Coefficients._make((*map(function, self[:-1]), limit))


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
    slow_clip: float | None = None

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
        found = core.Clocks(tensors.steps, tensors.slow_steps, reader)
        distinct, advance = found.distinct, found.advance
        now = [distinct[i] for i in found.positions]
    else:
        now = [(step.item() + 1, slow.item() + 1) for step, slow in zip(tensors.steps, tensors.slow_steps, strict=True)]
        distinct, advance = list(set(now)), lambda: torch._foreach_add_(clocks, 1)
    known = dict(zip(distinct, coefficients_at(distinct, settings), strict=True))
    coefficients = [known[pair] for pair in now]
    for i, start in fast_starts.items():
        step, slow_step = now[i]
        coefficients[i] = float_coefficients(step, slow_step, step - start.item(), settings)
    return coefficients, advance


def coefficients_at(clocks: list[tuple[float, float]], settings: Settings) -> list[Coefficients]:
    """Return the coefficients at each pair of clocks, of parameters whose m1 began with them."""
    return [float_coefficients(step, slow_step, step, settings) for step, slow_step in clocks]


def taken(coefficients: PerTensor, positions: slice | list[int]) -> PerTensor:
    """Return the coefficients of the tensors at some positions."""
    if not isinstance(coefficients, list):
        return coefficients.mapped(lambda field: field[positions])
    if isinstance(positions, slice):
        return coefficients[positions]
    return [coefficients[i] for i in positions]


def one_per_tensor(coefficients: PerTensor, dtypes: list[torch.dtype]) -> list[Coefficients]:
    """Split vectors into 0-dim tensors of the dtype that each parameter is computed in; floats stay floats."""
    if isinstance(coefficients, list):
        return coefficients
    by_dtype = {dtype: _rows(coefficients, dtype) for dtype in set(dtypes)}
    return [by_dtype[dtype][i] for i, dtype in enumerate(dtypes)]


def _rows(vectors: Coefficients, dtype: torch.dtype) -> list[Coefficients]:
    columns = vectors.mapped(lambda field: field.to(dtype).unbind())
    limits = columns.slow_limit if columns.bounds_slow else [columns.slow_limit] * len(columns.step)
    return [Coefficients(*row) for row in zip(*columns[:-1], limits, strict=True)]


def columns_of(rows: list[Coefficients]) -> Coefficients:
    """Return the coefficients of several tensors as lists. All of them have a limit, or none has."""
    limits = [row.slow_limit for row in rows] if rows[0].bounds_slow else rows[0].slow_limit
    return Coefficients._make((*map(list, zip(*(row[:-1] for row in rows), strict=True)), limits))


def matrix_of(vectors: Coefficients) -> Tensor:
    """Return coefficients as a matrix with a row for each tensor."""
    columns = [field if isinstance(field, Tensor) else torch.full_like(vectors.step, field) for field in vectors]
    return torch.stack(columns, dim=1)


def float_coefficients(step: float, slow_step: float, fast_step: float, settings: Settings) -> Coefficients:
    """Compute the coefficients at given clocks; `fast_step` counts the updates of m1."""
    return _coefficients(step, slow_step, fast_step, settings, math.sqrt, math.expm1)


def _vectors(tensors: Tensors, fast_starts: Mapping[int, Tensor], settings: Settings) -> Coefficients:
    step = torch.stack(tensors.steps).to(torch.float64) + 1
    slow_step = torch.stack(tensors.slow_steps).to(torch.float64) + 1
    fast_step = step
    if fast_starts:
        at_zero = torch.zeros_like(tensors.steps[0])
        fast_step = step - torch.stack([fast_starts.get(i, at_zero) for i in range(len(tensors.steps))])
    fields = _coefficients(step, slow_step, fast_step, settings, torch.sqrt, torch.expm1)
    zeros = torch.zeros_like(step)
    return fields.mapped(lambda field: zeros + field)


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
        # Through ln(beta3) and expm1: 1 - exp(ln(beta3)) would lose the digits that a slow average lives on.
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
        slow_limit=math.inf if settings.slow_clip is None else settings.slow_clip * correction1 / root2,
    )
