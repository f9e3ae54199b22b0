"""AdamW's entry of torch's optimizer test database: errors, right direction, settings, paths, dtypes."""

from __future__ import annotations

import warnings
from unittest import mock

import pytest
import torch
from torch.nn import Parameter
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.testing import assert_close
from torch.testing._internal.common_optimizers import OptimizerErrorEnum

import database
from ademamix import AdEMAMix
from ademamix.pytorch import step
from database import (
    OURS,
    assert_same,
    build,
    closure_for,
    difference,
    every_base,
    every_input,
    model,
    parameters,
    random_like,
    run,
    set_gradients,
)


def test_nothing_of_the_entry_is_left_out():
    listed = {entry.desc for entry in database.LISTED}
    assert {entry.desc for entry in database.OFFICIAL_ON_CPU} <= listed
    assert all(any(word in description for description in listed) for word in database.EXCLUDED_INPUTS)
    assert len(database.INPUTS) == 5 * len(database.BASES) == 35
    failing = {error.optimizer_error_input.desc for error in database.ERRORS}
    assert {*database.OUR_WORDS, *database.ACCEPTED_ERRORS} <= failing
    assert set(OURS.supported_impls) == {"foreach", "fused", "differentiable"}
    assert OURS.has_capturable_arg
    assert OURS.supports_complex
    assert OURS.supports_param_groups


@pytest.mark.parametrize("entry", database.EXCLUDED)
def test_excluded_inputs_are_refused(entry):
    matching = [refusal for word, refusal in database.EXCLUDED_INPUTS.items() if word in entry.desc]
    error, message, _reason = matching[0]
    with pytest.raises(error, match=message):
        build([Parameter(torch.ones(2))], entry.kwargs)


@pytest.mark.parametrize("error", database.ERRORS, ids=lambda error: error.optimizer_error_input.desc)
def test_errors(error):
    entry = error.optimizer_error_input
    if entry.desc in database.ACCEPTED_ERRORS:
        params = [Parameter(torch.ones(3))]
        run(params, build(params, entry.kwargs))
        assert not params[0].eq(1).any()
        return
    assert error.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    params = [Parameter(torch.ones(1))] if entry.params is None else entry.params
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error.error_type, match=database.OUR_WORDS.get(entry.desc, error.error_regex)):
            build(params, entry.kwargs)


@every_input
def test_without_a_horizon_it_warns(kwargs):
    with pytest.warns(UserWarning, match=r"no horizon.*total_steps="):
        AdEMAMix([Parameter(torch.ones(2))], **kwargs)


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@pytest.mark.parametrize("schedulers", [(), *OURS.scheduler_inputs], ids=["plain", "scheduled"])
@every_input
def test_goes_in_the_right_direction(kwargs, schedulers, strided):
    *starts, loss = model()
    params = [torch.stack([s, s], dim=-1)[..., 0] if strided else s.clone() for s in starts]
    params = [param.requires_grad_(not kwargs.get("differentiable", False)) for param in params]
    assert params[0].is_contiguous() is not strided
    groups = [{"params": params[0]}, {"params": params[1], "lr": 0.01}] if schedulers else params
    optimizer = build(groups, kwargs)
    attached = [constructor(optimizer) for constructor in schedulers]
    closure = closure_for(params, loss)
    values = []
    for _ in range(20):
        values.append(optimizer.step(closure))
        for scheduler in attached:
            scheduler.step(*([values[-1]] if isinstance(scheduler, ReduceLROnPlateau) else []))
    assert values == sorted(values, reverse=not kwargs.get("maximize", False))
    assert values[0] != values[-1]


GROUP_SETTINGS = {
    "lr": {"lr": 2e-2},
    "tensor-lr": {"lr": torch.tensor(2e-2)},
    "weight_decay": {"weight_decay": 0.3},
    "no-weight_decay": {"weight_decay": 0.0},
    "betas": {"betas": (0.5, 0.9, 0.95)},
    "no-beta1": {"betas": (0.0, 0.99, 0.95)},
    "alpha": {"alpha": 1.0},
    "schedule": {"alpha_warmup": 8, "beta3_warmup": 6, "beta3_start": 0.2},
    "horizon": {"total_steps": 1000, "alpha_warmup": None, "beta3_warmup": None},
    "eps": {"eps": 1e-2},
    "direction": {"maximize": None},
}


