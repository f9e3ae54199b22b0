"""A step on a CPU that changes the parameters itself: one pass over memory, in the C++ core.

A gradient transformation returns updates, and those go through memory before they are added. So this is none: it stands
beside :func:`ademamix.optax.ademamix`, with the same settings and the same state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ademamix import native
from ademamix.optax.coefficients import coefficients_at
from ademamix.optax.schedules import real_dtype
from ademamix.optax.storage import arithmetic_dtype
from ademamix.optax.transform import Parts, ScaleByAdemamixState

Step: TypeAlias = "Callable[[Any, Any, Any], tuple[Any, Any]]"

DTYPES = ("float32", "float64", "bfloat16", "float16")  # of parameters and gradients
LEAST_JAX = (0, 8, 2)  # inside shard_map, earlier ones lose over which devices results differ


def fused_step(optimizer: optax.GradientTransformation) -> Step:
    r"""Return a function that takes a step of `optimizer` and changes the parameters in place, on a CPU.

    .. math:: \theta \leftarrow \theta - \eta\Bigl(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
              {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Bigr)

    >>> from ademamix.optax import ademamix
    >>> optimizer = ademamix(1e-3, total_steps=1000)
    >>> step = jax.jit(fused_step(optimizer), donate_argnums=(0, 2))
    >>> params = {"w": jnp.ones(3)}
    >>> state = optimizer.init(params)
    >>> gradients = jax.grad(lambda params: (params["w"] ** 2).sum())(params)
    >>> params, state = step(params, gradients, state)
    >>> round(float(params["w"][0]), 6)
    0.998999

    The function takes parameters, gradients and state, and returns new parameters and a new state. It does what
    ``optimizer.update`` and ``optax.apply_updates`` do together, up to rounding, and `state` is theirs: a run may
    change from one to the other at any step, and checkpoints are the same. Parameters and state that are donated, or
    carried through ``jax.lax.scan``, are changed where they are; others are copied first.

    Args:
        optimizer: what :func:`ademamix` returned. Other transformations, such as a clipping of gradients, are applied
            before: ``gradients, _ = clip.update(gradients, clip_state)``.

    It works under ``jit``, ``scan``, on sharded arrays without communication, and inside ``shard_map``. Under ``vmap``
    it takes one step after another. It has no derivative. The moments are stored as fp32 (fp64 for fp64 parameters):
    `mu_dtype` and `slow_dtype` are refused, and so are complex parameters. Parameters of bf16 and fp16 are rounded to
    nearest once, after arithmetic in fp32.

    Reference: Algorithm 1 of the paper.
    """
    parts = getattr(optimizer, "parts", None)
    if parts is None:
        raise TypeError(
            f"fused_step takes the optimizer that ademamix.optax.ademamix returns, got {type(optimizer).__name__}. "
            "Apply other transformations to the gradients before the step."
        )
    if jax.__version_info__ < LEAST_JAX:
        raise RuntimeError(f"fused_step needs jax {'.'.join(map(str, LEAST_JAX))} or later, this is {jax.__version__}")
    if not getattr(jax.config, "jax_use_shardy_partitioner", True):
        raise RuntimeError("fused_step needs JAX's Shardy partitioner: leave jax_use_shardy_partitioner on")
    if native.core is None:
        raise RuntimeError(f"{native.missing}, or use optimizer.update and optax.apply_updates")
    from ademamix.optax import fused_call  # needs names that older versions of JAX lack

    fused_call.register(native.core)

    def step(params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
        return _step(parts, fused_call.call, params, grads, state)

    return step


class Arrays(NamedTuple):
    """The arrays of a parameter, in the order of the kernel."""

    param: Any
    fast: Any  # None if b1 = 0
    slow: Any
    square: Any
    grad: Any


def _step(parts: Parts, call: Callable[..., list[Any]], params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
    own, decay_state, rate_state = _checked_state(parts, state)
    count, slow_count = optax.safe_increment(own.count), optax.safe_increment(own.slow_count)
    coefficients, decay_state, rate_state = _coefficients(parts, count, slow_count, decay_state, rate_state)
    # None is a leaf, where `params` may have anything, as in the transformation
    tree: Any
    with_paths, tree = jax.tree.flatten_with_path(grads, is_leaf=lambda leaf: leaf is None)
    columns = [
        [None] * len(with_paths) if column is None else tree.flatten_up_to(column)
        for column in (params, own.mu, own.slow, own.nu)
    ]
    leaves = [Arrays(*arrays) for arrays in zip(*columns, [grad for _, grad in with_paths], strict=True)]
    places = [i for i, leaf in enumerate(leaves) if leaf.grad is not None]
    if places:
        decays = tree.flatten_up_to(_decays(parts.mask, grads))
        rows = np.array([0 if decays[i] else 1 for i in places])
        ready = [_checked(leaves[i], jax.tree_util.keystr(with_paths[i][0])) for i in places]
        for i, new in zip(places, call(coefficients[rows], ready), strict=True):
            leaves[i] = leaves[i]._replace(**new)
    new_params, fast, slow, square = (tree.unflatten([leaf[i] for leaf in leaves]) for i in range(4))
    own = own._replace(count=count, slow_count=slow_count, slow=slow, nu=square, mu=None if own.mu is None else fast)
    return new_params, (own, decay_state, rate_state)


def _checked_state(parts: Parts, state: Any) -> tuple[ScaleByAdemamixState, Any, Any]:
    is_own = isinstance(state, tuple) and len(state) == 3 and isinstance(state[0], ScaleByAdemamixState)
    if not is_own or (state[0].mu is None) == parts.settings.stores_fast:
        raise ValueError("the state is not one of the optimizer that fused_step was given: use its init")
    own, decay_state, rate_state = state
    return own, decay_state, rate_state


def _coefficients(
    parts: Parts, count: jax.Array, slow_count: jax.Array, decay_state: Any, rate_state: Any
) -> tuple[jax.Array, Any, Any]:
    """Return two rows of `Coefficients` in csrc/step.h, with and without weight decay, and the states they depend on.

    Optax's own transformations say what they do to a number, so that every kind of schedule counts in its own state.
    """
    one, zero = jnp.ones([], real_dtype()), jnp.zeros([], real_dtype())
    decay = optax.add_decayed_weights(parts.weight_decay)
    if parts.mask is None:
        weight_decay, decay_state = decay.update(zero, decay_state, one)
    else:
        weight_decay, inner = decay.update(zero, decay_state.inner_state, one)
        decay_state = decay_state._replace(inner_state=inner)
    descent, rate_state = optax.scale_by_learning_rate(parts.learning_rate).update(one, rate_state)
    lr = -descent
    c = coefficients_at(count, slow_count, parts.settings)
    limit = math.inf if c.slow_limit is None else c.slow_limit
    before = (c.fast_rate, c.slow_rate, c.square_rate, c.slow_gain, lr * c.step_size, c.eps)
    unused_step = 0.0  # part of the key of stochastic rounding
    rows = [[*before, decay, unused_step, limit] for decay in (lr * weight_decay, 0.0)]
    return jnp.stack([jnp.stack([jnp.asarray(x, real_dtype()) for x in row]) for row in rows]), decay_state, rate_state


def _decays(mask: Any, grads: Any) -> Any:
    """Return which parameters decay, as a tree like `grads`; a mask may say so for a whole branch."""
    mask = True if mask is None else mask
    if all(map(callable, jax.tree.leaves(mask))):  # as Optax asks: a tree of an Equinox module can be called as well
        mask = mask(grads)

    def branch(decays: Any, grads: Any) -> Any:
        return jax.tree.map(lambda _: decays, grads, is_leaf=lambda leaf: leaf is None)

    return jax.tree.map(branch, mask, grads)


def _checked(leaf: Arrays, path: str) -> Arrays:
    """Return the arrays of a parameter, or say why the kernel cannot use them."""
    param, grad = jnp.asarray(leaf.param), jnp.asarray(leaf.grad)
    for name, array in (("parameter", param), ("gradient", grad)):
        if array.dtype.name not in DTYPES:
            raise TypeError(
                f"the fused step takes a {name} of {', '.join(DTYPES)}, not of {array.dtype.name} (at {path}): "
                "use optimizer.update and optax.apply_updates"
            )
    if leaf.square is None:
        raise ValueError(f"there is a gradient at {path}, but no state: it was initialised with other parameters")
    moments = {"slow": leaf.slow, "nu": leaf.square} | ({} if leaf.fast is None else {"mu": leaf.fast})
    expected = arithmetic_dtype(param)
    for name, moment in moments.items():
        if moment.dtype != expected:
            raise ValueError(
                f"the fused step needs moments of {expected.name}, but `{name}` at {path} is {moment.dtype.name}: "
                "leave out mu_dtype and slow_dtype, or use optimizer.update and optax.apply_updates"
            )
    for name, array in ({"gradient": grad} | moments).items():
        if array.shape != param.shape:
            raise ValueError(f"the {name} at {path} has shape {array.shape}, its parameter {param.shape}")
    return leaf._replace(param=param, grad=grad)
