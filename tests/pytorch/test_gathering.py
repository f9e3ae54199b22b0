"""What the core gathers for a step in one call, held against gathering one by one."""

from __future__ import annotations

import math

import pytest
import torch

from ademamix import formats
from ademamix.pytorch import gathering
from ademamix.pytorch.core import core, reader
from ademamix.pytorch.parameter_state import Kind, form_of, kind_of, kinds_in
from cases import make
from database import assert_same, params_of, run, set_gradients

SETTINGS = {
    "plain": {},
    "bf16": {"state_storage": "bf16"},
    "compact": {"state_storage": "compact"},
    "without m1": {"betas": (0.0, 0.999), "state_storage": "compact"},
    "skip": {"nonfinite": "skip"},
    "masters": {"master": "24bit", "state_storage": "compact"},
    "maximize": {"maximize": True, "fused": True},
    "lr as a tensor": {"lr": torch.tensor(1e-3)},
}
SHAPES = [(), (0,), (3,), (80, 64), (63, 100), (2, 3, 4), (2, 40, 60), (1 << 17,), (5, 0)]
PLAIN = Kind(reduced=False, corrected=False)


def gather(optimizer, kind=PLAIN, group=0):
    lists = gathering.empty_lists()
    return gathering.gather(optimizer.param_groups[group], kind, 7, optimizer.state, lists), lists


def trained(**settings):
    params = params_of((4, 3), (5,))
    optimizer = make(params, **settings)
    run(params, optimizer)
    set_gradients(params, 5)
    return optimizer, params


def mixed_params():
    return [*params_of(*SHAPES), *params_of(*SHAPES, dtype=torch.bfloat16), *params_of((70, 70), dtype=torch.float64)]


@pytest.mark.parametrize("settings", SETTINGS)
def test_steps_have_the_bits_of_gathering_one_by_one(settings, monkeypatch):
    results = []
    for is_quick in (True, False):
        with monkeypatch.context() as patch:
            if not is_quick:
                patch.setattr(gathering, "core", None)
            params = mixed_params()
            optimizer = make([{"params": params[::2]}, {"params": params[1::2]}], **SETTINGS[settings])
            for step in range(4):
                set_gradients(params, step)
                params[3 + step].grad = None  # clocks come apart
                optimizer.step()
            set_gradients(params, 4)
            found = [gather(optimizer, kind, i)[0] for i in (0, 1) for kind in kinds_in(optimizer.param_groups[i])]
            assert all((addresses is not None) == is_quick for addresses in found)
            results.append((params, [optimizer.state[param] for param in params]))
    assert_same(*results)


