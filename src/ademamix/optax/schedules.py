"""The schedules of alpha and beta3 as functions of a step that may be traced.

Like :mod:`ademamix.schedules`, everything here counts t from 1: a transformation calls them with ``count + 1``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ademamix import hyperparameters
from ademamix.schedules import HORIZON_FRACTION, PAPER_BETA3, log_beta3, natural_log


def alpha_schedule(alpha: float | jax.Array, T: int | jax.Array) -> Callable[[Any], Any]:
    r"""Return the weight of the slow average as a function of the step t = 1, 2, ...

    .. math:: \alpha^{(t)} = \min(t \alpha / T, \alpha)

    T = 0 means no warm-up.

    >>> schedule = alpha_schedule(5.0, T=1000)
    >>> float(schedule(250)), float(schedule(5000))
    (1.25, 5.0)

    Reference: equation f_alpha of the paper, section 3.
    """
    _check(alpha=alpha, alpha_warmup=T)
    if not is_array(T) and T == 0:
        return lambda t: alpha
    return lambda t: alpha * _progress(t, T)


def beta3_schedule(beta3: float | jax.Array, start: float | jax.Array, T: int | jax.Array) -> Beta3Schedule:
    r"""Return the decay of the slow average as a function of the step t = 1, 2, ...

    .. math:: \beta_3^{(t)} = \min\Bigl(\exp\frac{\ln\beta_s\ln\beta_3}
              {(1-\mu)\ln\beta_3 + \mu\ln\beta_s},\ \beta_3\Bigr), \qquad \mu = t/T

    For start = 0 this is its limit, beta3^(1/mu). T = 0 means no warm-up.

    >>> schedule = beta3_schedule(0.9999, start=0.9, T=1000)
    >>> round(float(schedule(500)), 6), round(float(schedule(1000)), 6)
    (0.9998, 0.9999)

    Given to a transformation as `b3`, it is used through its method `rate`, 1 - beta3(t) to the last digit: fp32
    has beta3 = 0.9999 only to within 2e-4 of 1 - beta3, the rate at which the slow average moves.

    Reference: equation f_beta3 of the paper, section 3, derived in appendix A.1.
    """
    _check(betas=(0.0, 0.999, 0.0 if is_array(beta3) else beta3), beta3_start=start, beta3_warmup=T)
    return Beta3Schedule(beta3, start, T)


@dataclass(frozen=True)
class Beta3Schedule:
    """The schedule that :func:`ademamix.optax.beta3_schedule` returns."""

    beta3: Any
    start: Any
    T: Any

    def __call__(self, t: Any) -> Any:
        """Return beta3(t)."""
        if self._is_constant():
            return self.beta3
        return jnp.minimum(jnp.exp(self._log(t)), self.beta3)

    def rate(self, t: Any) -> Any:
        """Return 1 - beta3(t) without the rounding of beta3(t)."""
        if self._is_constant():
            return 1 - self.beta3
        return jnp.maximum(-jnp.expm1(self._log(t)), 1 - self.beta3)

    def _is_constant(self) -> bool:
        if not is_array(self.T) and self.T == 0:
            return True
        return not is_array(self.beta3) and not is_array(self.start) and bool(self.start >= self.beta3)

    def _log(self, t: Any) -> Any:
        return log_beta3(_progress(t, self.T), self.beta3, self.start, _log)


def traced_beta3_for_horizon(total_steps: Any, b1: Any) -> jax.Array:
    """Return :func:`ademamix.schedules.beta3_for_horizon` where at least one argument is an array."""
    if total_steps is None or isinstance(total_steps, str):
        return jnp.asarray(PAPER_BETA3)
    return jnp.maximum(b1, jnp.minimum(1 - 1 / (HORIZON_FRACTION * total_steps), PAPER_BETA3))


def traced_open_warmup(b3: Any) -> jax.Array:
    """Return :func:`ademamix.schedules.open_warmup` of an array."""
    return jnp.round(10 / (1 - b3))


def is_array(value: Any) -> bool:
    """Tell whether a hyperparameter is an array, perhaps a traced one, whose value cannot be looked at."""
    return isinstance(value, (jax.Array, np.ndarray))


def real_dtype() -> Any:
    """Return the dtype of scalar arithmetic: fp64 if JAX has it enabled, or fp32."""
    return jnp.result_type(float)


def _progress(t: Any, T: Any) -> jax.Array:
    """Return min(t, T) / T; 1 for a traced T = 0."""
    if isinstance(t, (int, float)) and not t >= 1:
        raise ValueError(f"t counts steps from 1, got {t}")
    T = jnp.maximum(T, 1) if is_array(T) else T
    progress: jax.Array = jnp.minimum(jnp.asarray(t, real_dtype()), T) / T
    return progress


def _log(beta: Any) -> Any:
    """Return ln(beta), in double if that is possible."""
    return jnp.log(beta) if is_array(beta) else natural_log(beta)


def _check(**stated: Any) -> None:
    raw = {
        "betas": hyperparameters.BETAS,
        "alpha": hyperparameters.ALPHA,
        "total_steps": None,
        "alpha_warmup": 0,
        "beta3_warmup": 0,
        "beta3_start": 0.0,
        "eps": 0.0,
        "weight_decay": 0.0,
    }
    known = {name: value for name, value in stated.items() if not is_array(value)}
    hyperparameters.resolve_algorithm({**raw, **known})
