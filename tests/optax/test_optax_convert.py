"""Conversions of Optax state: from and to AdamW, and from and to our PyTorch optimizer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from ademamix import AdEMAMix
from ademamix.optax import STATIC_ARGS, ademamix, from_adamw_state, from_torch, to_adamw_state, to_torch
from ademamix.pytorch.parameter_state import values_of as torch_storage_of
from test_optax import equal, every_format, make, params_of, signature
from test_optax_composition import run

schedule = optax.linear_schedule(1e-2, 0.0, 100)
LABELS = {"matrix": "a", "nested": "b", "empty": "a"}

# How AdamW, or ours in its place, is wrapped; `build` makes the innermost optimizer.
WRAPPINGS = {
    "alone": lambda build: build(1e-2),
    "schedule": lambda build: build(schedule),
    "chain": lambda build: optax.chain(optax.clip_by_global_norm(1.0), build(schedule)),
    "masked-decay": lambda build: build(1e-2, mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params)),
    "multi-steps": lambda build: optax.MultiSteps(build(1e-2), 2),
    "apply-if-finite": lambda build: optax.apply_if_finite(build(1e-2), 3),
    "multi-transform": lambda build: optax.multi_transform({"a": build(1e-2), "b": build(schedule)}, LABELS),
}


def ours(learning_rate, **settings):
    return ademamix(learning_rate, **{"total_steps": 100, **settings})


def adam_of(state):
    """The clock and the moments that AdamW and ours share."""
    found = [optax.tree_utils.tree_get_all_with_path(state, name) for name in ("mu", "nu")]
    return jax.tree.leaves([value for values in found for _, value in values])


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_switch_and_back_keeps_everything_but_the_slow_average(wrapping):
    wrap, params = WRAPPINGS[wrapping], params_of()
    adamw, optimizer = wrap(optax.adamw), wrap(ours)
    params, adamw_state = run(adamw, params, 4)
    state = from_adamw_state(adamw_state, optimizer.init(params))
    assert signature(state) == signature(optimizer.init(params))
    assert equal(adam_of(state), adam_of(adamw_state))
    for count in optax.tree_utils.tree_get_all_with_path(state, "slow_count"):
        assert count[1] == 0
    counts = [
        [int(value) for _, value in optax.tree_utils.tree_get_all_with_path(some, "count")]
        for some in (state, adamw_state)
    ]
    assert counts[0] == counts[1]
    updates, after = optimizer.update(params, state, params)
    back = to_adamw_state(after, adamw.init(params))
    assert signature(back) == signature(adamw_state)
    assert equal(adam_of(back), adam_of(after))
    adamw.update(updates, back, params)


@every_format
def test_a_switch_into_every_format(format):
    params, adamw_state = run(optax.adamw(1e-2), params_of(), 3)
    state = from_adamw_state(adamw_state, make(format).init(params))
    assert signature(state) == signature(make(format).init(params))
    assert (state[0].mu is None) == (format == "beta1-zero")
    back = to_adamw_state(state, optax.adamw(1e-2).init(params))
    if format == "beta1-zero":
        assert not any(leaf.any() for leaf in jax.tree.leaves(back[0].mu))
    assert equal(back[0].nu, adamw_state[0].nu)


def test_the_old_state_is_not_changed_nor_donated():
    params, adamw_state = run(optax.adamw(1e-2), params_of(), 3)
    optimizer = make()
    state = from_adamw_state(adamw_state, optimizer.init(params))
    jax.jit(optimizer.update, donate_argnums=1)(params, state, params)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(adamw_state))


def test_injected_hyperparameters_of_adamw_go_on():
    params = params_of()
    adamw = optax.inject_hyperparams(optax.adamw)(learning_rate=schedule, weight_decay=0.3)
    optimizer = optax.inject_hyperparams(ademamix, static_args=STATIC_ARGS)(schedule, total_steps=10, alpha=2.0)
    params, adamw_state = run(adamw, params, 3)
    state = from_adamw_state(adamw_state, optimizer.init(params))
    assert signature(state) == signature(optimizer.init(params))
    assert state.hyperparams["weight_decay"] == jnp.float32(0.3)
    assert state.hyperparams["alpha"] == 2.0
    assert state.hyperparams_states["learning_rate"].count == 3
    optimizer.update(params, state, params)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (optax.sgd(0.1), "there is no ScaleByAdamState"),
        (optax.amsgrad(0.1), "there is no ScaleByAdamState"),
        (optax.adam(0.1), r"the states differ at state: tuple cannot be continued as tuple"),
        (optax.chain(optax.adamw(0.1)), r"the states differ at state"),
        (optax.multi_transform({"a": optax.adamw(0.1)}, "a"), "the states differ at state"),
    ],
)
def test_states_that_cannot_be_continued(other, message):
    params = jnp.ones(3)
    with pytest.raises(ValueError, match=message):
        from_adamw_state(other.init(params), make().init(params))


def test_another_model_is_refused():
    with pytest.raises(ValueError, match=r"a moment has shape \(4,\) where \(3,\) is expected"):
        from_adamw_state(optax.adamw(0.1).init(jnp.ones(4)), make().init(jnp.ones(3)))


# PyTorch. Names are those of a torch model; the tree has others.

TORCH_SHAPES = {"layers.0.weight": (64, 96), "layers.0.bias": (64,), "scale": ()}
NAMES = {"first": {"w": "layers.0.weight", "b": "layers.0.bias"}, "scale": "scale"}
SETTINGS = {"total_steps": 60, "weight_decay": 0.1, "alpha": 3.0}
STORAGES = {"fp32": None, "bf16": "bfloat16", "compact": "int16"}


def to_tree(named):
    return jax.tree.map(lambda name: jnp.array(named[name].detach().numpy()), NAMES)


def gradients(step):
    rng = np.random.default_rng(step)
    return {name: torch.tensor(rng.standard_normal(shape), dtype=torch.float32) for name, shape in TORCH_SHAPES.items()}


def torch_run(storage="fp32", betas=(0.9, 0.999)):
    generator = torch.Generator().manual_seed(0)
    params = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in TORCH_SHAPES.items()}
    groups = [{"params": [(n, p)], "weight_decay": 0.1} for n, p in params.items()]
    return params, AdEMAMix(groups, lr=1e-2, betas=betas, state_storage=storage, foreach=True, **SETTINGS)


def torch_steps(params, optimizer, steps):
    for step in steps:
        for name, gradient in gradients(step).items():
            params[name].grad = gradient
        optimizer.step()


def optax_steps(optimizer, params, state, steps):
    for step in steps:
        updates, state = optimizer.update(to_tree(gradients(step)), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_near(left, right, tolerance):
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert np.linalg.norm(np.asarray(x) - np.asarray(y)) <= tolerance * np.linalg.norm(np.asarray(y))


@pytest.mark.parametrize("b1", [0.9, 0.0])
@pytest.mark.parametrize(("torch_storage", "slow_dtype"), STORAGES.items())
def test_a_torch_run_continues_in_optax_and_returns(torch_storage, slow_dtype, b1):
    tolerance = 2e-6 if torch_storage == "fp32" else 2e-2  # m1 and nu are reduced in torch, and not here
    params, optimizer = torch_run(torch_storage, (b1, 0.999))
    torch_steps(params, optimizer, range(20))
    own = ademamix(1e-2, b1, slow_dtype=slow_dtype, **SETTINGS)
    tree = to_tree(params)
    state = from_torch(optimizer.state_dict(), own.init(tree), NAMES)
    assert signature(state) == signature(own.init(tree))
    assert (state[0].count, state[0].slow_count) == (20, 20)

    torch_steps(params, optimizer, range(20, 40))
    tree, state = optax_steps(own, tree, state, range(20, 40))
    assert_near(tree, to_tree(params), tolerance)

    again, resumed = torch_run(torch_storage, (b1, 0.999))
    resumed.load_state_dict(to_torch(state, resumed.state_dict(), NAMES))
    for name, path in (
        ("layers.0.weight", tree["first"]["w"]),
        ("layers.0.bias", tree["first"]["b"]),
        ("scale", tree["scale"]),
    ):
        again[name].data.copy_(torch.tensor(np.array(path)))
    torch_steps(params, optimizer, range(40, 60))
    torch_steps(again, resumed, range(40, 60))
    assert_near(to_tree(again), to_tree(params), tolerance)
    assert resumed.schedule()[0]["slow_step"] == 60


@pytest.mark.parametrize(("torch_storage", "slow_dtype"), [*STORAGES.items(), ("compact", None), ("fp32", "int16")])
def test_moments_are_carried_over_exactly(torch_storage, slow_dtype):
    params, optimizer = torch_run(torch_storage)
    torch_steps(params, optimizer, range(5))
    tree = to_tree(params)
    state = from_torch(optimizer.state_dict(), ademamix(1e-2, slow_dtype=slow_dtype, **SETTINGS).init(tree), NAMES)
    fresh = AdEMAMix(
        [(n, p) for n, p in params.items()], lr=1e-2, state_storage=torch_storage, foreach=True, **SETTINGS
    )
    fresh.load_state_dict(to_torch(state, fresh.state_dict(), NAMES))
    before, after = optimizer.state[params["layers.0.weight"]], fresh.state[params["layers.0.weight"]]
    assert before.keys() == after.keys()
    # What is kept here in more bits than there is rounded to nearest on its way back.
    rounded = {"compact": ("exp_avg", "exp_avg_sq"), "fp32": ("exp_avg_slow",)}.get(torch_storage, ())
    if (torch_storage, slow_dtype) in {("fp32", None), ("bf16", "bfloat16")}:
        rounded = ()
    for key in before:
        if not key.startswith(rounded or ("nothing",)):
            assert torch.equal(before[key], after[key]), key
    for moment in ("exp_avg", "exp_avg_slow", "exp_avg_sq"):
        exact = torch_storage_of(before, moment)
        assert (torch_storage_of(after, moment) - exact).norm() <= 2e-2 * exact.norm()


def test_a_torch_adamw_run_is_a_switch_and_schedules_go_on():
    params, _ = torch_run()
    adamw = torch.optim.AdamW(params.items(), lr=1e-2)
    torch_steps(params, adamw, range(7))
    optimizer, tree = ademamix(schedule, **SETTINGS), to_tree(params)
    state = from_torch(adamw.state_dict(), optimizer.init(tree), NAMES)
    assert (state[0].count, state[0].slow_count, state[2].count) == (7, 0, 7)
    assert not state[0].slow["first"]["w"].any()
    assert np.array_equal(state[0].mu["first"]["w"], adamw.state[params["layers.0.weight"]]["exp_avg"].numpy())


def test_names_may_be_paths_or_positions():
    params, optimizer = torch_run()
    torch_steps(params, optimizer, range(2))
    own = ademamix(1e-2, **SETTINGS)
    expected = from_torch(optimizer.state_dict(), own.init(to_tree(params)), NAMES)
    by_path = {"layers": {"0": {"weight": 0, "bias": 1}}, "scale": 2}
    flat = list(params.values())
    nested = jax.tree.map(lambda i: jnp.array(flat[i].detach().numpy()), by_path)
    for names in (None, by_path):
        state = from_torch(optimizer.state_dict(), own.init(nested), names)
        assert np.array_equal(state[0].slow["layers"]["0"]["weight"], expected[0].slow["first"]["w"])
    split = optax.multi_transform({"a": own, "b": own}, {"first": {"w": "a", "b": "b"}, "scale": "b"})
    state = from_torch(optimizer.state_dict(), split.init(to_tree(params)), NAMES)
    assert [int(count) for _, count in optax.tree_utils.tree_get_all_with_path(state, "slow_count")] == [2, 2]
    entries = to_torch(state, optimizer.state_dict(), NAMES)["state"]
    assert all(torch.equal(entries[i]["exp_avg_slow"], optimizer.state[p]["exp_avg_slow"]) for i, p in enumerate(flat))


@pytest.mark.parametrize(
    ("wrap", "clocks"),
    [
        (lambda own: optax.MultiSteps(own(schedule), 4), {"gradient_step": 3, "mini_step": 0}),
        (lambda own: optax.inject_hyperparams(own)(schedule), {}),
        (lambda own: optax.MultiSteps(optax.inject_hyperparams(own)(schedule), 2), {"gradient_step": 3}),
        (lambda own: optax.conditionally_transform(own(schedule), lambda step: True), {"step": 3}),
        (lambda own: optax.conditionally_mask(own(schedule), lambda step: True), {"step": 3}),
        (lambda own: optax.apply_if_finite(own(schedule), 3), {"notfinite_count": 0}),
    ],
)
def test_counts_of_wrappers_and_schedules_continue(wrap, clocks):
    params, optimizer = torch_run()
    torch_steps(params, optimizer, range(3))
    tree = to_tree(params)
    wrapped = wrap(lambda learning_rate: ademamix(learning_rate, **SETTINGS))
    state = from_torch(optimizer.state_dict(), wrapped.init(tree), NAMES)
    assert signature(state) == signature(wrapped.init(tree))
    counts = optax.tree_utils.tree_get_all_with_path(state, "count")
    assert len(counts) >= 2
    assert all(count == 3 for _, count in counts)
    for name, expected in clocks.items():
        assert optax.tree_utils.tree_get(state, name) == expected
    wrapped.update(tree, state, tree)


def test_what_from_torch_refuses():
    params, optimizer = torch_run()
    own = ademamix(1e-2, **SETTINGS)
    fresh = own.init(to_tree(params))
    with pytest.raises(ValueError, match=r"has not stepped the parameter 'layers\.0\.\w+'"):
        from_torch(optimizer.state_dict(), fresh, NAMES)
    torch_steps(params, optimizer, range(2))
    saved = optimizer.state_dict()
    with pytest.raises(ValueError, match=r"no parameter 'first\.b', only 'layers.0.weight', 'layers.0.bias', 'scale'"):
        from_torch(saved, fresh)
    with pytest.raises(ValueError, match="names has no entry for the parameter"):
        from_torch(saved, fresh, {"scale": "scale"})
    with pytest.raises(ValueError, match=r"has shape \(96, 64\) here and \(64, 96\) in PyTorch. If it is transposed"):
        from_torch(saved, own.init(jax.tree.map(jnp.transpose, to_tree(params))), NAMES)
    with pytest.raises(ValueError, match="`fresh` has no state of ademamix"):
        from_torch(saved, optax.adamw(1e-2).init(to_tree(params)), NAMES)
    with pytest.raises(ValueError, match="`state` has no state of ademamix"):
        to_torch(optax.adamw(1e-2).init(to_tree(params)), saved, NAMES)
    saved["state"][0]["step"] = torch.tensor(9.0)
    with pytest.raises(ValueError, match=r"different step \(2 to 9\), but a transformation has one clock"):
        from_torch(saved, fresh, NAMES)
    unnamed = AdEMAMix(params.values(), foreach=True, **SETTINGS)
    with pytest.raises(
        ValueError, match=r"has no names of parameters\. Make the optimizer from model\.named_parameters"
    ):
        to_torch(fresh, unnamed.state_dict(), NAMES)
    zero, without = torch_run(betas=(0.0, 0.999))
    torch_steps(zero, without, range(2))
    with pytest.raises(ValueError, match="has no fast average, since its beta1 is 0: also pass b1=0 here"):
        from_torch(without.state_dict(), fresh, NAMES)


def test_complex_parameters_are_refused():
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = AdEMAMix([("w", param)], lr=1e-2, foreach=True, **SETTINGS)
    param.grad = torch.ones_like(param)
    optimizer.step()
    state = ademamix(1e-2, **SETTINGS).init({"w": jnp.ones(3, "complex64")})
    with pytest.raises(TypeError, match=r"the parameter \['w'\] is complex, and its state cannot be converted"):
        from_torch(optimizer.state_dict(), state)
    with pytest.raises(TypeError, match=r"the parameter \['w'\] is complex"):
        to_torch(state, optimizer.state_dict())
