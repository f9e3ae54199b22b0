"""The oracle: AdEMAMix in NumPy float64, the paper's lines in the paper's order.

It imports nothing from the package and is written to be checked against Algorithm 1 by eye. Every execution path,
state format and framework is tested against it. It is slow and keeps everything in double precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass
class ReferenceAdEMAMix:
    r"""AdEMAMix for one parameter, in double precision.

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g \\
        m_2 &\leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g \\
        \nu &\leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta \Bigl( \frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta \Bigr)

    `step` is t of the bias corrections, `slow_step` is t of the schedules; they differ after a switch from AdamW.
    `slow_clip` and `gradient_limit` are not in the paper. The first bounds the slow part of each element of the update,
    ``|alpha m2| / (sqrt(nu_hat) + eps)``. The second is 2^62 where this follows fp32 arithmetic, in which squares of
    gradients above 1.8e19 are not finite, and infinite elsewhere.

    >>> optimizer = ReferenceAdEMAMix([1.0, -2.0], lr=0.1, betas=(0.9, 0.999, 0.9999), alpha=5.0)
    >>> optimizer.update([0.5, 0.5]).round(4).tolist()
    [0.899, -2.098]

    Reference: Algorithm 1 of the paper.
    """

    theta: NDArray[np.float64]
    lr: float = 1e-3
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999)
    alpha: float = 5.0
    T_alpha: int = 0
    T_beta3: int = 0
    beta_start: float | None = None
    eps: float = 1e-8
    weight_decay: float = 1e-2
    slow_clip: float = math.inf
    gradient_limit: float = math.inf
    step: int = 0
    slow_step: int = 0
    m1: NDArray[np.float64] = field(init=False)
    m2: NDArray[np.float64] = field(init=False)
    nu: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.theta = np.array(self.theta, dtype=np.float64)
        self.m1, self.m2, self.nu = (np.zeros_like(self.theta) for _ in range(3))

    def update(self, gradient: ArrayLike) -> NDArray[np.float64]:
        """Take one step along `gradient` and return the new parameter."""
        g = np.asarray(gradient, dtype=np.float64)
        g = np.where(np.isfinite(g), np.clip(g, -self.gradient_limit, self.gradient_limit), g)
        beta1, beta2, beta3_final = self.betas
        beta_start = beta1 if self.beta_start is None else self.beta_start

        self.step += 1
        self.slow_step += 1
        t = self.step
        beta3 = f_beta3(self.slow_step, beta3_final, beta_start, self.T_beta3)
        alpha = f_alpha(self.slow_step, self.alpha, self.T_alpha)

        self.m1 = beta1 * self.m1 + (1 - beta1) * g
        self.m2 = beta3 * self.m2 + (1 - beta3) * g
        self.nu = beta2 * self.nu + (1 - beta2) * g**2
        m1_hat = self.m1 / (1 - beta1**t)
        nu_hat = self.nu / (1 - beta2**t)
        denominator = np.sqrt(nu_hat) + self.eps
        slow_part = alpha * self.m2
        if self.slow_clip < math.inf:
            slow_part = np.clip(slow_part, -self.slow_clip * denominator, self.slow_clip * denominator)
        self.theta = self.theta - self.lr * ((m1_hat + slow_part) / denominator + self.weight_decay * self.theta)
        return self.theta


def f_alpha(t: float, alpha: float, T_alpha: int) -> float:
    """Evaluate the paper's alpha schedule, min(t alpha / T_alpha, alpha).

    >>> f_alpha(1, 5.0, 10)
    0.5
    """
    return alpha if T_alpha == 0 else min(t * alpha / T_alpha, alpha)


def f_beta3(t: float, beta3: float, beta_start: float, T_beta3: int) -> float:
    """Evaluate the paper's beta3 schedule; its limit beta3^(T/t) where beta_start = 0 has no logarithm.

    >>> round(f_beta3(10, 0.999, 0.9, 20), 6)
    0.99802
    """
    if T_beta3 == 0 or t >= T_beta3:
        return beta3
    mu = t / T_beta3
    if beta3 == 0:
        return 0.0
    if beta_start == 0:
        return float(min(beta3 ** (1 / mu), beta3))
    ln_start, ln_end = math.log(beta_start), math.log(beta3)
    return min(math.exp(ln_start * ln_end / ((1 - mu) * ln_end + mu * ln_start)), beta3)
