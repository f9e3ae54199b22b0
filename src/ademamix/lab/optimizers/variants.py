"""Relatives of AdEMAMix that the paper compares it with: Adam with other averages in place of the first moment.

Like those of `baselines.py`, they are for experiments: parameters are fp32 or fp64, learning rates plain numbers.
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
    checked_betas,
    descend_,
    mixture_settings,
    nonnegative,
    normalise_,
    rising_beta1,
)
from ademamix.schedules import alpha_at, beta3_at


class AdamWScheduledBeta1(BatchedOptimizer):
    r"""AdamW whose beta1 rises like the beta3 of AdEMAMix, from `beta1_start` over `total_steps`.

    .. math::
        m &\leftarrow \beta_1^{(t)} m + (1-\beta_1^{(t)}) g \qquad
        w \leftarrow \beta_1^{(t)} w + (1-\beta_1^{(t)}) \qquad
        \nu \leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta\Bigl(\frac{m/w}{\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Bigr)

    The paper leaves the bias correction open. Here w is the weight that all gradients have in m together: it is AdamW's
    :math:`1-\beta_1^t` for a constant beta1. With a beta1 that has grown to be slow, :math:`1-(\beta_1^{(t)})^t` would
    be far below it, and steps too long.

    The rise begins after `schedule_start` steps: those that AdamW has taken, if this optimizer continues from it.

    >>> point = torch.ones(2)
    >>> optimizer = AdamWScheduledBeta1([point], lr=0.1, betas=(0.999, 0.999), total_steps=100, weight_decay=0.0)
    >>> point.grad = torch.tensor([1.0, -2.0])
    >>> optimizer.step()
    >>> point
    tensor([0.9000, 1.1000])

    Reference: appendix C of the paper, "Limitations of a single EMA".
    """

    MOMENTS = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.99, 0.999),
        *,
        beta1_start: float = 0.9,
        total_steps: int | None = None,
        schedule_start: int = 0,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "beta1_start": beta1_start, "total_steps": total_steps, "eps": eps}
        super().__init__(params, {**defaults, "schedule_start": schedule_start, "weight_decay": weight_decay})

    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **nonnegative(raw, "lr", "eps", "weight_decay"),
            **rising_beta1(raw),
            "schedule_start": hyperparameters.checked_steps("schedule_start", raw["schedule_start"], least=0),
        }

    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        averages, squares = batch.moments
        final_beta1, beta2 = group["betas"]
        since = batch.step - group["schedule_start"]
        beta1 = beta3_at(since, final_beta1, group["beta1_start"], group["total_steps"] or 0)
        weights = [self.state[param].setdefault("weight", param.new_zeros(())) for param in batch.params]
        torch._foreach_lerp_(averages, batch.grads, 1 - beta1)
        torch._foreach_lerp_(weights, [torch.ones_like(weight) for weight in weights], 1 - beta1)
        directions = torch._foreach_div(averages, weights)
        normalise_(directions, squares, batch, beta2, group["eps"])
        descend_(batch.params, directions, group)


class ConvexMix(BatchedOptimizer):
    r"""AdEMAMix with a convex combination of its two averages: alpha rises linearly to a value in [0, 1].

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g \qquad
        m_2 \leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g \qquad
        \nu \leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta\Bigl(\frac{(1-\alpha^{(t)})\, m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Bigr)

    With ``matches_ademamix=True``, `alpha` is AdEMAMix's, and the schedules are those that make the two equal. They
    take the place of alpha and, except in weight decay, of the learning rate:

    .. math:: \hat\eta^{(t)} = \eta^{(t)} (\alpha^{(t)} + 1) \qquad
              \hat\alpha^{(t)} = \frac{\alpha^{(t)}}{\alpha^{(t)} + 1}

    >>> point = torch.ones(2)
    >>> optimizer = ConvexMix([point], lr=0.1, betas=(0.9, 0.999, 0.9999), alpha=0.8, total_steps=2, weight_decay=0.0)
    >>> point.grad = torch.tensor([1.0, -2.0])
    >>> optimizer.step()  # at the first of two steps alpha is 0.4, beta3 0.9998, and m2 still small
    >>> point
    tensor([0.9400, 1.0600])

    `betas`, `total_steps`, `eps` and `weight_decay` are as in :class:`ademamix.AdEMAMix`: of a pair of betas, beta3 is
    chosen for `total_steps`.

    Reference: appendix C of the paper, "Comparing m1 + alpha m2 versus (1 - alpha) m1 + alpha m2".
    """

    MOMENTS = ("exp_avg", "exp_avg_slow", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] | tuple[float, float, float] = hyperparameters.BETAS,
        *,
        alpha: float = 0.9,
        matches_ademamix: bool = False,
        total_steps: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "alpha": alpha, "matches_ademamix": matches_ademamix}
        super().__init__(params, {**defaults, "total_steps": total_steps, "eps": eps, "weight_decay": weight_decay})

    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        settings = mixture_settings(raw)
        if settings["alpha"] > 1 and not raw["matches_ademamix"]:
            raise ValueError(f"alpha must be in [0, 1], or matches_ademamix=True, got {raw['alpha']!r}")
        return settings

    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        fasts, slows, squares = batch.moments
        t, T = batch.step, group["total_steps"] or 0
        beta1, beta2, beta3 = group["betas"]
        alpha, gain = alpha_at(t, group["alpha"], T), 1.0
        if group["matches_ademamix"]:
            alpha, gain = alpha / (alpha + 1), alpha + 1
        torch._foreach_lerp_(fasts, batch.grads, 1 - beta1)
        torch._foreach_lerp_(slows, batch.grads, 1 - beta3_at(t, beta3, beta1, T))
        directions = torch._foreach_mul(fasts, (1 - alpha) / (1 - beta1**t))
        torch._foreach_add_(directions, slows, alpha=alpha)
        normalise_(directions, squares, batch, beta2, group["eps"])
        descend_(batch.params, directions, group, gain)


class Ad3EMAMix(BatchedOptimizer):
    r"""AdEMAMix with a third average, whose beta4 follows the same schedule as beta3.

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g \qquad
        m_2 \leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g \qquad
        m_3 \leftarrow \beta_4^{(t)} m_3 + (1-\beta_4^{(t)}) g \\
        \nu &\leftarrow \beta_2 \nu + (1-\beta_2) g^2 \qquad
        \theta \leftarrow \theta - \eta\Bigl(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} (m_2 + m_3)}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Bigr)

    `betas` are beta1 to beta4; alpha is the paper's for this experiment.

    >>> point = torch.ones(2)
    >>> optimizer = Ad3EMAMix([point], lr=0.1, betas=(0.9, 0.999, 0.9, 0.9), total_steps=4, weight_decay=0.0)
    >>> point.grad = torch.tensor([1.0, -2.0])
    >>> optimizer.step()  # alpha is 1, and both m2 and m3 are a tenth of the gradient
    >>> point
    tensor([0.8800, 1.1200])

    Reference: appendix C of the paper, "Adding a third momentum term".
    """

    MOMENTS = ("exp_avg", "exp_avg_slow", "exp_avg_slower", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float, float, float] = (0.9, 0.999, 0.999, 0.9999),
        *,
        alpha: float = 4.0,
        total_steps: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "alpha": alpha, "total_steps": total_steps, "eps": eps}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})

    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        betas = checked_betas(raw["betas"], count=4)
        return mixture_settings({**raw, "betas": betas[:3]}) | {"betas": betas}

    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        fasts, slows, slowers, squares = batch.moments
        t, T = batch.step, group["total_steps"] or 0
        beta1, beta2, beta3, beta4 = group["betas"]
        alpha = alpha_at(t, group["alpha"], T)
        torch._foreach_lerp_(fasts, batch.grads, 1 - beta1)
        torch._foreach_lerp_(slows, batch.grads, 1 - beta3_at(t, beta3, beta1, T))
        torch._foreach_lerp_(slowers, batch.grads, 1 - beta3_at(t, beta4, beta1, T))
        directions = torch._foreach_mul(fasts, 1 / (1 - beta1**t))
        torch._foreach_add_(directions, slows, alpha=alpha)
        torch._foreach_add_(directions, slowers, alpha=alpha)
        normalise_(directions, squares, batch, beta2, group["eps"])
        descend_(batch.params, directions, group)
