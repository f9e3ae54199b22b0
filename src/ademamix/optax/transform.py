"""AdEMAMix as Optax gradient transformations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ademamix import hyperparameters
from ademamix.optax import storage
from ademamix.optax.schedules import alpha_schedule, beta3_schedule, is_array, real_dtype

Number: TypeAlias = "float | jax.Array"  # perhaps traced
Function: TypeAlias = "Callable[[Any], Any]"  # of the step t = 1, 2, ...

GRADIENT_LIMIT = 2.0**62  # of the magnitude of finite gradients in fp32 arithmetic; the same on every path

STATIC_ARGS = ("b1", "total_steps", "alpha_warmup", "beta3_warmup", "beta3_start", "mask", "mu_dtype", "slow_dtype")
"""The arguments that ``optax.inject_hyperparams`` must leave alone: its ``static_args``."""


class ScaleByAdemamixState(NamedTuple):
    """State of :func:`scale_by_ademamix`. The dtypes never change.

    The moments are trees like that of the parameters. They are fp32 (fp64 for fp64 parameters, complex for complex
    ones, `nu` being real) unless `mu_dtype` or `slow_dtype` says otherwise.
    """

    count: jax.Array  # type: ignore[assignment]  # int32: steps taken, for the bias corrections
    slow_count: jax.Array  # int32: steps since the slow EMA was empty, for both schedules
    mu: Any  # m1, the fast EMA; None if b1 = 0
    nu: Any  # the second moment
    slow: Any  # m2, the slow EMA; int16 codes have the shape of their parameter
    slow_scale: Any  # uint8 scales of the coded leaves of `slow` and None at others; None if slow_dtype is not int16


def scale_by_ademamix(
    b1: float = 0.9,
    b2: Number = 0.999,
    *,
    b3: Number | Function | None = None,
    alpha: Number | Function = hyperparameters.ALPHA,
    total_steps: int | None = None,
    alpha_warmup: int | None = None,
    beta3_warmup: int | None = None,
    beta3_start: float | None = None,
    eps: Number = 1e-8,
    mu_dtype: Any = None,
    slow_dtype: Any = None,
) -> optax.GradientTransformation:
    r"""Rescale updates by AdEMAMix, without learning rate and weight decay; see :func:`ademamix`.

    .. math:: u = \frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}{\sqrt{\nu/(1-\beta_2^t)} + \epsilon}

    >>> transformation = scale_by_ademamix(total_steps=1000)
    >>> updates, state = transformation.update(jnp.array([0.5, -0.5]), transformation.init(jnp.zeros(2)))
    >>> updates.round(2).tolist(), int(state.count)
    ([1.0, -1.0], 1)

    The arguments are those of :func:`ademamix`.

    Reference: Algorithm 1 of the paper.
    """
    settings = _settings(b1, b2, b3, alpha, total_steps, alpha_warmup, beta3_warmup, beta3_start, eps)
    if settings.advice is not None:
        warnings.warn(settings.advice, stacklevel=2)
    return _transformation(settings, mu_dtype, slow_dtype)


def ademamix(
    learning_rate: Number | Function,
    b1: float = 0.9,
    b2: Number = 0.999,
    *,
    b3: Number | Function | None = None,
    alpha: Number | Function = hyperparameters.ALPHA,
    total_steps: int | None = None,
    alpha_warmup: int | None = None,
    beta3_warmup: int | None = None,
    beta3_start: float | None = None,
    eps: Number = 1e-8,
    weight_decay: Number = 1e-4,
    mask: Any = None,
    mu_dtype: Any = None,
    slow_dtype: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""AdamW with a second, slow average of the gradients: a drop-in replacement for ``optax.adamw``.

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g \qquad
        m_2 \leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g \qquad
        \nu \leftarrow \beta_2 \nu + (1-\beta_2) |g|^2 \\
        \theta &\leftarrow \theta - \eta\Big(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Big)

    >>> optimizer = ademamix(1e-3, total_steps=1000)
    >>> params = {"w": jnp.ones(3)}
    >>> state = optimizer.init(params)
    >>> gradients = jax.grad(lambda params: (params["w"] ** 2).sum())(params)
    >>> updates, state = optimizer.update(gradients, state, params)
    >>> round(float(optax.apply_updates(params, updates)["w"][0]), 6)
    0.998999

    Args:
        learning_rate: a number, or an Optax schedule of the 0-based count, as everywhere in Optax.
        b1: decay of the fast average. With ``b1 = 0`` it is the gradient, and is not stored.
        b2: decay of the second moment.
        b3: decay of the slow average, or a function of the 1-based step t. None chooses it for `total_steps` (see
            :func:`ademamix.schedules.beta3_for_horizon`); without a horizon it is 0.9999.
        alpha: weight of the slow average, or a function of the 1-based step t; the paper finds 4 to 10 to work well.
        total_steps: number of updates of the run. It sets the warm-ups and `b3` where they are left open.
        alpha_warmup, beta3_warmup: steps over which alpha and beta3 rise to their final values; 0 for no warm-up,
            None for `total_steps`. A function of t is taken as it is.
        beta3_start: where beta3 begins; None for `b1`.
        eps, weight_decay, mask: as in ``optax.adamw``.
        mu_dtype: dtype that the fast average is stored in, for real parameters; None for fp32 (fp64 for fp64).
        slow_dtype: dtype that the slow average is stored in: None or float32; bfloat16, rounded stochastically; or
            int16, a 16-bit code with a scale for each block of 128, rounded stochastically too. Arrays of one
            dimension, of rows under 64 elements or under 4096 elements stay fp32, and so do fp64 and complex ones.

    Under ``optax.inject_hyperparams`` pass ``static_args=STATIC_ARGS``; all other arguments may be traced.

    Reference: Pagliardini, Ablin and Grangier, "The AdEMAMix Optimizer: Better, Faster, Older", Algorithm 1.
    """
    if not is_array(learning_rate) and not callable(learning_rate):
        hyperparameters.checked_lr(learning_rate)
    settings = _settings(b1, b2, b3, alpha, total_steps, alpha_warmup, beta3_warmup, beta3_start, eps, weight_decay)
    if settings.advice is not None:
        warnings.warn(settings.advice, stacklevel=2)
    return optax.chain(
        _transformation(settings, mu_dtype, slow_dtype),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )


