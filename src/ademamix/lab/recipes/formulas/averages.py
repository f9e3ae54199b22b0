"""The weights that averages give to past gradients, the newest gradient's first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEPS = 10_000
BETA, SLOW_BETA, ALPHA = 0.9, 0.9999, 5.0


def ema_weights(beta: float, steps: int = STEPS) -> NDArray[np.float64]:
    r"""Return the weights of the gradients g(T), g(T - 1), ..., g(0) in an EMA after T = `steps` steps.

    .. math:: \text{EMA}(\beta, g^{(0)}, \ldots, g^{(T)}) = \sum_{i=0}^T \beta^i (1-\beta)\, g^{(T-i)}

    >>> ema_weights(0.5, steps=3).tolist()
    [0.5, 0.25, 0.125, 0.0625]

    Reference: caption of figure limitation-EMA of the paper.
    """
    return np.asarray((1 - beta) * beta ** np.arange(steps + 1))


def chain(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of an average, `second`, of the values of another one, `first`; the newest gradient's first.

    >>> chain(np.array([0.5, 0.25]), np.array([0.5, 0.25])).tolist()
    [0.25, 0.25]
    """
    return np.convolve(first, second)[: len(first)]


def admeta(beta2: float) -> NDArray[np.float64]:
    r"""Return the weights of AdMeta-S, divided by their total.

    .. math:: m_1 = \beta_1 m_1 + g, \quad h = \kappa g + \mu m_1, \quad m_2 = \beta_2 m_2 + (1 - \beta_2) h, \qquad
              \mu = 25 - 10 (\beta_1 + 1/\beta_1), \quad \kappa = 10/\beta_1 - 9

    >>> admeta(beta2=0.4)[:2].round(4).tolist()
    [0.0824, 0.0847]
    """
    mu, kappa = 25 - 10 * (BETA + 1 / BETA), 10 / BETA - 9
    h = mu * ema_weights(BETA) / (1 - BETA)  # of m1, a plain decaying sum
    h[0] += kappa
    weights = chain(h, ema_weights(beta2))
    return np.asarray(weights / weights.sum())


def methods() -> dict[str, NDArray[np.float64]]:
    r"""Return the weights of the gradients by method, the newest first.

    .. math:: \text{DEMA} = 2\, \text{EMA} - \text{EMA}(\text{EMA}), \qquad \text{AdEMAMix} = m_1 + \alpha m_2

    >>> {name: round(float(weights[0]), 4) for name, weights in methods().items() if "AdMeta" not in name}
    {'EMA': 0.1, 'EMA of EMA': 0.01, 'DEMA': 0.19, 'AdEMAMix': 0.1005}
    """
    single = ema_weights(BETA)
    nested = chain(single, single)
    return {
        "EMA": single,
        "EMA of EMA": nested,
        "DEMA": 2 * single - nested,
        "AdMeta-S, beta2 = 0.1": admeta(0.1),
        "AdMeta-S, beta2 = 0.4": admeta(0.4),
        "AdEMAMix": single + ALPHA * ema_weights(SLOW_BETA),
    }