@pytest.mark.parametrize("settings", SETTINGS)
def test_lists_are_those_of_gathering_one_by_one(settings, monkeypatch):
    params = mixed_params()
    optimizer = make(params, **SETTINGS[settings])
    run(params, optimizer, range(2))
    params[4].grad = None
    optimizer.state = {param: optimizer.state[param] for param in reversed(params)}  # in another order
    for kind in kinds_in(optimizer.param_groups[0]):
        quick, lists = gather(optimizer, kind)
        with monkeypatch.context() as patch:
            patch.setattr(gathering, "core", None)
            slow, expected = gather(optimizer, kind)
        assert quick is not None
        assert slow is None
        assert [[*map(id, own)] for own in lists] == [[*map(id, own)] for own in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_core_tells_kinds_as_python_does(dtype):
    rows = formats.LEAST_SIZE // formats.LEAST_ROW
    shapes = [(formats.LEAST_VECTOR,), (formats.LEAST_VECTOR - 1,), (rows, formats.LEAST_ROW), (rows - 1, 64)]
    shapes += [(2 * rows, formats.LEAST_ROW - 1), (1, formats.LEAST_SIZE), (1, formats.LEAST_SIZE - 1), (2, 32, 64)]
    params = params_of(*shapes, dtype=dtype)
    optimizer = make(params, state_storage="bf16", master="24bit")
    run(params, optimizer, range(1))
    (group,) = optimizer.param_groups
    found = {kind: gather(optimizer, kind) for kind in kinds_in(group)}
    assert all(addresses is not None for addresses, _ in found.values())
    for index, param in enumerate(params, start=7):
        assert [kind for kind, (_, lists) in found.items() if index in lists[2]] == [kind_of(param, group)]


def without_a_moment(optimizer, param):
    del optimizer.state[param]["exp_avg_slow"]


def with_a_moment_of_another_shape(optimizer, param):
    optimizer.state[param]["exp_avg_sq"] = torch.zeros(12)


def with_a_moment_without_memory(optimizer, param):
    optimizer.state[param]["exp_avg"].untyped_storage().resize_(0)


def with_a_correction(optimizer, param):
    optimizer.state[param]["correction"] = torch.zeros(4, 3, dtype=torch.int8)


def with_a_clock_in_double(optimizer, param):
    optimizer.state[param]["step"] = optimizer.state[param]["step"].double()


def with_a_list_for_state(optimizer, param):
    optimizer.state[param] = []


def without_state(optimizer, param):
    del optimizer.state[param]


def with_a_negated_gradient(optimizer, param):
    param.grad = torch.ones(4, 3, dtype=torch.complex64).conj().imag


def with_a_strided_parameter(optimizer, param):
    param.data = torch.ones(3, 4).t()


@pytest.mark.parametrize(
    "change",
    [
        without_a_moment,
        with_a_moment_of_another_shape,
        with_a_moment_without_memory,
        with_a_correction,
        with_a_clock_in_double,
        with_a_list_for_state,
        without_state,
        with_a_negated_gradient,
        with_a_strided_parameter,
    ],
)
@pytest.mark.parametrize("position", [0, 1])
def test_the_core_takes_nothing_that_does_not_fit(change, position):
    params = params_of((4, 3), (4, 3))
    optimizer = make(params)
    run(params, optimizer)
    layout, rest = form_of(None, has_fast=True, skips=False).layout, (0, (False, False))

    def found(lists):
        return core.gather(layout, params, optimizer.state, *rest, lists, reader)

    assert found(gathering.empty_lists()) is not None
    change(optimizer, params[position])
    lists = gathering.empty_lists()
    assert found(lists) is None
    assert not any(lists)


@pytest.mark.parametrize("settings", [{"foreach": True}, {"fused": False}, {"capturable": True}])
def test_other_bodies_take_lists(settings):
    addresses, lists = gather(trained(**settings)[0])
    assert addresses is None
    assert len(lists[2]) == 2


def test_strided_gradients_are_copied():
    optimizer, params = trained()
    assert gather(optimizer)[0] is not None
    params[0].grad = torch.ones(3, 4).t()
    assert gather(optimizer)[0] is None


def test_a_late_m1_has_coefficients_of_its_own():
    optimizer, _ = trained(betas=(0.0, 0.999))
    optimizer.param_groups[0]["betas"] = (0.9, *optimizer.param_groups[0]["betas"][1:])
    optimizer.step()
    addresses, (late, starts, *_) = gather(optimizer)
    assert addresses is None
    assert late == [0, 1]
    assert [start.item() for start in starts] == [5, 5]


def test_addresses_that_do_not_suffice_are_refused():
    optimizer, params = trained()
    params[0].grad = torch.ones(3, 4).t()
    layout = form_of(None, has_fast=True, skips=False).layout
    lists = gathering.empty_lists()
    addresses = core.gather(layout, params, optimizer.state, 0, (False, False), lists, reader)
    options = core.Options(gradient_factor=1.0, stochastic_rounding=True, rounding_seed=0, threads=1)
    with pytest.raises(ValueError, match="needs more"):
        core.step_at(addresses, [(0.0,) * 9], options)
    addresses, _ = gather(trained()[0])
    with pytest.raises(IndexError):
        core.step_at(addresses, [], options)


def test_distinct_clocks_are_found_once_each():
    steps = [torch.tensor(step) for step in (3.0, 3.0, math.nan, 5.0, 3.0, math.nan)]
    slow_steps = [torch.tensor(step) for step in (3.0, 1.0, 0.0, 3.0, 3.0, 0.0)]
    clocks = core.Clocks(steps, slow_steps, reader)
    assert str(clocks.distinct) == "[(4.0, 4.0), (4.0, 2.0), (nan, 1.0), (6.0, 4.0)]"
    assert clocks.positions == [0, 1, 2, 3, 0, 2]
    clocks.advance()
    assert [steps[0].item(), slow_steps[1].item()] == [4, 2]
    with pytest.raises(ValueError, match="lengths"):
        core.Clocks(steps, [], reader)


def test_a_layout_names_all_that_a_storage_needs():
    names = ["exp_avg", "exp_avg_slow", "exp_avg_sq", None, None, None, None, None, "step", "slow_step"]
    core.StateLayout("bf16", names, [], "fast_start")
    for storage, own in (("compact", names), ("fp32", [None] * 10), ("fp32", names[1:]), ("int4", names)):
        with pytest.raises(ValueError, match=r"lacks a column|number of columns|storage of this name"):
            core.StateLayout(storage, own, [], "fast_start")
