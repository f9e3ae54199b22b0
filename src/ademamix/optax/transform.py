"""AdEMAMix as Optax gradient transformations."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ademamix import hyperparameters
from ademamix.formats import GRADIENT_LIMIT
from ademamix.optax import storage
from ademamix.optax.coefficients import Coefficients, coefficients_at
from ademamix.optax.schedules import is_array
from ademamix.optax.settings import Arguments, Function, Number, Settings, checked_mask, resolved


class ScaleByAdemamixState(NamedTuple):
    """State of :func:`scale_by_ademamix`. The dtypes never change.

    The moments are trees like that of the parameters. They are fp32 (fp64 for fp64 parameters, complex for complex
    ones, `nu` being real) unless `mu_dtype` or `slow_dtype` says otherwise.
    """

    count: jax.Array  # type: ignore[assignment]  # int32: steps taken, for the bias corrections
    slow_count: jax.Array  # int32: steps since the slow average was empty, for both schedules
    mu: Any  # m1, the fast average; None if b1 = 0
    nu: Any  # the second moment
    slow: Any  # m2, the slow average; int16 codes have the shape of their parameter
    slow_scale: Any  # uint8 scales of the coded leaves of `slow` and None at others; None if slow_dtype is not int16
    slow_block: Any  # uint32 positions of the blocks of rounded leaves and None at others; None if none is rounded


def scale_by_ademamix(
    b1: Number = 0.9,
    b2: Number = 0.999,
    *,
    b3: Number | Function | None = None,
    alpha: Number | Function = hyperparameters.ALPHA,
    total_steps: Number | Literal["open"] | None = None,
    alpha_warmup: Number | None = None,
    beta3_warmup: Number | None = None,
    beta3_start: Number | None = None,
    eps: Number = 1e-8,
    slow_clip: Number | None = None,
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
    stated = Arguments(b1, b2, b3, alpha, total_steps, alpha_warmup, beta3_warmup, beta3_start, eps, slow_clip)
    settings = resolved(stated)
    if settings.advice is not None:
        warnings.warn(settings.advice, stacklevel=2)
    return _transformation(settings, mu_dtype, slow_dtype)


def ademamix(
    learning_rate: Number | Function,
    b1: Number = 0.9,
    b2: Number = 0.999,
    *,
    b3: Number | Function | None = None,
    alpha: Number | Function = hyperparameters.ALPHA,
    total_steps: Number | Literal["open"] | None = None,
    alpha_warmup: Number | None = None,
    beta3_warmup: Number | None = None,
    beta3_start: Number | None = None,
    eps: Number = 1e-8,
    slow_clip: Number | None = None,
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
        \theta &\leftarrow \theta - \eta\Bigl(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Bigr)

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
        total_steps: number of updates of the run. It sets the warm-ups and `b3` where they are left open. ``"open"``
            for a run whose end is not planned yet: `b3` is 0.9999, and the warm-ups take ten times what it remembers.
        alpha_warmup, beta3_warmup: steps over which alpha and beta3 rise to their final values; 0 for no warm-up,
            None for `total_steps`. A function of t is taken as it is.
        beta3_start: where beta3 begins; None for `b1`.
        eps, weight_decay, mask: as in ``optax.adamw``.
        slow_clip: a bound on the slow part of each element of the update, ``|alpha m2| / (sqrt(nu_hat) + eps)``, for
            models with elements whose gradient is 0 for long; None for no bound, as in the paper. See docs/idle.md.
        mu_dtype: dtype that the fast average is stored in, for real parameters; None for fp32 (fp64 for fp64).
        slow_dtype: dtype that the slow average is stored in: None or float32; bfloat16, rounded stochastically; or
            int16, a 16-bit code with a scale for each block of 128, also rounded stochastically. Arrays with rows under
            64 elements or under 4096 elements in all stay fp32, and so do those of one dimension under 131072 elements;
            fp64 and complex ones are never reduced.

    Under ``optax.inject_hyperparams`` all numbers may be traced, as they are without ``static_args``. With
    ``static_args=STATIC_ARGS`` settings derived from the horizon are exact, b1 = 0 stores no fast average, and `mask`,
    `mu_dtype` and `slow_dtype` may be functions and types.

    Reference: Pagliardini, Ablin and Grangier, "The AdEMAMix Optimizer: Better, Faster, Older", Algorithm 1.
    """
    if not is_array(learning_rate) and not callable(learning_rate):
        hyperparameters.checked_lr(learning_rate)
    checked_mask(mask)
    stated = Arguments(
        b1, b2, b3, alpha, total_steps, alpha_warmup, beta3_warmup, beta3_start, eps, slow_clip, weight_decay
    )
    settings = resolved(stated)
    if settings.advice is not None:
        warnings.warn(settings.advice, stacklevel=2)
    optimizer = Ademamix(
        *optax.chain(
            _transformation(settings, mu_dtype, slow_dtype),
            optax.add_decayed_weights(weight_decay, mask),
            optax.scale_by_learning_rate(learning_rate),
        )
    )
    optimizer.parts = Parts(settings, weight_decay, mask, learning_rate)
    return optimizer


