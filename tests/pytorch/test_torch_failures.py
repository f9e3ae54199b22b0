"""What AdEMAMix refuses: with a message that says what to do, and losing nothing of what it has."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ademamix.pytorch import gathering
from ademamix.pytorch import step as step_module
from ademamix.pytorch.storage import MOMENT_DTYPES
from cases import PATHS, make, oracle_of, relative_error
from database import assert_same, params_of, run, set_gradients

MOMENTS = ("exp_avg", "exp_avg_slow", "exp_avg_sq")
every_path = pytest.mark.parametrize("path", PATHS)


def give_room(state):
    """Let each moment be followed by memory of its own, so that a kernel that runs past its end breaks nothing else."""
    rooms = []
    for name in MOMENTS:
        rooms.append(torch.zeros(64 + 8 * state[name].numel(), dtype=state[name].dtype))
        state[name] = rooms[-1][: state[name].numel()].copy_(state[name].flatten()).view(state[name].shape)
    return rooms


def plain_gradient(param):
    param.grad = torch.ones_like(param)


def sparse_gradient(param):
    param.grad = torch.sparse_coo_tensor([[0, 2]], torch.ones(2), (4,), check_invariants=True)


def gradient_of_dtype(dtype):
    def set_gradient(param):
        param.grad_dtype = None  # any
        room = torch.ones(64)  # for a kernel that takes a real gradient for a complex one
        param.grad = room[: param.numel()].view(param.shape).to(dtype)

    return set_gradient


def resize(param):
    param.data, param.grad = torch.ones(16), None
    param.grad = torch.ones(16)


# Values of the parameter, what goes wrong, what the message says, whether fused=True refuses it at construction.
FAILURES = {
    "sparse gradient": (torch.ones(4), sparse_gradient, "sparse=False in the embedding", False),
    "int32": (torch.ones(4).int(), plain_gradient, "int32.*Keep a copy|no fused kernel for torch.int32", True),
    "float8": (
        torch.ones(4).to(torch.float8_e5m2),
        plain_gradient,
        "float8_e5m2.*(Keep a copy|leave `fused` out)",
        True,
    ),
    "meta": (torch.ones(4, device="meta"), plain_gradient, "to_empty|no fused kernel for device 'meta'", True),
    "expanded": (torch.ones(1).expand(4), plain_gradient, "share memory.*contiguous", False),
    "overlapping": (torch.ones(9).as_strided((4, 4), (1, 1)), plain_gradient, "share memory.*contiguous", False),
    "float8 gradient": (torch.ones(4), gradient_of_dtype(torch.float8_e5m2), "gradient.*float8_e5m2", False),
    "int32 gradient": (torch.ones(4), gradient_of_dtype(torch.int32), "gradient.*int32", False),
    "complex gradient": (torch.ones(4), gradient_of_dtype(torch.complex64), "gradient.*complex64", False),
    "real gradient": (torch.ones(4).cfloat(), gradient_of_dtype(torch.float32), "gradient.*float32", False),
    "resized": (torch.ones(4), resize, r"shape \(4,\).*\(16,\)", False),
}


@pytest.mark.parametrize("hip", [None, "6.4.43482"])
def test_fused_is_the_same_kernel_on_every_gpu(monkeypatch, hip):
    """torch calls AMD's GPUs CUDA as well; without Triton, both say that it is missing."""
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(step_module, "has_triton", False)
    with FakeTensorMode(), pytest.raises(RuntimeError, match="on a GPU it needs Triton"):
        make([torch.ones(3, device="cuda", requires_grad=True)], fused=True)


