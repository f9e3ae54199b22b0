"""State that someone looked at, annotated or assigned: `optimizer.state` is open to everyone."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch

from ademamix import AdEMAMix
from cases import PATHS, make
from database import assert_same, params_of, run, set_gradients

MOMENTS = ("exp_avg", "exp_avg_slow", "exp_avg_sq")


def look(optimizer, param):
    assert not optimizer.state[param]


def annotate(optimizer, param):
    optimizer.state[param]["note"] = "mine"


def keep_something_else(optimizer, param):
    optimizer.state["global"] = 5


def stepped(optimizer):
    return {param for param, state in optimizer.state.items() if isinstance(state, dict) and state.get("step", 0) > 0}


@pytest.mark.parametrize("touch", [look, annotate, keep_something_else])
def test_touched_state_is_no_state(touch):
    params = params_of((3,), (4,))
    optimizer = make(params)
    run(params[1:], optimizer)
    touch(optimizer, params[0])
    assert optimizer.schedule()[0]["step"] == 5
    assert optimizer.diagnostics()[0]["m1_norm"] > 0
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.reset_slow()
    assert optimizer.schedule()[0]["slow_step"] == 0
    adamw = optimizer.to_adamw()
    assert stepped(adamw) == {params[1]}
    touch(adamw, params[0])
    back = AdEMAMix.from_adamw(adamw, total_steps=100)
    assert stepped(back) == {params[1]}
    run(params, back, range(5, 7))
    assert [back.state[param]["step"].item() for param in params] == [2, 7]


@pytest.mark.parametrize("path", PATHS)
def test_to_adamw_steps_whatever_the_path_and_the_dtype_were(path):
    params = [*params_of((3, 2), dtype=torch.complex64), *params_of((4,))]
    for given in (params, [{"params": [param]} for param in params]):
        optimizer = make(given, **PATHS[path])
        run(params, optimizer, range(2))
        adamw = optimizer.to_adamw()
        run(params, adamw, range(2, 4))
        assert [adamw.state[param]["step"].item() for param in params] == [4, 4]


def to_double(value):
    return value.double()


def to_bf16(value):
    return value.to(torch.bfloat16)


def transposed(value):
    return value.t().contiguous().t()


@pytest.mark.parametrize("change", [to_double, to_bf16, transposed])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("path", PATHS)
def test_an_assigned_moment_is_brought_into_form(path, moment, change):
    """The values are taken; a kernel that believed the dtype or the layout of before would read something else."""
    params, expected = params_of((4, 3), (5,)), params_of((4, 3), (5,))
    optimizer, reference = make(params, **PATHS[path]), make(expected, **PATHS[path])
    run(params, optimizer)
    run(expected, reference)
    assigned = change(optimizer.state[params[0]][moment])
    optimizer.state[params[0]][moment] = assigned
    reference.state[expected[0]][moment].copy_(assigned)
    run(params, optimizer, range(5, 7))
    run(expected, reference, range(5, 7))
    assert_same(params, expected)
    assert optimizer.state[params[0]][moment].dtype == torch.float32


@pytest.mark.parametrize("when", ["replaced", "deleted first"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("path", PATHS)
def test_an_assigned_moment_of_another_size_is_refused(path, moment, when):
    params = params_of((400, 3), (5,))
    optimizer = make([{"params": [param]} for param in params], **PATHS[path])
    run(params, optimizer)
    if when == "deleted first":  # the new tensor may then have the identity of the old one
        del optimizer.state[params[0]][moment]
    optimizer.state[params[0]][moment] = torch.zeros(1)
    before = copy.deepcopy(params)
    set_gradients(params, 5)
    with pytest.raises(ValueError, match=rf"{moment} has shape \(1,\)"):
        optimizer.step()
    assert_same(params, before)
    assert optimizer.state[params[1]]["step"] == 5


@pytest.mark.parametrize("path", PATHS)
def test_a_clock_may_be_assigned_as_a_number(path):
    (param,), (expected,) = params_of((3,)), params_of((3,))
    optimizer, reference = make([param], **PATHS[path]), make([expected], **PATHS[path])
    run([param], optimizer)
    run([expected], reference)
    optimizer.state[param]["step"] = 5
    run([param], optimizer, [5])
    run([expected], reference, [5])
    assert_same(param, expected)
    assert_same(optimizer.state[param], reference.state[expected])


def test_a_deleted_second_moment_is_missed():
    (param,) = params_of((3,))
    optimizer = make([param])
    run([param], optimizer)
    del optimizer.state[param]["exp_avg_sq"]
    with pytest.raises(ValueError, match="has no exp_avg_sq"):
        optimizer.step()


def test_state_that_was_cleared_is_freed():
    (param,) = params_of((3,))
    optimizer = make([param])
    run([param], optimizer)
    moments = [weakref.ref(optimizer.state[param][moment]) for moment in MOMENTS]
    optimizer.state.clear()
    gc.collect()
    assert [moment() for moment in moments] == [None] * 3
