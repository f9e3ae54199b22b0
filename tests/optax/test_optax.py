"""The Optax transformations: state, dtypes, JAX's transformations, and what they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ademamix.optax import ademamix, alpha_schedule, scale_by_ademamix
from ademamix.reference import ReferenceAdEMAMix
from ademamix.schedules import beta3_for_horizon

# Arguments that together use every format of state.
FORMATS = {
    "plain": {},
    "beta1-zero": {"b1": 0.0},
    "mu-bf16": {"mu_dtype": jnp.bfloat16},
    "slow-bf16": {"slow_dtype": jnp.bfloat16},
    "slow-int16": {"slow_dtype": "int16", "mu_dtype": "bfloat16"},
}
every_format = pytest.mark.parametrize("format", FORMATS)


def make(format="plain", **settings):
    return ademamix(1e-2, **{"total_steps": 100, **FORMATS[format], **settings})


def params_of(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return {
        "matrix": jnp.asarray(rng.standard_normal((64, 96)), dtype),
        "nested": [jnp.asarray(rng.standard_normal(5), dtype), jnp.asarray(rng.standard_normal(()), dtype)],
        "empty": jnp.zeros((2, 0), dtype),
    }


def signature(tree):
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(tree)]


def equal(left, right):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), left, right))


def test_an_average_without_memory_is_the_newest_value_to_the_last_digit():
    optimizer = scale_by_ademamix(b2=0.0, b3=0.0, total_steps=100, beta3_warmup=0)
    state = optimizer.init(jnp.zeros(4))
    for size in (1.0, 1e-6, 1e-12):
        grad = jnp.full(4, size)
        _, state = jax.jit(optimizer.update)(grad, state)
        assert equal((state.slow, state.nu), (grad, grad * grad))


@every_format
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_dtypes_of_state_and_updates_never_change(format, dtype):
    with jax.enable_x64(dtype == "float64"):
        optimizer, params = make(format), params_of(dtype)
        state = optimizer.init(params)
        full = "float64" if dtype == "float64" else "float32"
        assert {leaf.dtype for leaf in jax.tree.leaves(state[0].nu)} == {jnp.dtype(full)}
        if format in ("plain", "beta1-zero"):
            assert {leaf.dtype for leaf in jax.tree.leaves(state[0].slow)} == {jnp.dtype(full)}
        for gradients in (params, jax.tree.map(lambda x: x.astype("float32"), params)):
            updates, after = optimizer.update(gradients, state, params)
            assert signature(after) == signature(state)
            assert signature(updates) == signature(params)
        without_params, _ = (
            scale_by_ademamix(total_steps=10).update(gradients, state[0]) if format == "plain" else (gradients, None)
        )
        assert signature(without_params) == signature(gradients)


def test_beta1_zero_stores_no_fast_average():
    state = make("beta1-zero").init(params_of())[0]
    assert state.mu is None
    assert len(jax.tree.leaves(state)) == 2 + 2 * len(jax.tree.leaves(params_of()))


def test_mu_dtype_is_that_of_the_fast_average_alone():
    state = make("mu-bf16").init(params_of())[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(state.mu)} == {jnp.dtype("bfloat16")}
    assert {leaf.dtype for leaf in jax.tree.leaves((state.nu, state.slow))} == {jnp.dtype("float32")}


@every_format
def test_scan_and_jit_with_donation_agree(format):
    optimizer = make(format)
    gradients = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(params_of(seed=seed) for seed in range(1, 6)))

    def body(carry, gradient):
        params, state = carry
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    params = params_of()
    scanned, _ = jax.lax.scan(body, (params, optimizer.init(params)), gradients)
    jitted = jax.jit(lambda carry, gradient: body(carry, gradient)[0], donate_argnums=0)
    carry = (params_of(), optimizer.init(params_of()))
    for i in range(5):
        before = carry
        carry = jitted(carry, jax.tree.map(lambda leaf: leaf[i], gradients))  # noqa: B023
        donated = [leaf.is_deleted() for leaf in jax.tree.leaves(before) if leaf.size]
        assert all(donated)
    assert signature(scanned) == signature(carry)
    for left, right in zip(jax.tree.leaves(scanned[0]), jax.tree.leaves(carry[0]), strict=True):
        assert jnp.allclose(left, right, rtol=1e-5, atol=1e-6)


@every_format
def test_no_recompilation(format):
    optimizer, params, traces = make(format), params_of(), []

    @jax.jit
    def jitted(params, state, gradients):
        traces.append(1)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for seed in range(5):
        params, state = jitted(params, state, params_of(seed=seed))
    assert len(traces) == 1


@every_format
def test_vmap_is_a_loop_over_models(format):
    optimizer = make(format)
    models = [params_of(seed=seed) for seed in (1, 2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    state = jax.vmap(optimizer.init)(stacked)
    updates, state = jax.vmap(optimizer.update)(stacked, state, stacked)
    for i, params in enumerate(models):
        expected, expected_state = optimizer.update(params, optimizer.init(params), params)
        for left, right in zip(
            jax.tree.leaves((updates, state)), jax.tree.leaves((expected, expected_state)), strict=True
        ):
            assert jnp.allclose(left[i].astype("float32"), right.astype("float32"), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_parameters_have_one_real_second_moment(dtype):
    """The update turns with the gradient; parts that are scaled on their own, as in PyTorch, would not."""
    with jax.enable_x64(dtype == "complex128"):
        optimizer = scale_by_ademamix(total_steps=100)
        rng = np.random.default_rng(0)
        gradients = jnp.asarray(rng.standard_normal((5, 4)) + 1j * rng.standard_normal((5, 4)), dtype)
        turn = jnp.asarray(np.exp(0.7j), dtype)
        state = turned_state = optimizer.init(gradients[0])
        real = "float32" if dtype == "complex64" else "float64"
        assert (state.mu.dtype, state.nu.dtype, state.slow.dtype) == (dtype, real, dtype)
        square = np.zeros(4)
        for t, gradient in enumerate(gradients, start=1):
            updates, state = optimizer.update(gradient, state)
            turned, turned_state = optimizer.update(turn * gradient, turned_state)
            square = 0.999 * square + 0.001 * np.abs(gradient) ** 2
            assert updates.dtype == dtype
            assert jnp.allclose(turned, turn * updates, rtol=1e-5)
            assert np.allclose(state.nu, square, rtol=1e-5), t


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_eps_and_bias_corrections(eps):
    optimizer = scale_by_ademamix(0.9, 0.95, b3=0.99, alpha=3.0, alpha_warmup=0, beta3_warmup=0, eps=eps)
    oracle = ReferenceAdEMAMix([0.0] * 3, lr=1.0, betas=(0.9, 0.95, 0.99), alpha=3.0, eps=eps, weight_decay=0.0)
    state = optimizer.init(jnp.zeros(3))
    for t in range(1, 8):
        gradient = jnp.array([1e-3, 0.1, 3.0]) * t
        before = oracle.theta
        updates, state = optimizer.update(gradient, state)
        assert np.allclose(-updates, oracle.update(gradient) - before, rtol=2e-6)


def test_clocks_stop_before_they_overflow():
    optimizer = scale_by_ademamix(total_steps=100)
    last = jnp.int32(2**31 - 1)
    state = optimizer.init(jnp.ones(3))._replace(count=last, slow_count=last)
    updates, state = optimizer.update(jnp.ones(3), state)
    assert (state.count, state.slow_count) == (last, last)
    assert jnp.isfinite(updates).all()


def test_beta3_is_chosen_for_the_horizon_as_in_pytorch():
    params = jnp.ones(3)
    settings = {"alpha": 1.0, "alpha_warmup": 0, "beta3_warmup": 0}
    for total_steps in (100, 10_000, 1_000_000, "open"):
        chosen = scale_by_ademamix(**settings, total_steps=total_steps)
        stated = scale_by_ademamix(**settings, b3=beta3_for_horizon(total_steps, 0.9))
        results = [optimizer.update(params, optimizer.init(params)) for optimizer in (chosen, stated)]
        assert equal(*results)


@pytest.mark.parametrize("as_array", [float, jnp.asarray], ids=["number", "array"])
def test_an_open_run_warms_up_over_ten_times_its_memory(as_array):
    params = jnp.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = scale_by_ademamix(b3=as_array(0.99), total_steps="open")
    stated = scale_by_ademamix(b3=as_array(0.99), alpha_warmup=1000, beta3_warmup=1000)
    assert equal(*[optimizer.update(params, optimizer.init(params)) for optimizer in (chosen, stated)])


@pytest.mark.parametrize("build", [scale_by_ademamix, lambda **settings: ademamix(1e-3, **settings)])
def test_no_horizon_warns_and_says_what_to_pass(build):
    with pytest.warns(UserWarning, match="given no horizon: alpha = 5 and beta3 = 0.9999") as caught:
        build()
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="the slow average outlives the run"):
        build(b3=0.9999, total_steps=5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(alpha_warmup=0, beta3_warmup=0)
        build(alpha=0.0)
        build(alpha=lambda t: 5.0, b3=lambda t: 0.99)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"b1": 1.0}, r"beta1 must be a number in \[0, 1\), got 1.0"),
        ({"b2": -0.1}, r"beta2 must be a number in \[0, 1\), got -0.1"),
        ({"b3": float("nan")}, r"beta3 must be a number in \[0, 1\), got nan"),
        ({"alpha": -1.0}, "alpha must be a finite number >= 0, got -1.0"),
        ({"total_steps": 0}, "total_steps must be an integer >= 1 or None, got 0"),
        ({"alpha_warmup": -1}, "alpha_warmup must be an integer >= 0 or None, got -1"),
        ({"beta3_start": 1.0}, r"beta3_start must be a number in \[0, 1\), got 1.0"),
        ({"eps": float("inf")}, "eps must be a finite number >= 0, got inf"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number >= 0, got -1.0"),
        ({"learning_rate": -1.0}, "lr must be a finite number >= 0, got -1.0"),
        ({"learning_rate": "1e-3"}, "lr must be a number"),
        ({"alpha": lambda t: 5.0, "alpha_warmup": 10}, "alpha is a function of the step, which alpha_warmup=10 cannot"),
        ({"b3": lambda t: 0.9, "beta3_warmup": 0}, "beta3 is a function of the step, which beta3_warmup=0 cannot"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        ademamix(**{"learning_rate": 1e-3, "total_steps": 100, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"b1": jnp.float32(1.0)}, r"beta1 must be a number in \[0, 1\), got 1.0"),
        ({"b2": jnp.float32(2.0)}, r"beta2 must be a number in \[0, 1\), got 2.0"),
        ({"total_steps": jnp.int32(0)}, "total_steps must be an integer >= 1 or None, got 0"),
        ({"mu_dtype": "int16"}, "mu_dtype must be None or a real floating-point dtype, got 'int16'"),
        ({"mu_dtype": jnp.bfloat16(0)}, "mu_dtype must be None or.*static_args=ademamix.optax.STATIC_ARGS"),
        ({"slow_dtype": jnp.bfloat16(0)}, "slow_dtype must be None or.*static_args=ademamix.optax.STATIC_ARGS"),
    ],
)
def test_bad_arrays_and_dtypes(settings, message):
    with pytest.raises(ValueError, match=message):
        ademamix(1e-3, **{"total_steps": 10, **settings})


def test_an_array_is_no_mask():
    with pytest.raises(TypeError, match=r"mask must be a tree of bools.*static_args=ademamix.optax.STATIC_ARGS"):
        ademamix(1e-3, total_steps=10, mask=jnp.asarray(True))


def test_integer_parameters_are_refused():
    with pytest.raises(TypeError, match="does not train parameters of dtype int32"):
        make().init({"w": jnp.ones(3), "steps": jnp.arange(3)})


def test_without_jax_the_import_says_what_to_install():
    code = """
