"""The optimizer inside of Optax's wrappers, and the tests that Optax has for every optimizer of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ademamix.optax import STATIC_ARGS, ScaleByAdemamixState, ademamix
from ademamix.reference import ReferenceAdEMAMix
from test_optax import FORMATS, equal, every_format, make, params_of, signature


def run(optimizer, params, steps, gradients_of=lambda params, t: jax.tree.map(lambda x: x - 0.1 * t, params)):
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, t):
        updates, state = optimizer.update(gradients_of(params, t), state, params)
        return optax.apply_updates(params, updates), state

    for t in range(steps):
        params, state = step(params, state, t)
    return params, state


def assert_close(left, right, rtol=2e-5):
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert np.allclose(x, y, rtol=rtol, atol=rtol / 20)


TARGETS = {
    "parabola": (
        jnp.array([-1.0, 10.0, 1.0]),
        jnp.array([1.0, -1.0, 1.0]),
        lambda x: jnp.sum((x - jnp.array([1.0, -1.0, 1.0])) ** 2),
    ),
    "rosenbrock": (
        jnp.array([0.0, 0.0]),
        jnp.array([1.0, 1.0]),
        lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2,
    ),
    "separable": (jnp.array([3.0, -2.0]), jnp.array([0.0, 0.0]), lambda x: jnp.sum(jnp.array([1.0, 100.0]) * x**2)),
}


@every_format
@pytest.mark.parametrize("target", TARGETS)
def test_convergence(target, format):
    start, minimum, objective = TARGETS[target]
    steps = 6000
    optimizer = ademamix(
        optax.cosine_decay_schedule(3e-2, steps), alpha=2.0, total_steps=steps, weight_decay=0.0, **FORMATS[format]
    )

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jax.grad(objective)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    assert jnp.allclose(params, minimum, atol=2e-2)


def test_complex_convergence():
    target = jnp.array([1 + 2j, -3j], "complex64")
    optimizer = ademamix(optax.cosine_decay_schedule(3e-2, 3000), alpha=2.0, total_steps=3000, weight_decay=0.0)
    params, _ = run(optimizer, jnp.zeros(2, "complex64"), 3000, lambda params, t: params - target)
    assert jnp.allclose(params, target, atol=1e-2)


@every_format
def test_injected_hyperparameters_are_the_same_run_and_can_be_changed(format):
    settings = {
        "total_steps": 50,
        "b3": 0.95,
        "alpha": 3.0,
        "b2": 0.99,
        "eps": 1e-6,
        "weight_decay": 0.1,
        **FORMATS[format],
    }
    injected = optax.inject_hyperparams(ademamix, static_args=STATIC_ARGS)(learning_rate=1e-2, **settings)
    params = params_of()
    expected, _ = run(ademamix(1e-2, **settings), params, 10)
    found, state = run(injected, params, 10)
    assert_close(found, expected, rtol=2e-4 if "slow" in format else 2e-5)
    assert set(state.hyperparams) == {"learning_rate", "b2", "b3", "alpha", "eps", "weight_decay"}
    state.hyperparams["learning_rate"] = jnp.float32(0.0)
    updates, after = injected.update(params, state, params)
    assert not any(leaf.any() for leaf in jax.tree.leaves(updates))
    assert signature(after) == signature(state)


def test_injected_settings_left_open_are_chosen_statically():
    injected = optax.inject_hyperparams(ademamix, static_args=STATIC_ARGS)(1e-2, total_steps=50)
    params = params_of()
    found, state = run(injected, params, 10)
    assert_close(found, run(ademamix(1e-2, total_steps=50), params, 10)[0])
    assert "b3" not in state.hyperparams


@every_format
@pytest.mark.parametrize(
    "settings",
    [
        {"total_steps": 50},
        {"total_steps": 50, "b3": 0.95, "alpha_warmup": 0},
        {"alpha_warmup": 4, "beta3_warmup": 0, "beta3_start": 0.0, "b3": 0.9},
        {"total_steps": 20, "beta3_start": 0.0, "alpha": 2.0},
    ],
    ids=str,
)
def test_injected_without_static_args_is_the_same_run(format, settings):
    settings = settings | {
        name: value if name == "b1" else jnp.dtype(value).name for name, value in FORMATS[format].items()
    }
    params = params_of()
    expected, _ = run(ademamix(1e-2, **settings), params, 10)
    found, state = run(optax.inject_hyperparams(ademamix)(1e-2, **settings), params, 10)
    # an average in fewer bits rounds the other way where a traced number differs in its last digit
    assert_close(found, expected, rtol=1e-4 if format in ("plain", "beta1-zero") else 2e-3)
    assert state.hyperparams.keys() >= {"b1", "b2", "alpha", *settings.keys() - {"mu_dtype", "slow_dtype"}}
    again = optax.inject_hyperparams(ademamix)(1e-2, **settings)
    jax.lax.scan(lambda state, _: (again.update(params, state, params)[1], None), again.init(params), length=2)


def test_injected_betas_may_be_zero():
    """As with numbers that are not traced, but the fast average is stored."""

    def gradients_of(params, t):
        return jax.tree.map(lambda x: 2 + jnp.sin(x + t), params)  # |g| is what is divided by: none is close to 0

    params, settings = params_of(), {"total_steps": 50, "b1": 0.0, "b2": 0.0}
    found, state = run(optax.inject_hyperparams(ademamix)(1e-2, **settings), params, 10, gradients_of)
    assert_close(found, run(ademamix(1e-2, **settings), params, 10, gradients_of)[0])
    assert state.inner_state[0].mu is not None


def test_injected_learning_rate_schedule():
    schedule = optax.linear_schedule(1e-2, 0.0, 10)
    injected = optax.inject_hyperparams(ademamix, static_args=STATIC_ARGS)(schedule, total_steps=50)
    params = params_of()
    assert_close(run(injected, params, 10)[0], run(ademamix(schedule, total_steps=50), params, 10)[0])


def test_multi_transform_and_masked():
    params = params_of()
    labels = {"matrix": "ours", "nested": ["theirs", "ours"], "empty": "theirs"}
    optimizer = optax.multi_transform({"ours": make("slow-int16"), "theirs": optax.sgd(0.1)}, labels)
    found, state = run(optimizer, params, 5)
    alone, _ = run(make("slow-int16"), [params["matrix"], params["nested"][1]], 5)
    assert equal([found["matrix"], found["nested"][1]], alone)
    masked = optax.masked(make(), jax.tree.map(lambda label: label == "ours", labels))
    found, state = run(masked, params, 3)
    assert len(jax.tree.leaves(state)) == 2 + 3 * 2


def test_multi_steps_averages_gradients():
    params = params_of()
    optimizer = optax.MultiSteps(make(), every_k_schedule=2)
    found, state = run(
        optimizer, params, 6, lambda params, t: jax.tree.map(lambda x: x * (1 + t % 2), params_of(seed=9))
    )
    expected, _ = run(make(), params, 3, lambda params, t: jax.tree.map(lambda x: 1.5 * x, params_of(seed=9)))
    assert_close(found, expected)
    assert state.gradient_step == 3
    assert state.inner_opt_state[0].count == 3


@every_format
def test_apply_if_finite_leaves_everything_as_it_was(format):
    optimizer, params = optax.apply_if_finite(make(format), 3), params_of()
    state = optimizer.init(params)
    _, state = optimizer.update(params, state, params)
    updates, after = jax.jit(optimizer.update)(jax.tree.map(lambda x: x * jnp.nan, params), state, params)
    assert not any(leaf.any() for leaf in jax.tree.leaves(updates))
    assert equal(after.inner_state, state.inner_state)
    assert after.total_notfinite == 1


def skipping_the_bad(optimizer):
    """Gradients are cast first: apply_if_finite takes only optimizers whose updates have the dtype of gradients."""
    cast = optax.stateless(lambda gradients, params: jax.tree.map(lambda g, p: g.astype(p.dtype), gradients, params))
    return optax.chain(cast, optax.apply_if_finite(optimizer, 3))


@every_format
def test_apply_if_finite_with_bf16_gradients_is_the_run_without_the_bad_ones(format):
    good = [params_of("bfloat16", seed=seed) for seed in range(1, 5)]
    bad = [{**good[0], "matrix": good[0]["matrix"].at[3, 4].set(value)} for value in (jnp.nan, jnp.inf, -jnp.inf)]

    def trajectory(optimizer, gradients):
        params, step = params_of(), jax.jit(optimizer.update)
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = step(gradient, state, params)
            params = optax.apply_updates(params, updates)
            yield params, state

    gradients = [*good[:2], bad[0], good[2], *bad[1:], good[3]]
    found = [(params, state[1].inner_state) for params, state in trajectory(skipping_the_bad(make(format)), gradients)]
    plain = list(trajectory(make(format), good))
    for i, taken in enumerate([1, 2, 2, 3, 3, 3, 4]):
        assert signature(found[i]) == signature(plain[taken - 1])
        assert equal(found[i], plain[taken - 1])


def test_apply_if_finite_with_bf16_gradients_is_the_oracle_of_the_good_ones():
    settings = {"alpha": 3.0, "eps": 1e-6, "weight_decay": 0.1}
    optimizer = skipping_the_bad(ademamix(1e-2, 0.9, 0.99, b3=0.95, alpha_warmup=0, beta3_warmup=0, **settings))
    rng = np.random.default_rng(0)
    params = jnp.asarray(rng.standard_normal(16), "float32")
    oracle = ReferenceAdEMAMix(params, lr=1e-2, betas=(0.9, 0.99, 0.95), **settings)
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    for t in range(1, 21):
        gradient = jnp.asarray(rng.standard_normal(16), "bfloat16")
        if t % 4 == 0:
            gradient = gradient.at[t % 16].set(jnp.inf)
        else:
            oracle.update(gradient)
        updates, state = step(gradient, state, params)
        params = optax.apply_updates(params, updates)
        assert params.dtype == "float32"
        assert np.allclose(params, oracle.theta, rtol=2e-6, atol=1e-7), t
    assert state[1].total_notfinite == 5


def test_weight_decay_mask():
    params = params_of()
    zero = jax.tree.map(jnp.zeros_like, params)
    for mask in (
        {"matrix": True, "nested": False, "empty": False},
        lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
    ):
        optimizer = ademamix(0.1, total_steps=10, weight_decay=0.5, mask=mask)
        updates, _ = optimizer.update(zero, optimizer.init(params), params)
        assert jnp.allclose(updates["matrix"], -0.05 * params["matrix"])
        assert not any(leaf.any() for leaf in updates["nested"])


def test_learning_rate_schedule_is_on_the_count_of_optax():
    params = jnp.ones(3)
    optimizer = ademamix(lambda count: jnp.where(count == 0, 0.0, 1e-2), total_steps=10)
    updates, state = optimizer.update(params, optimizer.init(params), params)
    assert not updates.any()
    assert optimizer.update(params, state, params)[0].all()


def test_clipping_and_chains():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), make(), optax.scale(0.5))
    _, state = run(optimizer, params_of(), 3)
    assert isinstance(state[1][0], ScaleByAdemamixState)
    assert optax.tree_utils.tree_get(state, "slow_count") == 3


@every_format
def test_state_trees_are_trees_of_parameters(format):
    """What makes partition specs of states works; None is in the place of scales and positions that are not there."""
    optimizer, params = make(format), params_of()
    state = optimizer.init(params)
    specs = optax.tree_utils.tree_map_params(
        optimizer,
        lambda leaf, param: None if leaf is None else param.shape[:1],
        state,
        params,
        transform_non_params=lambda leaf: (),
        is_leaf=lambda leaf: leaf is None,
    )
    assert jax.tree.all(jax.tree.map(lambda leaf, rows: leaf.shape[:1] == rows, state, specs))
    shapes = jax.eval_shape(optimizer.init, params)
    assert jax.tree.structure(shapes) == jax.tree.structure(state)


def test_alpha_zero_is_adamw():
    with jax.enable_x64(True):
        params = params_of("float64")
        found, _ = run(ademamix(1e-2, alpha=0.0), params, 20)
        assert_close(found, run(optax.adamw(1e-2), params, 20)[0], rtol=1e-12)


def test_differentiable():
    """Hypergradients: the derivative of what a run ends with by its learning rate."""

    def loss(learning_rate):
        optimizer = optax.inject_hyperparams(ademamix, static_args=STATIC_ARGS)(learning_rate, total_steps=10)
        params = jnp.array([1.0, -2.0])
        state = optimizer.init(params)
        for _ in range(3):
            updates, state = optimizer.update(2 * params, state, params)
            params = optax.apply_updates(params, updates)
        return (params**2).sum()

    difference = (loss(1.001e-2) - loss(0.999e-2)) / 2e-5
    assert jax.grad(loss)(1e-2) == pytest.approx(float(difference), rel=2e-2)
