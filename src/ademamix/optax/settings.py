"""The arguments of the transformations: which may be traced, how they are checked, and what they leave open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from ademamix import hyperparameters
from ademamix.optax.schedules import (
    alpha_schedule,
    beta3_schedule,
    is_array,
    traced_beta3_for_horizon,
    traced_open_warmup,
)

Number: TypeAlias = "float | jax.Array"  # perhaps traced
Function: TypeAlias = "Callable[[Any], Any]"  # of the step t = 1, 2, ...

STATIC_ARGS = ("b1", "total_steps", "alpha_warmup", "beta3_warmup", "beta3_start", "mask", "mu_dtype", "slow_dtype")
"""The arguments that ``optax.inject_hyperparams`` should leave alone: its ``static_args``."""

ASK_FOR_STATIC = "Under optax.inject_hyperparams, pass static_args=ademamix.optax.STATIC_ARGS."


class Arguments(NamedTuple):
    """What a caller states; see :func:`ademamix.optax.ademamix`."""

    b1: Any
    b2: Any
    b3: Any
    alpha: Any
    total_steps: Any
    alpha_warmup: Any
    beta3_warmup: Any
    beta3_start: Any
    eps: Any
    slow_clip: Any
    weight_decay: Any = 0.0


class Settings(NamedTuple):
    """The hyperparameters that coefficients are made of."""

    b1: Any
    b2: Any
    alpha: Function
    slow_rate: Function  # 1 - beta3(t)
    eps: Any
    slow_clip: Any  # None for no bound
    advice: str | None  # a warning for the caller

    @property
    def stores_fast(self) -> bool:
        """Tell whether there is a fast average; a traced b1 may be more than 0."""
        return is_array(self.b1) or self.b1 > 0


def resolved(stated: Arguments) -> Settings:
    """Check the arguments and fill in what they leave open, by the rules of :mod:`ademamix.hyperparameters`.

    Traced values and functions cannot be checked, so a valid value stands in for them here.
    """
    b1, b2, b3, alpha, total_steps, alpha_warmup, beta3_warmup, beta3_start, eps, slow_clip, weight_decay = stated
    for name, function, warmup in (("alpha", alpha, alpha_warmup), ("beta3", b3, beta3_warmup)):
        if callable(function) and warmup is not None:
            raise ValueError(
                f"{name} is a function of the step, which {name}_warmup={warmup} cannot change: leave it out"
            )
    known_b1, known_b3 = _known(b1, 0.9), _known(b3, None)
    unknown_horizon = isinstance(total_steps, jax.core.Tracer)  # no advice can be given, and none is asked for
    plain = hyperparameters.resolve_algorithm(
        {
            "betas": (known_b1, _known(b2, 0.999)) + (() if known_b3 is None else (known_b3,)),
            "alpha": _known(alpha, hyperparameters.ALPHA),
            "total_steps": _known(total_steps, None),
            "alpha_warmup": 0 if callable(alpha) or unknown_horizon else _known(alpha_warmup, 0),
            "beta3_warmup": 0 if callable(b3) or unknown_horizon else _known(beta3_warmup, 0),
            "beta3_start": _known(beta3_start, 0.0),
            "eps": _known(eps, 0.0),
            "weight_decay": _known(weight_decay, 0.0),
            "slow_clip": _known(slow_clip, None),
        }
    )

    def chosen(stated: Any, default: Any, plain_value: Any) -> Any:
        """Return the array that was stated, or the default if that is an array, or else the plain number."""
        value = default if stated is None else stated
        return value if is_array(value) else plain_value

    b1 = chosen(b1, None, plain["betas"][0])
    if b3 is None and (is_array(total_steps) or is_array(b1)):
        b3 = traced_beta3_for_horizon(total_steps, b1)
    horizon = total_steps
    if isinstance(total_steps, str) and is_array(stated.b3):
        horizon = traced_open_warmup(b3)
    b3_schedule = b3
    if not callable(b3):
        b3_schedule = beta3_schedule(
            chosen(b3, None, plain["betas"][2]),
            chosen(beta3_start, b1, plain["beta3_start"]),
            chosen(beta3_warmup, horizon, plain["beta3_warmup"]),
        )
    if not callable(alpha):
        alpha = alpha_schedule(alpha, chosen(alpha_warmup, horizon, plain["alpha_warmup"]))
    slow_rate = getattr(b3_schedule, "rate", lambda t: 1 - b3_schedule(t))
    return Settings(b1, b2, alpha, slow_rate, eps, slow_clip, hyperparameters.advice(plain))


def checked_mask(mask: Any) -> None:
    """Raise TypeError for an array that optax.inject_hyperparams made of a function, which it took for a schedule."""
    if is_array(mask):
        raise TypeError(f"mask must be a tree of bools or a function of the parameters, got an array. {ASK_FOR_STATIC}")


def _known(value: Any, stand_in: Any) -> Any:
    """Return a number, or that of an array, as Python's; `stand_in` for traced values and functions."""
    if callable(value) or isinstance(value, jax.core.Tracer):
        return stand_in
    return np.asarray(value).item() if is_array(value) else value
