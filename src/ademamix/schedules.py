"""The schedules of alpha and beta3, half-lives, and the beta3 that suits a horizon. Plain floats.

Everything here counts t from 1: the first update of a run is t = 1.
Reference: Pagliardini, Ablin and Grangier, "The AdEMAMix Optimizer: Better, Faster, Older", section 3 and
appendix A.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

PAPER_BETA3 = 0.9999
HORIZON_FRACTION = 0.04  # the slow average remembers 1 / (1 - beta3) = this fraction of the run

OPEN: Literal["open"] = "open"  # the horizon of a run whose end is not planned yet
Horizon: TypeAlias = 'int | Literal["open"] | None'


def alpha_at(t: float, alpha: float, T: int) -> float:
    r"""Weight of the slow average at step t.

    .. math:: \alpha^{(t)} = \min(t \alpha / T, \alpha)

    T = 0 means no warm-up.

    >>> alpha_at(250, alpha=5.0, T=1000), alpha_at(5000, alpha=5.0, T=1000), alpha_at(1, alpha=5.0, T=0)
    (1.25, 5.0, 5.0)

    Reference: equation f_alpha of the paper, section 3.
    """
    _check_step(t)
    return t * alpha / T if t < T else alpha


def beta3_at(t: float, beta3: float, start: float, T: int) -> float:
    r"""Decay of the slow average at step t: its half-life grows linearly from that of `start` to that of `beta3`.

    .. math:: \beta_3^{(t)} = \min\Bigl(\exp\frac{\ln\beta_s\ln\beta_3}
              {(1-\mu)\ln\beta_3 + \mu\ln\beta_s},\ \beta_3\Bigr), \qquad \mu = t/T

    For start = 0 this is its limit, beta3^(1/mu). T = 0 means no warm-up.

    >>> round(beta3_at(500, beta3=0.9999, start=0.9, T=1000), 6), beta3_at(1000, beta3=0.9999, start=0.9, T=1000)
    (0.9998, 0.9999)

    Reference: equation f_beta3 of the paper, section 3, derived in appendix A.1.
    """
    _check_step(t)
    if T == 0 or t >= T or start >= beta3:
        return beta3
    return min(math.exp(log_beta3(t / T, beta3, start)), beta3)


def filled_at(t: int, beta3: float, start: float, T: int) -> float:
    r"""How much of the slow average is filled after t steps: the sum of the weights of all gradients so far.

    .. math:: 1 - \prod_{s=1}^{t} \beta_3^{(s)}

    The slow average is not bias-corrected: where this is 0.3, it is 0.3 of an average.

    >>> round(filled_at(5000, beta3=0.9999, start=0.9, T=0), 4), round(filled_at(5000, 0.9999, 0.9, T=5000), 4)
    (0.3935, 0.9677)

    Reference: section 3 of the paper, where m2 starts at 0 without a bias correction.
    """
    rising = min(t, T) if start < beta3 else 0
    log_left = (t - rising) * natural_log(beta3)
    for s in range(rising, 0, -1):  # backwards: the last factors are the largest
        log_left += log_beta3(s / T, beta3, start)
        if log_left < -40:
            break  # full, to the last digit
    return -math.expm1(log_left)


def natural_log(beta: float) -> float:
    """Return ln(beta); -inf for 0, where :func:`math.log` raises."""
    return math.log(beta) if beta > 0 else -math.inf


def log_beta3(mu: Any, beta3: Any, start: Any, log: Callable[[Any], Any] = natural_log) -> Any:
    """ln beta3(t) at mu = t/T in (0, 1], for 0 <= start < beta3.

    The paper's fraction divided through by ln(start) ln(beta3): 1/ln(beta) moves linearly. In this form start = 0
    needs no case of its own. mu may be an array of any framework, and so may beta3 and start, given a `log` for them.
    """
    return 1 / ((1 - mu) / log(start) + mu / log(beta3))


def progress(t: Any, T: int) -> Any:
    """Return min(t, T) / T, through abs() so that t may be an array of any framework."""
    return (t + T - abs(t - T)) / (2 * T)


def half_life(beta: float) -> float:
    r"""Return the number of past gradients that receive half of an EMA's weight.

    .. math:: t_{half} = \ln 0.5 / \ln\beta - 1

    >>> round(half_life(0.9), 2), round(half_life(0.9999))
    (5.58, 6930)

    Reference: section 3 and appendix A.1 of the paper.
    """
    if not 0.0 < beta < 1.0:
        raise ValueError(f"beta must be in (0, 1), got {beta}")
    return math.log(0.5) / math.log(beta) - 1


def beta_from_half_life(steps: float) -> float:
    r"""Return the decay whose half-life is `steps`: the inverse of :func:`half_life`.

    .. math:: \beta = 0.5^{1/(t_{half}+1)}

    >>> round(beta_from_half_life(half_life(0.9999)), 12)
    0.9999

    Reference: appendix A.1 of the paper.
    """
    if not -1.0 < steps < math.inf:
        raise ValueError(f"steps must be a finite number > -1, got {steps}")
    return float(0.5 ** (1 / (steps + 1)))


def beta3_for_horizon(total_steps: Horizon, beta1: float) -> float:
    r"""Return the beta3 whose memory fits a run of `total_steps`.

    .. math:: \beta_3 = 1 - \frac{1}{0.04\,T}, \quad \text{kept between } \beta_1 \text{ and } 0.9999

    Without a horizon, and with an open one, it is the paper's 0.9999.

    >>> beta3_for_horizon(10_000, beta1=0.9), beta3_for_horizon(1_000_000, beta1=0.9), beta3_for_horizon(None, 0.9)
    (0.9975, 0.9999, 0.9999)

    Reference: ours; it agrees with the paper's best values at 32k to 256k steps (appendix C, fewer iterations).
    """
    if total_steps is None or total_steps == OPEN:
        return PAPER_BETA3
    return max(beta1, min(1 - 1 / (HORIZON_FRACTION * total_steps), PAPER_BETA3))


def open_warmup(beta3: float) -> int:
    r"""Return the warm-up of alpha and beta3 in a run without a planned end: ten times what the slow average remembers.

    .. math:: T_\alpha = T_{\beta_3} = \frac{10}{1 - \beta_3}

    >>> open_warmup(0.9999), open_warmup(0.999)
    (100000, 10000)

    Reference: the pre-training of Apertus, 100,000 steps of warm-up at 0.9999 in runs of 1.1 and 2.6 million steps.
    """
    return round(10 / (1 - beta3))


def _check_step(t: float) -> None:
    if not t >= 1:
        raise ValueError(f"t counts steps from 1, got {t}")
