"""What tensors may be like: gradients of another dtype, memory layouts, threads, surroundings."""

from __future__ import annotations

import contextlib
import copy
import itertools

import pytest
import torch
from torch import Tensor

from ademamix.pytorch.coefficients import Settings
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.step import Flags, ademamix_step
from ademamix.pytorch.storage import MOMENT_DTYPES
from ademamix.pytorch.tensors import Place, Tensors
from cases import PATHS, make
from database import assert_same, difference, params_of, random_like, run, set_gradients

every_path = pytest.mark.parametrize("path", PATHS)


REAL = [dtype for dtype in MOMENT_DTYPES if not dtype.is_complex]
GRADIENT_DTYPES = [*itertools.permutations(REAL, 2), *itertools.permutations((torch.complex64, torch.complex128))]


def moments_after_two_steps(dtype, grads, path, grad_scale=None):
    """Call the function behind the class, for a parameter of `dtype` and gradients of their own dtype."""
    param, moment = torch.ones(grads[0].shape, dtype=dtype), MOMENT_DTYPES[dtype]
    moments = [torch.zeros(grads[0].shape, dtype=moment) for _ in range(3)]
    state = dict(zip(("fasts", "slows", "squares"), ([tensor] for tensor in moments), strict=True))
    state |= {"steps": [torch.zeros(())], "slow_steps": [torch.zeros(())]}
    settings = Settings(1e-2, (0.9, 0.999, 0.99), 5.0, 0, 0, beta3_start=0.9, eps=1e-8, weight_decay=1e-2)
    flags = Flags(maximize=True, **PATHS[path])
    for grad in grads:
        before = grad.clone()
        tensors = Tensors.none()._replace(places=[Place(0)], params=[param], grads=[grad], **state)
        ademamix_step(tensors, settings, Rounding(0, True), flags, grad_scale=grad_scale)
        assert_same(grad, before)
    assert param.ne(1).any()
    return moments


@pytest.mark.parametrize(("dtype", "grad_dtype"), GRADIENT_DTYPES, ids=str)
@every_path
def test_gradients_of_another_dtype_are_not_rounded_to_that_of_the_parameter(dtype, grad_dtype, path):
    generator = torch.Generator().manual_seed(0)
    grads = [random_like((5, 33), grad_dtype, generator) for _ in range(2)]
    moment = MOMENT_DTYPES[dtype]
    expected = moments_after_two_steps(moment, [grad.to(moment) for grad in grads], path)
    assert_same(moments_after_two_steps(dtype, grads, path), expected)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@every_path
def test_grad_scale_keeps_what_scaling_has_saved_from_underflow(dtype, path):
    generator = torch.Generator().manual_seed(0)
    grads = [random_like((65,), dtype, generator) for _ in range(2)]
    scale = torch.tensor(2.0**20)
    moment = MOMENT_DTYPES[dtype]
    expected = moments_after_two_steps(moment, [grad.to(moment) / scale for grad in grads], path)
    assert_same(moments_after_two_steps(dtype, grads, path, grad_scale=scale), expected)


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="this torch has no Tensor.grad_dtype")
@every_path
def test_backward_into_gradients_of_another_dtype(path):
    params = params_of((4, 3), (5,))
    optimizer = make(params, **PATHS[path])
    for param in params:
        param.grad_dtype = torch.bfloat16
        (param * torch.full_like(param, 1.001)).sum().backward()
        assert param.grad.dtype == torch.bfloat16
    optimizer.step()
    for param in params:
        assert_same(optimizer.state[param]["exp_avg"], torch.full_like(param, 1.0).mul(0.1))


def lazily_conjugated(grad):
    return torch.conj_physical(grad).conj()


def lazily_negated(grad):
    return torch._neg_view(-grad)


# Gradients whose memory is not their value. Autograd makes such: w.conj().backward(...) a conjugated one of w, and
# (torch.complex(a, b).conj() * c).real.backward() a negated one of a 0-dim b.
@pytest.mark.parametrize(("lazy", "dtype"), [(lazily_conjugated, torch.complex64), (lazily_negated, torch.float32)])
@every_path
def test_lazy_gradients(lazy, dtype, path):
    params, expected = (params_of((4, 3), (), dtype=dtype) for _ in range(2))
    optimizer, reference = make(params, **PATHS[path]), make(expected, **PATHS[path])
    for seed in range(3):
        set_gradients(expected, seed)
        reference.step()
        for param, other in zip(params, expected, strict=True):
            param.grad = lazy(other.grad)
            assert param.grad.is_conj() or param.grad.is_neg()
            assert torch.equal(param.grad, other.grad)
        optimizer.step()
    assert_same(params, expected)


def with_gaps(tensor):
    return torch.stack([tensor, torch.full_like(tensor, 7.0)], dim=-1)[..., 0]