@pytest.mark.parametrize("when", ["at first", "later"])
@pytest.mark.parametrize("failure", FAILURES)
@every_path
def test_a_failed_step_loses_nothing(path, failure, when):
    values, break_it, message, refused_at_once = FAILURES[failure]
    bad = values.detach() if values.is_meta or not values.is_contiguous() else values.clone()
    params, expected = params_of((4, 3), (5,), (2,)), params_of((4, 3), (5,), (2,))
    groups = [{"params": [params[0]]}, {"params": [params[1], bad]}, {"params": [params[2]]}]
    if refused_at_once and "fused" in path:
        optimizer = make(groups[:1], **PATHS[path])
        with pytest.raises(RuntimeError, match=message):
            optimizer.add_param_group(groups[1])
        assert len(optimizer.param_groups) == 1
        return
    optimizer, reference = make(groups, **PATHS[path]), make(expected, **PATHS[path])
    if failure == "resized":
        run([bad], optimizer, [0])
        give_room(optimizer.state[bad])
        bad.grad = None
    if when == "later":
        run(params, optimizer, range(2))
        run(expected, reference, range(2))
    before = copy.deepcopy((params, optimizer.state_dict()))
    break_it(bad)
    set_gradients(params, 2)
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        optimizer.step()
    if when == "later":
        assert_same((params, optimizer.state_dict()), before)
    bad.grad = None
    run(params, optimizer, range(2, 5))
    run(expected, reference, range(2, 5))
    assert_same(params, expected)
    for param, other in zip(params, expected, strict=True):
        assert_same(optimizer.state[param], reference.state[other])


def test_a_differentiable_step_on_a_leaf_loses_nothing():
    (param,) = params_of((3,))
    optimizer = make([param], differentiable=True)
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="leaf"):
        optimizer.step()
    assert_same(param, params_of((3,))[0])
    assert not optimizer.state or not any(value.any() for value in optimizer.state[param].values())


def test_a_fused_checkpoint_without_the_core_loses_nothing(monkeypatch):
    (param,) = params_of((3,))
    fused, optimizer = make([param], fused=True), make([param], foreach=True)
    run([param], fused)
    monkeypatch.setattr(step_module, "core", None)
    monkeypatch.setattr(gathering, "core", None)
    monkeypatch.setattr(step_module, "missing_core", "the C++ core is not there")
    optimizer.load_state_dict(copy.deepcopy(fused.state_dict()))
    before = copy.deepcopy((param, optimizer.state_dict()))
    if optimizer.param_groups[0]["fused"]:  # as torch does: a loaded group has the flags of the checkpoint
        with pytest.raises(RuntimeError, match="the C\\+\\+ core is not there"):
            optimizer.step()
        assert_same((param, optimizer.state_dict()), before)
    else:
        optimizer.step()
        assert optimizer.state[param]["step"] == 6


CONVERSIONS = [
    (torch.float32, torch.float64),
    (torch.float32, torch.bfloat16),
    (torch.float64, torch.float32),
    (torch.bfloat16, torch.float32),
]


@pytest.mark.parametrize(("dtype", "later"), CONVERSIONS, ids=str)
@every_path
def test_a_model_converted_to_another_dtype_goes_on(path, dtype, later):
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3).to(dtype)
    param = model.weight
    optimizer = make([param], total_steps=1000, **PATHS[path])
    oracle = oracle_of(param.detach().double().numpy(), optimizer)
    for step in range(8):
        if step == 4:
            rooms = give_room(optimizer.state[param])
            model.to(later)
            assert model.weight is param
            oracle.theta = param.detach().double().numpy().copy()
        set_gradients([param], step)
        oracle.update(param.grad.double().numpy())
        optimizer.step()
    state = optimizer.state[param]
    assert not any(room[param.numel() :].any() for room in rooms)
    assert {state[name].dtype for name in MOMENTS} == {MOMENT_DTYPES[later]}
    for name, moment in zip(MOMENTS, (oracle.m1, oracle.m2, oracle.nu), strict=True):
        assert relative_error(state[name].double(), moment) < 1e-6
    assert relative_error(param.double(), oracle.theta) < (1e-2 if later == torch.bfloat16 else 1e-6)