@pytest.mark.parametrize("setting", GROUP_SETTINGS)
@every_input
def test_a_group_with_its_own_settings_goes_as_an_optimizer_of_its_own(kwargs, setting):
    own = GROUP_SETTINGS[setting]
    if setting == "direction":
        own = {"maximize": not kwargs.get("maximize", False)}
    weight, bias, _ = model()
    together, apart, plain = (parameters(kwargs, weight, bias) for _ in range(3))
    run(together, build([{"params": together[0]}, {"params": together[1], **own}], kwargs))
    optimizers = [build(apart[:1], kwargs), build(apart[1:], kwargs, **own)]
    for seed in range(5):
        set_gradients(apart, seed)
        for optimizer in optimizers:
            optimizer.step()
    assert_same(together, apart)
    run(plain, build(plain, kwargs))
    assert torch.equal(together[0], plain[0])
    assert not torch.equal(together[1], plain[1])


@pytest.mark.parametrize("dims", [0, 1, 2])
@every_input
def test_tensor_lr(kwargs, dims):
    lr = torch.full((1,) * dims, 3e-3)
    weight, bias, _ = model(torch.float64)
    params, expected = (parameters(kwargs, weight, bias) for _ in range(2))
    optimizer, reference = build(params, kwargs, lr=lr), build(expected, kwargs, lr=lr.item())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for seed in range(5):
        run(params, optimizer, [seed])
        run(expected, reference, [seed])
        scheduler.step()
        reference.param_groups[0]["lr"] = lr.item()  # what the scheduler has made of it, in fp32
    assert optimizer.param_groups[0]["lr"] is lr  # written into, as captured graphs need
    assert lr.item() < 2e-3
    assert difference(params[0], expected[0]) < 1e-12
    assert difference(params[1], expected[1]) < 1e-12


