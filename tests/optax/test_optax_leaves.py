"""Leaves of every kind that optax.adamw takes: numbers, arrays of NumPy, None, functions in the place of parameters."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ademamix.optax import scale_by_ademamix
from test_optax import equal, every_format, make, params_of, signature


def after_steps(optimizer, params, gradients, update=None):
    state = optimizer.init(params)
    for _ in range(3):
        updates, state = (update or optimizer.update)(gradients, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@every_format
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "leaf", [0.5, np.float32(0.5), np.float64(0.5), np.full((64, 96), 0.5), np.full((64, 96), 0.5, np.float32)], ids=str
)
def test_numbers_and_arrays_of_numpy(format, jit, leaf):
    optimizer = make(format)
    update = jax.jit(optimizer.update) if jit else optimizer.update
    found = after_steps(optimizer, {"w": leaf}, {"w": leaf}, update)
    expected = after_steps(optimizer, {"w": jnp.asarray(leaf, "float32")}, {"w": jnp.asarray(leaf, "float32")}, update)
    assert equal(found, expected)
    assert signature(found[1]) == signature(expected[1])


def test_a_number_is_a_parameter_of_double_precision_where_jax_has_it():
    with jax.enable_x64(True):
        params, state = after_steps(make(), {"w": 0.5, "v": np.float32(0.5)}, {"w": 0.1, "v": np.float32(0.1)})
        assert (state[0].nu["w"].dtype, state[0].nu["v"].dtype) == ("float64", "float32")
        assert abs(params["w"] - (0.5 - 3e-2)) < 1e-2


@every_format
def test_a_parameter_without_gradient_stays(format):
    optimizer, params = scale_by_ademamix(total_steps=10), params_of()
    state = optimizer.init(params)
    _, state = optimizer.update(params, state)
    updates, after = optimizer.update({**params, "matrix": None}, state)
    assert updates["matrix"] is None
    assert equal([x["matrix"] for x in after[2:5]], [x["matrix"] for x in state[2:5]])
    assert signature(after) == signature(state)
    with_all, _ = optimizer.update(params, state)
    assert equal(updates["nested"], with_all["nested"])


@every_format
def test_parameters_of_equinox_may_be_unfiltered(format):
    model = eqx.nn.MLP(96, 64, 64, 2, key=jax.random.key(0))
    gradients = eqx.filter_grad(lambda model: jnp.sum(model(jnp.ones(96)) ** 2))(model)
    optimizer, filtered = make(format), eqx.filter(model, eqx.is_inexact_array)
    state = optimizer.init(filtered)
    assert equal(optimizer.update(gradients, state, model), optimizer.update(gradients, state, filtered))


def test_a_real_gradient_of_a_complex_parameter_keeps_the_imaginary_part_of_the_averages():
    optimizer, params = scale_by_ademamix(total_steps=10), jnp.ones(3, "complex64")
    _, state = optimizer.update(jnp.full(3, 1 + 2j), optimizer.init(params), params)
    updates, after = optimizer.update(jnp.ones(3), state, params)
    expected = optimizer.update(jnp.ones(3, "complex64"), state, params)
    assert equal((updates, after), expected)
    assert (after.mu.imag > 0).all()


def test_a_complex_gradient_of_a_real_parameter_is_refused():
    optimizer = make()
    with pytest.raises(TypeError, match="a gradient is complex where its parameter is real: pass its real part"):
        optimizer.update(jnp.ones(3, "complex64"), optimizer.init(jnp.ones(3)), jnp.ones(3))


@every_format
def test_float8(format):
    params = jnp.ones((64, 96), jnp.float8_e4m3fn)
    _, state = after_steps(make(format), params, params)
    _, expected = after_steps(make(format), jnp.ones((64, 96)), jnp.ones((64, 96)))
    assert equal(state, expected)


@pytest.mark.parametrize("mu_dtype", ["float16", jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_a_fast_average_of_few_bits_stays_finite(mu_dtype):
    optimizer = make(mu_dtype=mu_dtype, weight_decay=0.0)
    params, state = after_steps(optimizer, jnp.ones(3), jnp.array([1e30, -1e10, 1e6]))
    assert jnp.isfinite(params).all()
    assert jnp.isfinite(state[0].mu.astype("float32")).all()


@every_format
@pytest.mark.parametrize("check", ["nans", "strict dtypes", "ranks"])
def test_under_the_checks_of_jax(format, check):
    context = {
        "nans": lambda: jax.debug_nans(True),
        "strict dtypes": lambda: jax.numpy_dtype_promotion("strict"),
        "ranks": lambda: jax.numpy_rank_promotion("raise"),
    }[check]
    transformation, params = scale_by_ademamix(total_steps=10), params_of()
    optimizer = make(format)
    with context():
        params = jax.tree.map(jnp.zeros_like, params)
        jax.jit(transformation.update)(params, transformation.init(params))
        after_steps(optimizer, params, params, jax.jit(optimizer.update))
