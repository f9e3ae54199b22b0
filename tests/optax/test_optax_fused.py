"""The fused step: it does what the transformation does, in place, under JAX's transformations; and what it refuses."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ademamix import native
from ademamix.optax import ademamix, alpha_schedule, beta3_schedule, fused_step, scale_by_ademamix
from test_optax import equal, make, params_of, signature
from test_optax_golden import transformed

STEPS = 5
TOLERANCE = 2e-6  # largest difference over the largest magnitude, per leaf


def decayed(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


SETTINGS = {
    "defaults": {},
    "beta1-zero": {"b1": 0.0},
    "learning-rate-schedule": {"learning_rate": optax.linear_schedule(1e-2, 1e-3, 4)},
    "no-weight-decay": {"weight_decay": 0.0},
    "weight-decay-schedule": {"weight_decay": optax.linear_schedule(0.5, 0.1, 4)},
    "mask-function": {"weight_decay": 0.5, "mask": decayed},
    "mask-tree": {"weight_decay": 0.5, "mask": {"matrix": False, "nested": [True, False], "empty": True}},
    "mask-branch": {"weight_decay": 0.5, "mask": {"matrix": True, "nested": False, "empty": True}},
    "masked-schedule": {"weight_decay": optax.linear_schedule(0.5, 0.1, 4), "mask": decayed},
    "schedules": {"alpha": alpha_schedule(8.0, 3), "b3": beta3_schedule(0.999, 0.9, 4), "total_steps": None},
    "functions": {"alpha": lambda t: 8.0 / t, "b3": lambda t: 1 - 0.1 / t, "total_steps": None},
    "slow-clip": {"alpha": 50.0, "slow_clip": 0.1, "alpha_warmup": 0},
}


def optimizer_with(settings):
    settings = {"learning_rate": 1e-2, "total_steps": 100, "weight_decay": 1e-2} | settings
    return ademamix(**settings)


def after_steps(step, optimizer, params, steps=STEPS, dtype=None):
    state = optimizer.init(params)
    for seed in range(1, steps + 1):
        gradients = jax.tree.map(lambda leaf: leaf.astype(dtype or leaf.dtype), params_of("float32", seed))
        params, state = step(params, gradients, state)
    return params, state


def assert_close(found, expected, tolerance=TOLERANCE):
    assert signature(found) == signature(expected)
    for (path, leaf), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        leaf, other = np.float64(leaf), np.float64(other)
        error = np.abs(leaf - other).max(initial=0)
        assert error <= tolerance * np.abs(other).max(initial=0), (jax.tree_util.keystr(path), error)


@pytest.mark.parametrize("name", SETTINGS)
def test_it_does_what_the_transformation_does(name):
    optimizer = optimizer_with(SETTINGS[name])
    expected = after_steps(jax.jit(transformed(optimizer)), optimizer, params_of())
    assert_close(after_steps(jax.jit(fused_step(optimizer)), optimizer, params_of()), expected)


def test_a_learning_rate_may_be_traced():
    @jax.jit
    def step(params, gradients, state, learning_rate):
        return fused_step(ademamix(learning_rate, total_steps=100))(params, gradients, state)

    optimizer = make()
    found = after_steps(lambda *arrays: step(*arrays, 1e-2), optimizer, params_of())
    assert_close(found, after_steps(jax.jit(transformed(optimizer)), optimizer, params_of()))


def test_without_jit_nothing_is_donated():
    optimizer, params = make(), params_of()
    state = optimizer.init(params)
    copies = jax.tree.map(np.array, (params, state))
    found = fused_step(optimizer)(params, params_of(seed=1), state)
    assert equal((params, state), copies)
    assert_close(found, after_steps(transformed(optimizer), optimizer, params, 1))


@pytest.mark.parametrize("gradient", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_parameters_are_rounded_once(dtype, gradient):
    """They are those of a step in fp32, to the nearest."""
    optimizer, params, gradients = make(), params_of(dtype), params_of(gradient, seed=1)
    wide, wide_gradients = jax.tree.map(lambda leaf: leaf.astype("float32"), (params, gradients))
    step = jax.jit(fused_step(optimizer))
    found, state = step(params, gradients, optimizer.init(params))
    expected, wide_state = step(wide, wide_gradients, optimizer.init(wide))
    assert signature(found) == signature(params)
    assert equal(found, jax.tree.map(lambda leaf: leaf.astype(dtype), expected))
    assert equal(state, wide_state)


def test_double_precision():
    with jax.enable_x64(True):
        optimizer = make()
        for dtype in ("float64", "float32"):
            expected = after_steps(jax.jit(transformed(optimizer)), optimizer, params_of("float64"), dtype=dtype)
            found = after_steps(jax.jit(fused_step(optimizer)), optimizer, params_of("float64"), dtype=dtype)
            assert_close(found, expected, 1e-14)


def addresses(tree):
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree) if leaf.size]


def test_donated_arrays_are_changed_where_they_are():
    optimizer, params = make(), params_of()
    state = optimizer.init(params)
    before = addresses((params, state))
    step = jax.jit(fused_step(optimizer), donate_argnums=(0, 2))
    compiled = step.lower(params, params_of(seed=1), state).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < params["matrix"].nbytes
    params, state = compiled(params, params_of(seed=1), state)
    assert addresses((params, state)) == before
    assert state[0].count == 1


def test_scanned_arrays_are_changed_where_they_are():
    """A training step whose gradients read the parameters that it then changes."""
    optimizer, params = make(), params_of()
    step = fused_step(optimizer)

    def train(params, state):
        def body(carry, _):
            params, state = carry
            gradients = jax.grad(lambda params: sum((leaf**2).sum() for leaf in jax.tree.leaves(params)))(params)
            return step(params, gradients, state), None

        return jax.lax.scan(body, (params, state), None, length=STEPS)[0]

    def one_by_one(params, state):
        for _ in range(STEPS):
            params, state = jax.jit(transformed(optimizer))(params, jax.tree.map(lambda leaf: 2 * leaf, params), state)
        return params, state

    expected = one_by_one(params, optimizer.init(params))
    state = optimizer.init(params)
    before = addresses((params, state))
    compiled = jax.jit(train, donate_argnums=(0, 1)).lower(params, state).compile()
    gradients = 2 * params["matrix"].nbytes
    assert compiled.memory_analysis().temp_size_in_bytes < gradients
    found = compiled(params, state)
    assert addresses(found) == before
    assert_close(found, expected)


def test_an_array_that_is_still_read_is_copied():
    optimizer, params = make(), params_of()
    state, copies = optimizer.init(params), jax.tree.map(np.array, params)

    def step(params, gradients, state):
        return params, fused_step(optimizer)(params, gradients, state)

    old, (new, _) = jax.jit(step, donate_argnums=(0, 2))(params, params_of(seed=1), state)
    assert equal(old, copies)
    assert not equal(new, copies)


def test_vmap_takes_the_steps_of_each():
    optimizer = make()
    members = [params_of(seed=seed) for seed in range(3)]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    gradients, (own, *rest) = jax.tree.map(lambda leaf: leaf[::-1], params), jax.vmap(optimizer.init)(params)
    state = (own._replace(count=jnp.array([0, 7, 50])), *rest)
    found = jax.jit(jax.vmap(fused_step(optimizer)))(params, gradients, state)
    for i in range(3):
        alone = fused_step(optimizer)(*jax.tree.map(lambda leaf, i=i: leaf[i], (params, gradients, state)))
        assert equal(jax.tree.map(lambda leaf, i=i: leaf[i], found), alone)


def test_large_arrays_have_the_bits_of_their_parts():
    """Several threads work on the large one, and small ones share a thread."""
    optimizer = make()
    rng = np.random.default_rng(0)
    shapes = {"large": (1000, 300), "small": (3, 7), "number": (), **{f"{i}": (40,) for i in range(50)}}
    params, gradients = (
        {name: jnp.asarray(rng.standard_normal(shapes[name]), "float32") for name in shapes} for _ in "ab"
    )
    step = jax.jit(fused_step(optimizer))
    together, _ = step(params, gradients, optimizer.init(params))
    for name in ("small", "number", "49"):
        alone, _ = step(params[name], gradients[name], optimizer.init(params[name]))
        assert equal(alone, together[name]), name
    for rows in (slice(0, 7), slice(500, 507), slice(993, 1000)):
        part = params["large"][rows]
        alone, _ = step(part, gradients["large"][rows], optimizer.init(part))
        assert equal(alone, together["large"][rows]), rows


@pytest.mark.parametrize("leaf", [0.5, np.float32(0.5), np.float64(0.5), np.full((64, 96), 0.5)], ids=str)
def test_numbers_and_arrays_of_numpy(leaf):
    optimizer = make()
    expected = transformed(optimizer)({"w": leaf}, {"w": leaf}, optimizer.init({"w": leaf}))
    assert_close(fused_step(optimizer)({"w": leaf}, {"w": leaf}, optimizer.init({"w": leaf})), expected)


def test_a_parameter_without_gradient_stays():
    optimizer, params = make(weight_decay=0.5), params_of()
    state = optimizer.init(params)
    gradients = {**params_of(seed=1), "matrix": None}
    found, after = fused_step(optimizer)({**params, "matrix": jnp.tanh}, gradients, state)
    assert found["matrix"] is jnp.tanh
    assert equal([x["matrix"] for x in after[0][2:5]], [x["matrix"] for x in state[0][2:5]])
    with_all, _ = fused_step(optimizer)(params, params_of(seed=1), state)
    assert equal(found["nested"], with_all["nested"])
    unchanged, after = fused_step(optimizer)(params, jax.tree.map(lambda leaf: None, params), state)
    assert equal(unchanged, params)
    assert after[0].count == 1
    assert fused_step(optimizer)({}, {}, optimizer.init({}))[0] == {}


def test_models_of_equinox():
    model = eqx.nn.MLP(4, 3, 8, 2, key=jax.random.key(0))
    optimizer = make(weight_decay=0.5)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    gradients = eqx.filter_grad(lambda model: jnp.sum(model(jnp.ones(4)) ** 2))(model)
    updates, expected_state = optimizer.update(gradients, state, model)
    found, found_state = eqx.filter_jit(fused_step(optimizer))(model, gradients, state)
    assert_close(found_state, expected_state)
    expected = eqx.apply_updates(model, updates)
    assert_close(eqx.filter(found, eqx.is_array), eqx.filter(expected, eqx.is_array))


def test_derivatives_are_refused():
    optimizer, params = make(), params_of()
    state = optimizer.init(params)

    @jax.jit
    def loss(params):
        return fused_step(optimizer)(params, params_of(seed=1), state)[0]["matrix"].sum()

    assert jnp.isfinite(loss(params))
    with pytest.raises(NotImplementedError, match=r"the fused step has no derivative: use optimizer\.update"):
        jax.grad(loss)(params)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adamw(1e-3),
        scale_by_ademamix(total_steps=10),
        optax.chain(optax.clip_by_global_norm(1.0), make()),
        optax.inject_hyperparams(ademamix)(1e-3, total_steps=10),
    ],
)
def test_other_optimizers_are_refused(optimizer):
    with pytest.raises(
        TypeError, match=r"fused_step takes the optimizer that ademamix.optax.ademamix returns, got Grad"
    ):
        fused_step(optimizer)


W = {"w": jnp.ones((64, 96))}


@pytest.mark.parametrize(
    ("optimizer", "params", "gradients", "error", "message"),
    [
        (make("mu-bf16"), W, W, ValueError, r"moments of float32, but `mu` at \['w'\] is bfloat16: leave out mu_dtype"),
        (make("slow-bf16"), W, W, ValueError, r"moments of float32, but `slow` at \['w'\] is bfloat16"),
        (make(slow_dtype="int16"), W, W, ValueError, r"moments of float32, but `slow` at \['w'\] is int16"),
        (
            make(),
            {"w": 1j * W["w"]},
            W,
            TypeError,
            r"takes a parameter of float32, .*, not of complex64 \(at \['w'\]\)",
        ),
        (make(), W, {"w": 1j * W["w"]}, TypeError, r"takes a gradient of .*, not of complex64 \(at \['w'\]\)"),
        (make(), W, {"w": jnp.ones((64, 96), int)}, TypeError, r"takes a gradient of .*, not of int32"),
        (
            make(),
            W,
            {"w": jnp.ones((96, 64))},
            ValueError,
            r"the gradient at \['w'\] has shape \(96, 64\), its parameter",
        ),
    ],
)
def test_arrays_that_the_kernels_do_not_take(optimizer, params, gradients, error, message):
    with pytest.raises(error, match=message):
        jax.jit(fused_step(optimizer))(params, gradients, optimizer.init(params))


@pytest.mark.parametrize(
    "state",
    [
        make().init(W)[0],
        make("beta1-zero").init(W),
        optax.adamw(1e-3).init(W),
        optax.chain(optax.clip_by_global_norm(1.0), make()).init(W),
    ],
)
def test_other_states_are_refused(state):
    with pytest.raises(
        ValueError, match="the state is not one of the optimizer that fused_step was given: use its init"
    ):
        fused_step(make())(W, W, state)


def test_a_state_of_other_parameters_is_refused():
    optimizer = make()
    state = optimizer.init({"w": W["w"], "v": None})
    with pytest.raises(ValueError, match=r"there is a gradient at \['v'\], but no state"):
        fused_step(optimizer)({**W, "v": W["w"]}, {**W, "v": W["w"]}, state)
    with pytest.raises(ValueError, match=r"the slow at \['w'\] has shape \(64, 96\), its parameter \(3,\)"):
        fused_step(optimizer)({"w": jnp.ones(3)}, {"w": jnp.ones(3)}, optimizer.init(W))


def test_without_the_core_it_says_so(monkeypatch):
    monkeypatch.setattr(native, "core", None)
    monkeypatch.setattr(native, "missing", "the C++ core of ademamix is not there (no file)")
    with pytest.raises(RuntimeError, match=r"core of ademamix is not there \(no file\), or use optimizer\.update"):
        fused_step(make())


def test_versions_and_modes_of_jax_that_it_cannot_use(monkeypatch):
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with pytest.raises(RuntimeError, match="fused_step needs JAX's Shardy partitioner"):
            fused_step(make())
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    monkeypatch.setattr(jax, "__version_info__", (0, 8, 1))
    with pytest.raises(RuntimeError, match=r"fused_step needs jax 0\.8\.2 or later"):
        fused_step(make())