class Parts(NamedTuple):
    """What the chain of :func:`ademamix` is made of."""

    settings: Settings
    weight_decay: Any
    mask: Any
    learning_rate: Any


class Ademamix(optax.GradientTransformationExtraArgs):  # type: ignore[misc]
    """What :func:`ademamix` returns: a gradient transformation like any other, of which the parts are known."""

    parts: Parts | None = None


def _transformation(settings: Settings, mu_dtype: Any, slow_dtype: Any) -> optax.GradientTransformation:
    mu_dtype, slow_dtype = storage.checked_mu_dtype(mu_dtype), storage.checked_slow_dtype(slow_dtype)

    def mu_dtype_of(param: Any) -> Any:
        dtype = storage.arithmetic_dtype(param)
        return dtype if mu_dtype is None or jnp.issubdtype(dtype, jnp.complexfloating) else mu_dtype

    def zeros(dtype_of: Function, params: Any) -> Any:
        return jax.tree.map(lambda param: jnp.zeros_like(param, dtype=dtype_of(param)), params)

    def init(params: Any) -> ScaleByAdemamixState:
        def blocks(formats: tuple[str, ...], of_blocks: Function) -> Any:
            def leaf(param: Any) -> jax.Array | None:
                return of_blocks(param) if storage.slow_dtype_of(param, slow_dtype).name in formats else None

            return jax.tree.map(leaf, params) if slow_dtype is not None and slow_dtype.name in formats else None

        return ScaleByAdemamixState(
            count=jnp.zeros([], jnp.int32),
            slow_count=jnp.zeros([], jnp.int32),
            mu=zeros(mu_dtype_of, params) if settings.stores_fast else None,
            nu=zeros(lambda param: np.finfo(storage.arithmetic_dtype(param)).dtype, params),
            slow=zeros(lambda param: storage.slow_dtype_of(param, slow_dtype), params),
            slow_scale=blocks(("int16",), storage.empty_scale),
            slow_block=blocks(("int16", "bfloat16"), storage.block_positions),
        )

    def update(updates: Any, state: ScaleByAdemamixState, params: Any = None) -> tuple[Any, ScaleByAdemamixState]:
        count, slow_count = optax.safe_increment(state.count), optax.safe_increment(state.slow_count)
        coefficients = coefficients_at(count, slow_count, settings)
        tree: Any
        # None is a leaf, where `params` may have anything: Equinox has functions there
        grads, tree = jax.tree.flatten(updates, is_leaf=lambda leaf: leaf is None)
        columns = [
            [None] * len(grads) if column is None else tree.flatten_up_to(column) for column in (params, *state[2:])
        ]
        rows: list[tuple[Any, Leaf]] = []
        index = 0
        for grad, param, *stored in zip(grads, *columns, strict=True):
            leaf = Leaf(*stored)
            if grad is None:
                rows.append((None, leaf))
            else:
                rows.append(_update_leaf(coefficients, (index, count), jnp.asarray(grad), param, leaf))
            index += leaf.nu is not None
        new = [
            None if column is None else tree.unflatten([leaf[i] for _, leaf in rows])
            for i, column in enumerate(state[2:])
        ]
        return tree.unflatten([update for update, _ in rows]), ScaleByAdemamixState(count, slow_count, *new)

    return optax.GradientTransformation(init, update)