class Settings(NamedTuple):
    """The hyperparameters that coefficients are made of."""

    b1: float
    b2: Any
    alpha: Function
    slow_rate: Function  # 1 - beta3(t)
    eps: Any
    advice: str | None  # what to warn of


class Coefficients(NamedTuple):
    """The numbers of a step.

    With bc1 and bc2 the bias corrections of m1 and nu, the update is

        step_size (m1 + slow_gain m2) / (sqrt(nu) + eps)

    which has one division for each element. All rates are small numbers: 1 - rate, rounded to fp32, would be off by
    1e-4 of the rate, at every step in the same direction.
    """

    fast_rate: Any  # 1 - beta1
    square_rate: Any  # 1 - beta2
    slow_rate: Any  # 1 - beta3(t)
    slow_gain: Any  # alpha(t) bc1
    step_size: Any  # sqrt(bc2) / bc1
    eps: Any  # eps sqrt(bc2)

    def of_dtype(self, dtype: Any) -> Coefficients:
        """Round to `dtype`."""
        return Coefficients(*(jnp.asarray(field, dtype) for field in self))


def _transformation(settings: Settings, mu_dtype: Any, slow_dtype: Any) -> optax.GradientTransformation:
    slow_dtype = storage.checked_slow_dtype(slow_dtype)

    def mu_dtype_of(param: Any) -> Any:
        dtype = storage.arithmetic_dtype(param)
        return dtype if mu_dtype is None or jnp.iscomplexobj(param) else jnp.dtype(mu_dtype)

    def zeros(dtype_of: Function, params: Any) -> Any:
        return jax.tree.map(lambda param: jnp.zeros_like(param, dtype=dtype_of(param)), params)

    def init(params: Any) -> ScaleByAdemamixState:
        return ScaleByAdemamixState(
            count=jnp.zeros([], jnp.int32),
            slow_count=jnp.zeros([], jnp.int32),
            mu=zeros(mu_dtype_of, params) if settings.b1 > 0 else None,
            nu=zeros(lambda param: np.finfo(storage.arithmetic_dtype(param)).dtype, params),
            slow=zeros(lambda param: storage.slow_dtype_of(param, slow_dtype), params),
            slow_scale=jax.tree.map(lambda param: storage.empty_scale(param, slow_dtype), params)
            if slow_dtype == jnp.int16
            else None,
        )

    def update(updates: Any, state: ScaleByAdemamixState, params: Any = None) -> tuple[Any, ScaleByAdemamixState]:
        count, slow_count = optax.safe_increment(state.count), optax.safe_increment(state.slow_count)
        coefficients = _coefficients(settings, count, slow_count)
        tree: Any
        grads, tree = jax.tree.flatten(updates)
        columns = [
            [None] * len(grads) if column is None else tree.flatten_up_to(column)
            for column in (params, state.mu, state.nu, state.slow, state.slow_scale)
        ]
        rows = [
            _update_leaf(coefficients, index, count, *row)
            for index, row in enumerate(zip(grads, *columns, strict=True))
        ]
        new_updates, mu, nu, slow, slow_scale = ([row[i] for row in rows] for i in range(5))
        return tree.unflatten(new_updates), ScaleByAdemamixState(
            count=count,
            slow_count=slow_count,
            mu=None if state.mu is None else tree.unflatten(mu),
            nu=tree.unflatten(nu),
            slow=tree.unflatten(slow),
            slow_scale=None if state.slow_scale is None else tree.unflatten(slow_scale),
        )

    return optax.GradientTransformation(init, update)


