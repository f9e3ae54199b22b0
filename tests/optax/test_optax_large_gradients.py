"""Finite gradients whose square overflows fp32 make an ordinary step: their magnitude is limited to 2^62."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ademamix.optax import ademamix, scale_by_ademamix
from test_optax import every_format, make

LIMIT = 2.0**62
LARGE = [1.9e19, -3e19, 1e30, -3.3e38]


def run(optimizer, gradients, shape=(64, 96), dtype="float32"):
    """Take a jitted step for each gradient; give the parameters and the state after each."""
    params = jnp.ones(shape, dtype)
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = step(gradient, state, params)
        params = optax.apply_updates(params, updates)
        yield params, state


def bits_of(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def finite(tree):
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)


@every_format
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("large", LARGE)
def test_a_large_gradient_is_a_bounded_step(format, dtype, large):
    optimizer = make(format, weight_decay=0.0, total_steps=20)
    noise = jnp.asarray(np.random.default_rng(0).standard_normal((12, 64, 96)), "float32")
    large = float(jnp.clip(large, jnp.finfo(dtype).min, jnp.finfo(dtype).max))
    gradients = noise.at[3, :, 5].set(large).at[4:6].set(large).astype(dtype)
    before = jnp.ones((64, 96))
    for (params, state), gradient in zip(run(optimizer, gradients), gradients, strict=True):
        assert finite((params, state))
        assert state[0].nu.min() > 0
        assert jnp.abs(params - before).max() < 0.2  # lr is 0.01; 1/sqrt(1 - b2) is 32
        before = params
        assert gradient.dtype == dtype


@every_format
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_it_is_the_step_of_the_limited_gradient(format, dtype):
    with jax.enable_x64(dtype == "float64"):
        large = [*LARGE, LIMIT * 0.99, LIMIT, LIMIT * 1.01] + ([1e300, -1e300] if dtype == "float64" else [])
        rng = np.random.default_rng(0)
        gradients = jnp.asarray(rng.choice([*large, 1.0, -1e-3], (5, 64, 96)), dtype)
        limited = jnp.clip(gradients, -LIMIT, LIMIT).astype("float32")
        found = run(make(format), gradients)
        expected = run(make(format), limited)
        for one, other in zip(found, expected, strict=True):
            assert bits_of(one) == bits_of(other)


def test_it_is_the_step_of_the_limited_gradient_in_double_precision():
    b1, b2, b3, alpha, lr = 0.9, 0.99, 0.95, 3.0, 1e-2
    optimizer = ademamix(lr, b1, b2, b3=b3, alpha=alpha, alpha_warmup=0, beta3_warmup=0, eps=1e-8, weight_decay=0.0)
    gradients = np.random.default_rng(0).choice([1e25, -2e19, 1e3, -1.0], (20, 16)).astype("float32")
    theta, m1, m2, nu = np.ones(16), 0.0, 0.0, 0.0
    for t, (params, _) in enumerate(run(optimizer, gradients, 16), start=1):
        g = np.clip(gradients[t - 1].astype(np.float64), -LIMIT, LIMIT)
        m1, m2, nu = b1 * m1 + (1 - b1) * g, b3 * m2 + (1 - b3) * g, b2 * nu + (1 - b2) * g * g
        theta = theta - lr * (m1 / (1 - b1**t) + alpha * m2) / (np.sqrt(nu / (1 - b2**t)) + 1e-8)
        assert np.allclose(params, theta, rtol=1e-5, atol=1e-6), t


def test_double_precision_is_not_limited():
    with jax.enable_x64(True):
        (_, state), *_ = run(scale_by_ademamix(total_steps=10), [jnp.full(3, 1e30)], 3, "float64")
        assert np.allclose(state.nu, 1e57)


def test_the_parts_of_a_complex_gradient_are_limited():
    gradients = [jnp.asarray([3e38 + 3e38j, 1e30 - 1j, 2 - 3e38j, 1j], "complex64")] * 5
    optimizer = make(weight_decay=0.0)
    limited = [jnp.clip(g.real, -LIMIT, LIMIT) + 1j * jnp.clip(g.imag, -LIMIT, LIMIT) for g in gradients]
    pairs = zip(run(optimizer, gradients, 4, "complex64"), run(optimizer, limited, 4, "complex64"), strict=True)
    for (params, state), expected in pairs:
        assert finite((params, state))
        assert bits_of((params, state)) == bits_of(expected)


@every_format
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_propagates(format, bad):
    gradient = jnp.ones((64, 96)).at[3, 4].set(bad)
    ((params, state),) = run(make(format), [gradient])
    assert not jnp.isfinite(params[3, 4])
    assert not jnp.isfinite(state[0].nu[3, 4])
    assert jnp.isfinite(params).sum() == params.size - 1
