"""Optimizers of other papers that this paper states beside its own: AggMo, AdMeta-S and Lion.

They are for experiments: parameters are fp32 or fp64, learning rates plain numbers. Weight decay is decoupled.

Packages that have them were tried. lion-pytorch 0.2.5 is true to the equation, but its fast form fails on a group
without gradients and its other form rounds beta to fp32; pytorch_optimizer 4.1.0 takes longer to import than torch, and
its AggMo goes wrong where two betas are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from ademamix import hyperparameters
from ademamix.lab.optimizers.stepping import (
    Batch,
    BatchedOptimizer,
    accumulate_,
    checked_betas,
    descend_,
    nonnegative,
)


class AggMo(BatchedOptimizer):
    r"""Gradient descent with the mean of K momenta, one for each of `betas`.

    .. math::
        m_i \leftarrow \beta_i m_i + g \quad (1 \le i \le K) \qquad
        \theta \leftarrow \theta - \eta\Bigl(\frac{1}{K} \sum_i m_i + \lambda\theta\Bigr)

    >>> point = torch.ones(2)
    >>> optimizer = AggMo([point], lr=0.1, betas=(0.0, 0.9))
    >>> point.grad = torch.tensor([1.0, -2.0])
    >>> optimizer.step()
    >>> optimizer.step()  # the momenta are 1 and 1.9 times the gradient
    >>> point
    tensor([0.7550, 1.4900])

    Reference: appendix C of the paper, "Adding a third momentum term"; its equation has no weight decay, which is
    therefore 0 unless it is given.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: Sequence[float] = (0.0, 0.9, 0.99),
        *,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        return nonnegative(raw, "lr", "weight_decay") | {"betas": checked_betas(raw["betas"], count=None)}

    def _moments(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(f"momentum_{i}" for i in range(1, len(group["betas"]) + 1))

    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        betas = group["betas"]
        directions = [torch.zeros_like(param) for param in batch.params]
        for beta, momenta in zip(betas, batch.moments, strict=True):
            accumulate_(momenta, batch.grads, beta)
            torch._foreach_add_(directions, momenta, alpha=1 / len(betas))
        descend_(batch.params, directions, group)


class AdMetaS(BatchedOptimizer):
    r"""AdMeta-S: gradient descent with two nested averages.

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + g \qquad
        m_2 \leftarrow \beta_2 m_2 + (1-\beta_2) (\kappa g + \mu m_1) \qquad
        \theta \leftarrow \theta - \eta (m_2 + \lambda\theta) \\
        \mu &= 25 - 10\,(\beta_1 + 1/\beta_1) \qquad \kappa = 10/\beta_1 - 9

    >>> point = torch.ones(2)
    >>> optimizer = AdMetaS([point], lr=0.1, betas=(0.5, 0.5))  # mu = 0 and kappa = 11
    >>> point.grad = torch.tensor([1.0, -2.0])
    >>> optimizer.step()
    >>> point
    tensor([0.4500, 2.1000])

    Reference: appendix C of the paper, "Comparison with AdMeta and DEMA"; its equation has no weight decay, which is
    therefore 0 unless it is given.
    """

    MOMENTS = ("momentum", "exp_avg")

    def __init__(
        self, params: ParamsT, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.1), *, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        betas = checked_betas(raw["betas"], count=2)
        if betas[0] == 0:
            raise ValueError(f"beta1 must be a number in (0, 1), got {raw['betas'][0]!r}")
        return nonnegative(raw, "lr", "weight_decay") | {"betas": betas}

    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        mu, kappa = 25 - 10 * (beta1 + 1 / beta1), 10 / beta1 - 9
        momenta, averages = batch.moments
        accumulate_(momenta, batch.grads, beta1)
        inner = torch._foreach_mul(batch.grads, kappa)
        torch._foreach_add_(inner, momenta, alpha=mu)
        torch._foreach_lerp_(averages, inner, 1 - beta2)
        descend_(batch.params, averages, group)


class Lion(BatchedOptimizer):
    r"""Lion: steps of one size along the sign of an average, which is updated after it has been used.

    .. math::
        \theta \leftarrow \theta - \eta \big(\mathrm{sign}(\alpha m + (1-\alpha) g) + \lambda\theta\big) \qquad
        m \leftarrow \beta m + (1-\beta) g

    >>> point = torch.ones(2)
    >>> optimizer = Lion([point], lr=0.1, weight_decay=0.0)
    >>> point.grad = torch.tensor([1.0, -2.0])
    >>> optimizer.step()
    >>> point
    tensor([0.9000, 1.1000])

    Reference: appendix C of the paper, "Comparison with Lion"; alpha and beta are the best of its table.
    """

    MOMENTS = ("exp_avg",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        *,
        alpha: float = 0.9,
        beta: float = 0.99,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "beta": beta, "weight_decay": weight_decay})

    def _checked(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        shares = {name: hyperparameters.checked_beta(name, raw[name]) for name in ("alpha", "beta")}
        return nonnegative(raw, "lr", "weight_decay") | shares

    def _update(self, batch: Batch, group: Mapping[str, Any]) -> None:
        (averages,) = batch.moments
        directions = torch._foreach_lerp(averages, batch.grads, 1 - group["alpha"])
        torch._foreach_sign_(directions)
        torch._foreach_lerp_(averages, batch.grads, 1 - group["beta"])
        descend_(batch.params, directions, group)