def _update_leaf(
    coefficients: Coefficients,
    index: int,
    count: jax.Array,
    grad: Any,
    param: Any,
    mu: Any,
    nu: Any,
    slow: Any,
    scale: Any,
) -> tuple[Any, Any, Any, Any, Any]:
    """Return the update of a leaf and what is stored for it: mu, nu, slow and its scales."""
    dtype = jnp.promote_types(nu.dtype, jnp.complex64) if jnp.iscomplexobj(grad) else nu.dtype
    c = coefficients.of_dtype(nu.dtype)
    # Three copies, since XLA would keep one limited gradient in an array of its own: a step took twice the time.
    g1, g2, g3 = (_limited(copy, dtype) for copy in jax.lax.optimization_barrier((grad, grad, grad)))
    m1 = g1 if mu is None else _moved(mu.astype(dtype), g1, c.fast_rate)
    m2 = _moved(storage.read_slow(slow, scale, dtype), g2, c.slow_rate)
    nu = _moved(nu, _squared_magnitude(g3), c.square_rate)
    # no bias correction of m2: the slow EMA is meant to fill gradually
    direction = c.step_size * (m1 + c.slow_gain * m2) / (jnp.sqrt(nu) + c.eps)
    slow, scale = storage.write_slow(m2, slow.dtype, index, count)
    result = direction.astype(grad.dtype if param is None else param.dtype)
    return result, None if mu is None else m1.astype(mu.dtype), nu, slow, scale


def _moved(average: jax.Array, value: jax.Array, rate: jax.Array) -> jax.Array:
    """Move from the nearer end, as torch's lerp does: at rate 1 the average is the value, to the last digit."""
    near = rate < 0.5
    return jnp.where(near, average, value) + jnp.where(near, rate, rate - 1) * (value - average)