import sys
sys.modules["optax"] = None
try:
    import ademamix.optax
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'ademamix[jax]'" in done.stdout


def test_a_run_without_a_planned_end_is_ended_as_the_documentation_says():
    """Its last lines have the same bits as "open"; the number of steps alone changes alpha and beta3."""
    page = (Path(__file__).parents[2] / "docs" / "optax.md").read_text()
    (recipe,) = re.findall(r"^decay = .*\n^ending = .*\n", page, flags=re.MULTILINE)
    scope = {"optax": optax, "ademamix": ademamix}
    exec(recipe, scope)
    params = {"w": jnp.linspace(-1, 1, 8)}

    def gradient(step):
        return {"w": jnp.sin(jnp.arange(8.0) + step)}

    begun = ademamix(optax.constant_schedule(1e-3), total_steps="open", alpha=8.0)
    state = begun.init(params)
    for step in range(5):
        _, state = begun.update(gradient(step), state, params)
    for count in (5, 50_000, 150_000, 190_000):
        later = optax.tree_utils.tree_set(state, count=jnp.int32(count), slow_count=jnp.int32(count))
        options = {
            "open": ademamix(scope["decay"], total_steps="open", alpha=8.0),
            "ending": scope["ending"],
            "number alone": ademamix(scope["decay"], total_steps=200_000, alpha=8.0),
        }
        updates = {name: option.update(gradient(9), later, params)[0]["w"] for name, option in options.items()}
        assert jnp.array_equal(updates["open"], updates["ending"])
        assert not jnp.array_equal(updates["open"], updates["number alone"])
    assert alpha_schedule(8.0, T=100_000)(50_000) == 4
    assert alpha_schedule(8.0, T=200_000)(50_000) == 2