class Leaf(NamedTuple):
    """The stored state of a parameter: its part of :class:`ScaleByAdemamixState`."""

    mu: Any
    nu: Any
    slow: Any
    slow_scale: Any
    slow_block: Any


def _update_leaf(
    coefficients: Coefficients, key: tuple[int, jax.Array], grad: jax.Array, param: Any, leaf: Leaf
) -> tuple[jax.Array, Leaf]:
    """Return the update of a parameter and its new stored state. `key` is that of the rounding."""
    is_complex = jnp.iscomplexobj(leaf.slow)
    if jnp.iscomplexobj(grad) and not is_complex:
        raise TypeError("a gradient is complex where its parameter is real: pass its real part")
    dtype = leaf.slow.dtype if is_complex else leaf.nu.dtype
    c = coefficients.of_dtype(leaf.nu.dtype)
    # Three copies, since XLA would keep one limited gradient in an array of its own: a step took twice the time.
    copies: tuple[jax.Array, ...] = jax.lax.optimization_barrier((grad, grad, grad))  # type: ignore[no-untyped-call]
    g1, g2, g3 = (_limited(copy, dtype) for copy in copies)
    fast = g1 if leaf.mu is None else _moved(leaf.mu.astype(dtype), g1, c.fast_rate)
    slow = _moved(storage.read_slow(leaf.slow, leaf.slow_scale, dtype), g2, c.slow_rate)
    square = _moved(leaf.nu, _squared_magnitude(g3), c.square_rate)
    # no bias correction of the slow average: it is meant to fill gradually
    denominator, slow_part = jnp.sqrt(square) + c.eps, c.slow_gain * slow
    if c.slow_limit is not None:
        slow_part = _bounded(slow_part, c.slow_limit * denominator)
    direction = c.step_size * (fast + slow_part) / denominator
    stored_slow, scale = storage.write_slow(slow, leaf.slow.dtype, leaf.slow_block, key)
    stored_fast = None if leaf.mu is None else storage.write_fast(fast, leaf.mu.dtype)
    result = direction.astype(grad.dtype if param is None else jnp.result_type(param))
    return result, Leaf(stored_fast, square, stored_slow, scale, leaf.slow_block)


def _bounded(values: jax.Array, bound: jax.Array) -> jax.Array:
    """Bound the elements of an array; real and imaginary parts on their own, as in PyTorch."""
    if jnp.iscomplexobj(values):
        return jax.lax.complex(_bounded(values.real, bound), _bounded(values.imag, bound))
    return jnp.clip(values, -bound, bound)


def _moved(average: jax.Array, value: jax.Array, rate: jax.Array) -> jax.Array:
    """Move from the nearer end, as torch's lerp does: at rate 1 the average is the value, to the last digit."""
    near = rate < 0.5
    return jnp.where(near, average, value) + jnp.where(near, rate, rate - 1) * (value - average)


def _limited(grad: jax.Array, dtype: Any) -> jax.Array:
    """Return a gradient in the dtype of the arithmetic, its finite elements small enough to be squared there.

    Above 1.8e19 a square is infinite in fp32, and the second moment after it. Both parts of a complex number at the
    limit have |g|^2 = 2^125, which is still finite.
    """
    if jnp.iscomplexobj(grad):
        return jax.lax.complex(*(_limited(part, np.finfo(dtype).dtype) for part in (grad.real, grad.imag)))
    if np.finfo(dtype).dtype == np.float32:
        grad = grad if grad.dtype.itemsize > 4 else grad.astype(jnp.float32)  # a cast of fp64 can make it infinite
        grad = jnp.where(jnp.isfinite(grad), jnp.clip(grad, -GRADIENT_LIMIT, GRADIENT_LIMIT), grad)
    return grad.astype(dtype)


def _squared_magnitude(x: jax.Array) -> jax.Array:
    return x.real**2 + x.imag**2 if jnp.iscomplexobj(x) else x * x
