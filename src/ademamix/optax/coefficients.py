"""The numbers of a step: alpha, beta3 and the bias corrections, from the clocks and the settings."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ademamix.optax.schedules import is_array, real_dtype
from ademamix.optax.settings import Settings


class Coefficients(NamedTuple):
    """The numbers of a step.

    With bc1 and bc2 the bias corrections of m1 and nu, the update is

        step_size (m1 + slow_gain m2) / (sqrt(nu) + eps)

    which has one division for each element. Its slow part, slow_gain m2 / (sqrt(nu) + eps), is bounded by slow_limit
    where there is one. All rates are small numbers: 1 - rate, rounded to fp32, would be off by
    1e-4 of the rate, at every step in the same direction.
    """

    fast_rate: Any  # 1 - beta1
    square_rate: Any  # 1 - beta2
    slow_rate: Any  # 1 - beta3(t)
    slow_gain: Any  # alpha(t) bc1
    step_size: Any  # sqrt(bc2) / bc1
    eps: Any  # eps sqrt(bc2)
    slow_limit: Any  # slow_clip bc1 / sqrt(bc2); None if there is none

    def of_dtype(self, dtype: Any) -> Coefficients:
        """Round to `dtype`."""
        return Coefficients(*(None if field is None else jnp.asarray(field, dtype) for field in self))


def coefficients_at(count: jax.Array, slow_count: jax.Array, settings: Settings) -> Coefficients:
    """Compute the coefficients of the step at which the clocks show these numbers, from 1 on."""
    t = count.astype(real_dtype())
    correction1 = _bias_correction(settings.b1, t)
    root2 = jnp.sqrt(_bias_correction(settings.b2, t))
    return Coefficients(
        fast_rate=1 - settings.b1,
        square_rate=1 - settings.b2,
        slow_rate=settings.slow_rate(slow_count),
        slow_gain=settings.alpha(slow_count) * correction1,
        step_size=root2 / correction1,
        eps=settings.eps * root2,
        slow_limit=None if settings.slow_clip is None else settings.slow_clip * correction1 / root2,
    )


def _bias_correction(beta: Any, t: jax.Array) -> Any:
    """Return 1 - beta^t, to the last digit even where beta^t is close to 1."""
    if is_array(beta):
        return -jnp.expm1(t * jnp.log(beta))
    return -jnp.expm1(t * math.log(beta)) if beta > 0 else 1.0