def _limited(grad: jax.Array, dtype: Any) -> jax.Array:
    """Return a gradient in the dtype of the arithmetic, its finite elements small enough to be squared there.

    Above 1.8e19 a square is infinite in fp32, and the second moment after it. Both parts of a complex number at the
    limit have |g|^2 = 2^125, which is finite still.
    """
    if jnp.iscomplexobj(grad):
        return jax.lax.complex(*(_limited(part, np.finfo(dtype).dtype) for part in (grad.real, grad.imag)))
    if dtype == jnp.float32 and float(jnp.finfo(grad.dtype).max) > GRADIENT_LIMIT:
        # before the cast, by which a large fp64 number becomes infinite
        grad = jnp.where(jnp.isfinite(grad), jnp.clip(grad, -GRADIENT_LIMIT, GRADIENT_LIMIT), grad)
    return grad.astype(dtype)


def _squared_magnitude(x: jax.Array) -> jax.Array:
    return x.real**2 + x.imag**2 if jnp.iscomplexobj(x) else x * x


def _coefficients(settings: Settings, count: jax.Array, slow_count: jax.Array) -> Coefficients:
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
    )


def _bias_correction(beta: Any, t: jax.Array) -> Any:
    """Return 1 - beta^t, to the last digit also where beta^t is close to 1."""
    if is_array(beta):
        return -jnp.expm1(t * jnp.log(beta))
    return -jnp.expm1(t * math.log(beta)) if beta > 0 else 1.0


def _settings(
    b1: Any,
    b2: Any,
    b3: Any,
    alpha: Any,
    total_steps: Any,
    alpha_warmup: Any,
    beta3_warmup: Any,
    beta3_start: Any,
    eps: Any,
    weight_decay: Any = 0.0,
) -> Settings:
    """Check the arguments and fill in what they leave open, by the rules of :mod:`ademamix.hyperparameters`.

    What is an array or a function cannot be checked; a value that is beyond reproach stands in for it.
    """
    static = {"b1": b1, "total_steps": total_steps, "alpha_warmup": alpha_warmup, "beta3_warmup": beta3_warmup}
    for name, value in {**static, "beta3_start": beta3_start}.items():
        if is_array(value):
            raise TypeError(
                f"{name} must be a Python number, got an array of JAX. Under optax.inject_hyperparams, pass "
                "static_args=ademamix.optax.STATIC_ARGS."
            )
    for name, function, warmup in (("alpha", alpha, alpha_warmup), ("beta3", b3, beta3_warmup)):
        if callable(function) and warmup is not None:
            raise ValueError(
                f"{name} is a function of the step, which {name}_warmup={warmup} cannot change: leave it out"
            )

    def number(value: Any, stand_in: Any) -> Any:
        return stand_in if is_array(value) or callable(value) else value

    b3_number = number(b3, None)
    resolved = hyperparameters.resolve_algorithm(
        {
            "betas": (b1, number(b2, 0.999)) if b3_number is None else (b1, number(b2, 0.999), b3_number),
            "alpha": number(alpha, hyperparameters.ALPHA),
            "total_steps": total_steps,
            "alpha_warmup": 0 if callable(alpha) else alpha_warmup,
            "beta3_warmup": 0 if callable(b3) else beta3_warmup,
            "beta3_start": beta3_start,
            "eps": number(eps, 0.0),
            "weight_decay": number(weight_decay, 0.0),
        }
    )
    b3_schedule = b3
    if not callable(b3):
        b3 = b3 if is_array(b3) else resolved["betas"][2]
        b3_schedule = beta3_schedule(b3, resolved["beta3_start"], resolved["beta3_warmup"])
    return Settings(
        b1=resolved["betas"][0],
        b2=b2,
        alpha=alpha if callable(alpha) else alpha_schedule(alpha, resolved["alpha_warmup"]),
        slow_rate=getattr(b3_schedule, "rate", lambda t: 1 - b3_schedule(t)),
        eps=eps,
        advice=hyperparameters.advice(resolved),
    )
