"""Mamba's scan against its equation, and against the library's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from transformers.models.mamba.modeling_mamba import MambaMixer

from ademamix.lab.models import mamba_scan
from ademamix.lab.models.networks import logits
from small_models import batch, built, loss_and_gradients, relative_errors


def recurrence(u, dt, A, B, C):
    state = torch.zeros(u.shape[0], *A.shape, dtype=u.dtype)
    outputs = []
    for t in range(u.shape[1]):
        state = (dt[:, t, :, None] * A).exp() * state + (dt[:, t] * u[:, t])[:, :, None] * B[:, t, None, :]
        outputs.append((state * C[:, t, None, :]).sum(-1))
    return torch.stack(outputs, dim=1)


def scan_inputs(batch=2, length=7, inner=3, state=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    u, dt, B, C = (
        torch.randn(batch, length, size, generator=generator, dtype=dtype) for size in (inner, inner, state, state)
    )
    A = -torch.rand(inner, state, generator=generator, dtype=dtype).exp()
    return [tensor.requires_grad_() for tensor in (u, F.softplus(dt).detach(), A, B, C)]


@pytest.mark.parametrize("moments", [1, 2, 3, 7, 100])
def test_scan_is_the_recurrence_however_it_is_cut_into_spans(moments, monkeypatch):
    monkeypatch.setattr(mamba_scan, "SPAN_ELEMENTS", moments * 2 * 3 * 4)
    inputs = scan_inputs()
    y_grad = torch.randn(2, 7, 3, dtype=torch.float64)
    given, expected = mamba_scan.selective_scan(*inputs), recurrence(*inputs)
    assert_close(given, expected, rtol=1e-12, atol=1e-14)
    assert_close(
        torch.autograd.grad(given, inputs, y_grad),
        torch.autograd.grad(expected, inputs, y_grad),
        rtol=1e-12,
        atol=1e-14,
    )
    assert torch.autograd.gradcheck(mamba_scan.selective_scan, inputs)


def test_scan_of_a_long_sequence_in_fp32():
    inputs = scan_inputs(batch=2, length=300, inner=16, state=16, dtype=torch.float32)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    given, expected = mamba_scan.selective_scan(*inputs), recurrence(*exact)
    y_grad = torch.randn_like(given)
    gradients = torch.autograd.grad(given, inputs, y_grad), torch.autograd.grad(expected, exact, y_grad.double())
    for one, other in zip((given, *gradients[0]), (expected, *gradients[1]), strict=True):
        assert (one - other).norm() / other.norm() < 1e-6


def test_scan_survives_steps_that_forget_everything():
    inputs = scan_inputs(dtype=torch.float32)
    with torch.no_grad():
        inputs[1][:, 3] = 1e4  # exp(dt A) is 0
    y = mamba_scan.selective_scan(*inputs)
    assert_close(y, recurrence(*inputs))
    y.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in inputs)


def test_scan_is_in_fp32_under_autocast_and_for_bf16():
    narrow = scan_inputs(dtype=torch.bfloat16)
    wide = [tensor.detach().float().requires_grad_() for tensor in narrow]
    expected = mamba_scan.selective_scan(*wide)
    expected_grads = torch.autograd.grad(expected.sum(), wide)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for inputs in (narrow, wide):
            given = mamba_scan.selective_scan(*inputs)
            assert_close(given, expected, rtol=0, atol=0)
            for one, other in zip(torch.autograd.grad(given.sum(), inputs), expected_grads, strict=True):
                assert_close(one, other.to(one.dtype), rtol=0, atol=0)


def test_scan_has_no_second_derivative():
    inputs = scan_inputs()
    (gradient,) = torch.autograd.grad(mamba_scan.selective_scan(*inputs).square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def librarys(model):
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, MambaMixer):
            module.__class__ = MambaMixer
    return model


def test_mamba_on_cpu_is_the_librarys():
    model, (inputs, targets) = built("mamba-tiny"), batch("mamba-tiny")
    mixers = [module for module in model.modules() if isinstance(module, MambaMixer)]
    assert len(mixers) == 2
    assert all(type(mixer) is mamba_scan.CPUMambaMixer for mixer in mixers)
    for mode in (model.train(), model.eval()):
        given = loss_and_gradients(mode, inputs, targets)
        assert max(relative_errors(given, loss_and_gradients(librarys(mode), inputs, targets))) < 1e-5
    hidden = torch.randn(2, 20, 64)
    assert_close(mixers[0](hidden), MambaMixer.forward(mixers[0], hidden), rtol=1e-5, atol=1e-7)


def test_mamba_with_bf16_parameters_and_under_autocast():
    model, (inputs, targets) = built("mamba-tiny"), batch("mamba-tiny")
    exact = loss_and_gradients(model, inputs, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = loss_and_gradients(model, inputs, targets)
    assert max(relative_errors(given, exact)) < 0.05
    given = loss_and_gradients(copy.deepcopy(model).bfloat16(), inputs, targets)
    assert given["backbone.layers.0.mixer.A_log"].dtype == torch.bfloat16
    assert max(relative_errors(given, exact)) < 0.05


def test_mamba_leaves_caches_and_padding_to_the_library():
    model, (inputs, _) = built("mamba-tiny").eval(), batch("mamba-tiny")
    mask = torch.ones_like(inputs)
    mask[1, :9] = 0
    with torch.no_grad():
        expected = logits(model, inputs)
        assert_close(model(inputs, use_cache=True).logits, expected, rtol=1e-5, atol=1e-6)
        masked = model(inputs, attention_mask=mask).logits
        assert torch.equal(masked, librarys(model)(inputs, attention_mask=mask).logits)
        assert not torch.allclose(masked[1], expected[1], atol=1e-3)


def test_other_models_keep_their_classes():
    model = built("gpt-tiny")
    before = [type(module) for module in model.modules()]
    mamba_scan.use_cpu_scan(model)
    assert [type(module) for module in model.modules()] == before
