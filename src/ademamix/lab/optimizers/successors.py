"""Relatives of AdEMAMix that later papers propose: log-time schedules, and one momentum in place of two averages.

Like those of `variants.py`, they are for experiments: parameters are fp32 or fp64, learning rates plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from ademamix import hyperparameters
from ademamix.lab.optimizers.stepping import (
    Batch,
    BatchedOptimizer,
    accumulate_,
    descend_,
    mixture_settings,
    nonnegative,
    normalise_,
    rising_beta1,
)
from ademamix.schedules import alpha_at, beta3_at


class LogTimeAdEMAMix(BatchedOptimizer):
    r"""AdEMAMix with schedules that need no horizon: what it remembers, alpha and weight decay follow the step itself.

    .. math::
        \beta_3^{(t)} &= 1 - \frac{\delta}{\delta + t} \qquad
        \alpha^{(t)} = \alpha\,(1 + t)^{1-\kappa} \qquad
        \lambda^{(t)} = \lambda\,\frac{\tau}{\tau + t} \\
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g \qquad
        m_2 \leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g \qquad
        \nu \leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta\Big(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda^{(t)}\theta\Big)

    Each part can be left out: with ``delta=None`` beta3 follows AdEMAMix's schedule, with ``kappa=None`` alpha does,
    both over `total_steps`, and without `decay_time`, the tau of the equation, weight decay is constant. With
    ``alpha=0`` there is no slow average: this is AdamW, whose weight decay may follow the schedule.

    >>> point = torch.ones(2)
    >>> optimizer = LogTimeAdEMAMix([point], lr=0.1, weight_decay=0.0)
    >>> point.grad = torch.tensor([1.0, -2.0])
    >>> optimizer.step()  # m2 is 8/9 of the gradient, alpha 2^0.15
    >>> point
    tensor([0.8014, 1.1986])

    Reference: Ferbach et al., "Logarithmic-time Schedules for Scaling Language Models with Momentum", arXiv 2602.05298,
    whose optimizer ADana has these schedules for the only average that it keeps; delta and kappa are its values. There,
    weight decay is omega / t without the largest learning rate as a factor, and in the code omega / (T/10 + t). In the
    terms used here that is ``decay_time=T/10`` and ten times the weight decay that is omega / T when it is constant.
    """

    MOMENTS = ("exp_avg", "exp_avg_slow", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] | tuple[float, float, float] = hyperparameters.BETAS,
        *,
        alpha: float = 1.0,
        delta: float | None = 8.0,
        kappa: float | None = 0.85,
        decay_time: float | None = None,
        total_steps: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "alpha": alpha, "delta": delta, "kappa": kappa, "decay_time": decay_time}
        super().__init__(params, {**defaults, "total_steps": total_steps, "eps": eps, "weight_decay": weight_decay})

    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        kappa = raw["kappa"]
        return mixture_settings(raw) | {
            "delta": _positive_or_none("delta", raw["delta"]),
            "kappa": None if kappa is None else hyperparameters.checked_nonnegative("kappa", kappa),
            "decay_time": _positive_or_none("decay_time", raw["decay_time"]),
        }

    def _moments(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return self.MOMENTS if group["alpha"] else ("exp_avg", "exp_avg_sq")

    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        fasts, *slow, squares = batch.moments
        t = batch.step
        beta1, beta2, _ = group["betas"]
        torch._foreach_lerp_(fasts, batch.grads, 1 - beta1)
        directions = torch._foreach_mul(fasts, 1 / (1 - beta1**t))
        for slows in slow:
            torch._foreach_lerp_(slows, batch.grads, _forgotten(t, group))
            torch._foreach_add_(directions, slows, alpha=_alpha(t, group))
        normalise_(directions, squares, batch, beta2, group["eps"])
        tau = group["decay_time"]
        decay = group["weight_decay"] * (tau / (tau + t) if tau else 1.0)
        descend_(batch.params, directions, {**group, "weight_decay": decay})


def _forgotten(t: int, group: Mapping[str, Any]) -> float:
    """Return 1 - beta3(t)."""
    delta = group["delta"]
    if delta is not None:
        return float(delta / (delta + t))
    beta1, _, beta3 = group["betas"]
    return 1 - beta3_at(t, beta3, beta1, group["total_steps"] or 0)


def _alpha(t: int, group: Mapping[str, Any]) -> float:
    kappa = group["kappa"]
    if kappa is not None:
        return float(group["alpha"] * (1 + t) ** (1 - kappa))
    return alpha_at(t, group["alpha"], group["total_steps"] or 0)


def _positive_or_none(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not hyperparameters.checked_nonnegative(name, value):
        raise ValueError(f"{name} must be a finite number > 0 or None, got {value!r}")
    return float(value)


class SimplifiedAdEMAMix(BatchedOptimizer):
    r"""One momentum, slow and not normalised, and the gradient itself in place of the fast average: 8 bytes of state.

    .. math::
        m &\leftarrow \beta_1^{(t)} m + g \qquad \nu \leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta\Big(\frac{m + \alpha g}{\sqrt{\nu/(1-\beta_2^t)} + \epsilon}
                 + \lambda\theta\Big)

    beta1 rises from `beta1_start` over `total_steps` as AdEMAMix's beta3 does; without a horizon it is constant. alpha
    is the weight of the gradient, not of the slow part: it is to AdEMAMix what 1/(alpha (1 - beta3)) is there. Its
    authors had about 100 with batches of 32k tokens, and almost none with 1M. Since the momentum is a sum over
    1/(1 - beta1) steps, learning rates are far smaller than Adam's; they begin at

    .. math:: \eta = \eta_{Adam} \sqrt{(1 - \beta_{1,start}) (1 - \beta_1)}

    >>> point = torch.ones(2)
    >>> optimizer = SimplifiedAdEMAMix([point], lr=0.01, alpha=4.0, total_steps=100)
    >>> point.grad = torch.tensor([1.0, -2.0])
    >>> optimizer.step()
    >>> point
    tensor([0.9500, 1.0500])

    Reference: Morwani et al., "Connections between Schedule-Free Optimizers, AdEMAMix, and Accelerated SGD Variants",
    arXiv 2502.02431, and its repository DepenM/Simplified-AdEMAMix, whose defaults these are.
    """

    MOMENTS = ("momentum", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.99, 0.95),
        *,
        alpha: float = 0.0,
        beta1_start: float = 0.9,
        total_steps: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "alpha": alpha, "beta1_start": beta1_start, "total_steps": total_steps}
        super().__init__(params, {**defaults, "eps": eps, "weight_decay": weight_decay})

    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        return nonnegative(raw, "lr", "alpha", "eps", "weight_decay") | rising_beta1(raw)

    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        momenta, squares = batch.moments
        final_beta1, beta2 = group["betas"]
        beta1 = beta3_at(batch.step, final_beta1, group["beta1_start"], group["total_steps"] or 0)
        accumulate_(momenta, batch.grads, beta1)
        directions = torch._foreach_add(momenta, batch.grads, alpha=group["alpha"])
        normalise_(directions, squares, batch, beta2, group["eps"])
        descend_(batch.params, directions, group)
