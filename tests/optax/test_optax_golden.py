"""Optax follows the golden traces, and its schedules are those of the library."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import golden
from ademamix import alpha_at, beta3_at
from ademamix.optax import ademamix, alpha_schedule, beta3_schedule, from_adamw_state, fused_step


def transformed(optimizer):
    """Return a step of the form that `fused_step` has."""

    def step(params, gradients, state):
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return step


def run(step, params, state, gradients):
    """Take a step for each gradient, and return the parameters after each."""

    def body(carry, gradient):
        params, state = step(carry[0], gradient, carry[1])
        return (params, state), params

    (params, state), history = jax.jit(lambda *carry: jax.lax.scan(body, carry, gradients))(params, state)
    return params, state, history


def optimizer_of(trace):
    b1, b2, *b3 = trace.betas
    b3 = b3[0] if b3 else None
    return ademamix(trace.lr, b1, b2, b3=b3, weight_decay=trace.weight_decay, **trace.given)


@pytest.mark.parametrize("step_of", [transformed, fused_step])
@pytest.mark.parametrize("dtype", golden.TOLERANCES)
@pytest.mark.parametrize("name", golden.TRACES)
def test_golden_trace(name, dtype, step_of):
    trace = golden.TRACES[name]
    with jax.enable_x64(dtype == "float64"):
        params = [jnp.asarray(theta, dtype) for theta in golden.start()]
        series = [jnp.asarray(gradients, dtype) for gradients in golden.gradients()]
        optimizer = optimizer_of(trace)
        if trace.switches:
            adamw = optax.adamw(trace.lr, *trace.betas, weight_decay=trace.weight_decay)
            first, second = ([x[: golden.SWITCH] for x in series], [x[golden.SWITCH :] for x in series])
            params, state, before = run(transformed(adamw), params, adamw.init(params), first)
            state = from_adamw_state(state, optimizer.init(params))
            params, state, after = run(step_of(optimizer), params, state, second)
            history = [jnp.concatenate(parts) for parts in zip(before, after, strict=True)]
        else:
            params, state, history = run(step_of(optimizer), params, optimizer.init(params), series)
        assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(state[0][2:]))
        assert state[0].count == golden.STEPS
        assert state[0].slow_count == (golden.STEPS - golden.SWITCH if trace.switches else golden.STEPS)
    for step in golden.expected(name):
        golden.assert_golden(name, dtype, step, [np.asarray(theta[step - 1]) for theta in history])


def test_a_run_may_change_between_fused_and_other_steps():
    trace = golden.TRACES["horizon-within-trace"]
    optimizer = optimizer_of(trace)
    kinds = fused_step(optimizer), transformed(optimizer)
    params = [jnp.asarray(theta, "float32") for theta in golden.start()]
    series = [jnp.asarray(gradients, "float32") for gradients in golden.gradients()]

    def step(params, gradients, state):
        return jax.lax.cond(state[0].count % 2, *kinds, params, gradients, state)

    params, _, _ = run(step, params, optimizer.init(params), series)
    golden.assert_golden("horizon-within-trace", "float32", golden.STEPS, [np.asarray(theta) for theta in params])


def test_one_step_at_a_time_without_jit():
    trace = golden.TRACES["horizon-within-trace"]
    optimizer = optimizer_of(trace)
    params = [jnp.asarray(theta, "float32") for theta in golden.start()]
    state = optimizer.init(params)
    for step in range(golden.EVERY):
        gradients = [jnp.asarray(series[step], "float32") for series in golden.gradients()]
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    golden.assert_golden("horizon-within-trace", "float32", golden.EVERY, [np.asarray(theta) for theta in params])


@given(
    t=st.integers(1, 300_000),
    T=st.sampled_from([0, 1, 40, 2000, 256_000]),
    start=st.sampled_from([0.0, 0.9, 0.99]),
    beta3=st.sampled_from([0.0, 0.5, 0.999, 0.9999, 0.99999]),
)
@settings(max_examples=60, deadline=None)
def test_schedules_are_those_of_the_library(t, T, start, beta3):
    exact = beta3_at(t, beta3, start, T)
    schedule = beta3_schedule(beta3, start, T)
    assert float(alpha_schedule(5.0, T)(t)) == pytest.approx(alpha_at(t, 5.0, T), rel=3e-7)
    assert float(schedule(t)) == pytest.approx(exact, abs=3e-7)
    assert float(schedule.rate(t)) == pytest.approx(1 - exact, rel=4e-7)
    traced = jax.jit(lambda beta3, t: beta3_schedule(beta3, start, T).rate(t))(jnp.float32(beta3), t)
    assert float(traced) == pytest.approx(1 - exact, rel=2e-2 if beta3 > 0.9999 else 1e-3)
    with jax.enable_x64(True):
        assert float(schedule.rate(t)) == pytest.approx(1 - exact, rel=1e-10)


def test_a_schedule_keeps_its_digits_as_an_argument():
    """The slow average moves by 1 - beta3, which fp32's 0.9999 has to three digits only."""
    params = [jnp.asarray(theta, "float32") for theta in golden.start()]
    series = [jnp.asarray(gradients, "float32") for gradients in golden.gradients()]
    trace = golden.TRACES["short-horizon"]
    as_functions = ademamix(
        trace.lr,
        b3=beta3_schedule(0.9999, 0.9, 900),
        alpha=alpha_schedule(8.0, 700),
        weight_decay=trace.weight_decay,
    )
    _, _, history = run(transformed(as_functions), params, as_functions.init(params), series)
    for step in golden.expected("short-horizon"):
        thetas = [np.asarray(theta[step - 1]) for theta in history]
        golden.assert_golden("short-horizon", "float32", step, thetas)


def test_functions_are_called_with_steps_from_one():
    seen = []

    def alpha(t):
        seen.append(int(t))
        return 5.0

    optimizer = ademamix(1e-3, alpha=alpha, b3=lambda t: 0.99)
    params = jnp.ones(2)
    state = optimizer.init(params)
    for _ in range(3):
        _, state = optimizer.update(params, state, params)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("schedule", [alpha_schedule(5.0, 10), beta3_schedule(0.999, 0.9, 10)])
def test_steps_count_from_one(schedule):
    with pytest.raises(ValueError, match="t counts steps from 1, got 0"):
        schedule(0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: alpha_schedule(-1.0, 10), "alpha must be a finite number >= 0, got -1.0"),
        (lambda: alpha_schedule(5.0, -1), "alpha_warmup must be an integer >= 0 or None, got -1"),
        (lambda: beta3_schedule(1.0, 0.9, 10), r"beta3 must be a number in \[0, 1\), got 1.0"),
        (lambda: beta3_schedule(0.999, 1.5, 10), r"beta3_start must be a number in \[0, 1\), got 1.5"),
        (lambda: beta3_schedule(0.999, 0.9, 2.5), "beta3_warmup must be an integer >= 0 or None, got 2.5"),
    ],
)
def test_bad_schedules(make, message):
    with pytest.raises(ValueError, match=message):
        make()