# By how much two paths may differ. A bf16 or fp16 parameter may now and then be rounded to the other side; its moments,
# which are fp32, have no such excuse.
TOLERANCES = {
    torch.float32: 3e-7,
    torch.float64: 1e-14,
    torch.bfloat16: 2e-4,
    torch.float16: 2e-4,
    torch.complex64: 3e-7,
    torch.complex128: 1e-14,
}
MOMENT_TOLERANCES = {**TOLERANCES, torch.bfloat16: 3e-7, torch.float16: 3e-7}
DTYPES = {str(dtype).removeprefix("torch."): (dtype,) for dtype in TOLERANCES} | {"mixed": tuple(TOLERANCES)}
SHAPES = [(10, 5), (), (0, 2), (3, 87)]
PATHS = {
    "own choice": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "single capturable": {"foreach": False, "capturable": True},
    "foreach capturable": {"foreach": True, "capturable": True},
    "fused capturable": {"fused": True, "capturable": True},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtypes", DTYPES)
@every_base
def test_every_path_matches_the_for_loop(kwargs, dtypes, path):
    runs = []
    for flags in ({"foreach": False, "fused": False, "capturable": False}, PATHS[path]):
        generator = torch.Generator().manual_seed(3)
        starts = [random_like(shape, dtype, generator) for dtype in DTYPES[dtypes] for shape in SHAPES]
        params = parameters({}, *starts)
        optimizer = build(params, kwargs, **flags)
        for seed in range(7):
            set_gradients(params, seed)
            if seed == 3:  # as in torch's own check: one has no gradient once, and falls behind by a step
                params[0].grad = None
            optimizer.step()
        runs.append([(param, optimizer.state[param]) for param in params])
    for (expected, expected_state), (param, state) in zip(*runs, strict=True):
        assert difference(param, expected) <= TOLERANCES[param.dtype]
        assert state.keys() == expected_state.keys()
        for name in state:
            assert difference(state[name], expected_state[name]) <= MOMENT_TOLERANCES[param.dtype], name


@every_input
def test_default_dtype_does_not_matter(kwargs):
    weight, bias, _ = model()
    params, expected = (parameters(kwargs, weight, bias) for _ in range(2))
    run(expected, build(expected, kwargs))
    try:
        torch.set_default_dtype(torch.float64)
        optimizer = build(params, kwargs)
        run(params, optimizer)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(params, expected)
    assert {value.dtype for state in optimizer.state.values() for value in state.values()} == {torch.float32}


@every_input
def test_complex_is_a_pair_of_reals(kwargs):
    start = random_like((7, 3), torch.complex64, torch.Generator().manual_seed(0))
    whole, pairs = parameters(kwargs, start), parameters(kwargs, torch.view_as_real(start))
    optimizer, pairs_optimizer = build(whole, kwargs), build(pairs, kwargs)
    for seed in range(5):
        set_gradients(whole, seed)
        pairs[0].grad = torch.view_as_real(whole[0].grad).clone()
        optimizer.step()
        pairs_optimizer.step()
    assert_same(torch.view_as_real(whole[0]), pairs[0])


@every_input
def test_complex_2d(kwargs):
    start = torch.tensor([0.3 - 1.2j, -0.4 + 0.7j])
    whole, parts = parameters(kwargs, start), parameters(kwargs, start.real, start.imag)

    def rosenbrock(z):
        x, y = z
        return ((1 - x) ** 2 + 100 * (y - x**2) ** 2).abs()

    optimizer, parts_optimizer = build(whole, kwargs), build(parts, kwargs)
    for _ in range(10):
        optimizer.step(closure_for(whole, rosenbrock))
        parts_optimizer.step(closure_for(parts, lambda real, imag: rosenbrock(torch.complex(real, imag))))
        assert_close(torch.view_as_real(whole[0]), torch.stack(parts, dim=-1), rtol=1e-6, atol=0)


@every_input
def test_without_gradients_nothing_happens(kwargs):
    weight, bias, _ = model()
    params = parameters(kwargs, weight, bias)
    optimizer = build(params, kwargs)
    optimizer.step()
    assert torch.equal(params[0], weight)
    assert torch.equal(params[1], bias)
    assert not optimizer.state


@every_input
def test_zero_gradients_leave_weight_decay_alone(kwargs):
    weight, *_ = model(torch.float64)
    for settings in ({}, {"weight_decay": 0.0}):
        params = parameters(kwargs, weight)
        optimizer = build(params, kwargs, **settings)
        for _ in range(3):
            params[0].grad = torch.zeros_like(weight)
            optimizer.step()
        group = optimizer.param_groups[0]
        expected = weight * (1 - float(group["lr"]) * group["weight_decay"]) ** 3
        assert difference(params[0], expected) < 1e-14
        assert torch.equal(params[0], weight) == bool(settings)


class Tagged(Parameter):
    """A parameter of a type that a kernel behind torch's back must not touch."""


CHOICES = {  # the body that is chosen if none is asked for
    "plain": ({}, torch.ones(3), "cpu"),
    "complex": ({}, torch.ones(3, dtype=torch.complex64), "cpu"),
    "differentiable": ({"differentiable": True}, torch.ones(3), "single"),
    "subclass": ({}, Tagged(torch.ones(3)), "single"),
    "foreach=False": ({"foreach": False}, torch.ones(3), "single"),
    "fused=False": ({"fused": False}, torch.ones(3), "single"),
}


@pytest.mark.parametrize("case", CHOICES)
def test_own_choice_of_path(case):
    kwargs, param, expected = CHOICES[case]
    bodies = ("single", "foreach", "cpu", "triton", "operator")
    with mock.patch.multiple(step, **{f"step_{name}": mock.DEFAULT for name in bodies}) as body:
        run([param], build([param], kwargs), [0])
    assert [name for name in body if body[name].update.called] == [f"step_{expected}"]