LAYOUTS = {
    "0-dim": ((), torch.clone),
    "empty": ((3, 0, 2), torch.clone),
    "empty view": ((4, 0), lambda tensor: torch.empty(4, 5, dtype=tensor.dtype)[:, :0]),
    "transposed": ((6, 35), lambda tensor: tensor.t().contiguous().t()),
    "permuted": ((3, 4, 5), lambda tensor: tensor.permute(2, 0, 1).contiguous().permute(1, 2, 0)),
    "gaps": ((6, 35), with_gaps),
    "gaps, transposed": ((6, 35), lambda tensor: with_gaps(tensor.t()).t()),
    "one element of many": ((1, 1), lambda tensor: tensor.expand(9, 9).clone()[3:4, 4:5]),
    "channels_last": ((2, 3, 4, 5), lambda tensor: tensor.to(memory_format=torch.channels_last)),
    "channels_last_3d": ((2, 3, 4, 5, 2), lambda tensor: tensor.to(memory_format=torch.channels_last_3d)),
}


@pytest.mark.parametrize("alike", [True, False], ids=["gradients alike", "gradients contiguous"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.complex64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@every_path
def test_layout_does_not_matter(path, layout, dtype, alike):
    shape, lay_out = LAYOUTS[layout]
    params, expected = params_of(shape, (5,), dtype=dtype), params_of(shape, (5,), dtype=dtype)
    params[0] = lay_out(params[0].detach()).requires_grad_()
    assert params[0].is_leaf
    optimizer, reference = make(params, **PATHS[path]), make(expected, **PATHS[path])
    for seed in range(3):
        set_gradients(params, seed)
        if alike:
            params[0].grad = lay_out(params[0].grad)
        optimizer.step()
        run(expected, reference, [seed])
    assert_same(params[0].detach(), expected[0].detach())
    if "gaps" in layout:
        assert params[0].detach().as_strided(params[0].shape, params[0].stride(), 1).eq(7).all()
    for name in ("exp_avg", "exp_avg_slow", "exp_avg_sq"):
        assert optimizer.state[params[0]][name].stride() == torch.empty_like(params[0]).stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("resumed", [False, True], ids=["one run", "resumed"])
@every_path
def test_converted_to_channels_last_in_the_middle_of_a_run(path, dtype, resumed):
    (param,), (expected,) = (params_of((4, 5, 6, 7), dtype=dtype) for _ in range(2))
    optimizer, reference = make([param], **PATHS[path]), make([expected], **PATHS["single"])
    for seed in range(6):
        if seed == 2:
            for either in (param, expected):
                either.data = either.data.to(memory_format=torch.channels_last)
        if resumed and seed == 4:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = make([param], **PATHS[path])
            optimizer.load_state_dict(saved)
        run([param], optimizer, [seed])
        run([expected], reference, [seed])
    assert param.is_contiguous(memory_format=torch.channels_last)
    assert difference(param, expected) < 3e-7 or param.dtype == torch.bfloat16
    assert param.ne(expected).sum() <= 2 or param.dtype == torch.float32  # rounded alike, but for one or two at a tie


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("path", ["single", "foreach", "fused", "fused-capturable"])
def test_the_same_bits_on_any_number_of_threads(path, dtype):
    many = ((140_003,), (257, 129), *[(33,)] * 12)  # enough for the core to use five threads
    starts = params_of(*(many if "fused" in path else ((70_001,), (33,))), dtype=dtype)
    set_gradients(starts, 0)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            params = copy.deepcopy(starts)
            optimizer = make(params, total_steps=1000, **PATHS[path])
            for param, start in zip(params, starts, strict=True):
                param.grad = start.grad
            optimizer.step()
            optimizer.step()
            results.append((params, optimizer.state_dict()))
    finally:
        torch.set_num_threads(before)
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


@every_path
def test_two_groups_round_with_random_words_of_their_own(path):
    params = [*params_of((999,), dtype=torch.bfloat16), *params_of((999,), dtype=torch.bfloat16)]
    optimizer = make([{"params": [param]} for param in params], lr=1e-4, **PATHS[path])
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert 20 < params[0].ne(params[1]).sum() < 500


SURROUNDINGS = {
    "no_grad": (contextlib.nullcontext, torch.no_grad),
    "enable_grad": (contextlib.nullcontext, torch.enable_grad),
    "inference_mode": (contextlib.nullcontext, torch.inference_mode),
    "inference_mode at first": (torch.inference_mode, contextlib.nullcontext),
}


@pytest.mark.parametrize("case", SURROUNDINGS)
@every_path
def test_surroundings_do_not_matter(path, case):
    params, expected = params_of((4, 3), (5,)), params_of((4, 3), (5,))
    optimizer, reference = make(params, **PATHS[path]), make(expected, **PATHS[path])
    for seed, surroundings in enumerate(SURROUNDINGS[case] * 2):
        set_gradients(params, seed)
        with surroundings():
            optimizer.step()
        run(expected, reference, [seed])
    assert_same(params, expected)
    assert all(not value.requires_grad for state in optimizer.state.values() for value in state.values())


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@every_path
def test_autograd_notices_the_step(path, strided):
    (param,) = params_of((4, 4))
    if strided:
        param = with_gaps(param.detach()).requires_grad_()
    optimizer = make([param], **PATHS[path])
    loss = param.square().sum()
    param.grad = torch.ones(4, 4)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
