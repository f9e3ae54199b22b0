"""Gradients of extreme size: what is finite gives an ordinary, bounded step, in every path and storage."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from ademamix.pytorch.gradient_limit import GRADIENT_LIMIT
from ademamix.pytorch.parameter_state import values_of
from cases import FUSED, PATHS, STORAGES, TOLERANCES, distance, gradients, make, on_paths, oracle_of
from database import assert_same

every_path = pytest.mark.parametrize("path", PATHS)
every_storage = pytest.mark.parametrize(("path", "storage"), on_paths(PATHS, STORAGES))
SHAPE = (64, 96)  # large enough to be coded
HUGE = [2e19, -1e20, 1e25, -1e30, 3e38]


def param_of(dtype=torch.float32):
    return torch.tensor(gradients(5, SHAPE, 0) / 10, dtype=dtype)


def with_huge(step, places=5):
    """A gradient that has huge elements at every third step."""
    gradient = gradients(7, SHAPE, step).copy()
    if step % 3 == 0:
        gradient.reshape(-1)[np.random.default_rng(step).choice(gradient.size, places)] = np.resize(HUGE, places)
    return gradient


@every_path
def test_huge_gradients_are_those_of_the_oracle(path):
    param = param_of()
    optimizer = make([param], total_steps=200, **PATHS[path])
    oracle = oracle_of(param.double().numpy(), optimizer, gradient_limit=GRADIENT_LIMIT)
    for step in range(200):
        gradient = with_huge(step)
        param.grad = torch.tensor(gradient, dtype=torch.float32)
        oracle.update(param.grad.double().numpy())
        optimizer.step()
        assert distance(param, oracle.theta) < TOLERANCES[torch.float32] * np.linalg.norm(oracle.theta), step


@every_storage
@pytest.mark.parametrize("beta1", [0.9, 0.0])
@pytest.mark.parametrize("nonfinite", ["propagate", "skip"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_gradients_are_taken_for_the_limit(path, storage, beta1, nonfinite, dtype):
    """The same bits as with gradients that are clipped before, finite moments, and steps of an ordinary size."""
    settings = {"betas": (beta1, 0.999), "total_steps": 9, "state_storage": storage, "nonfinite": nonfinite}
    params = [param_of(dtype), param_of(dtype)]
    optimizers = [make([param], lr=1e-3, **settings, **PATHS[path]) for param in params]
    for step in range(9):
        gradient = torch.tensor(with_huge(step)).to(dtype)
        params[0].grad, params[1].grad = gradient, gradient.clamp(-GRADIENT_LIMIT, GRADIENT_LIMIT)
        before = params[0].clone()
        for optimizer in optimizers:
            optimizer.step()
        assert (params[0] - before).abs().max() < 0.1
    assert_same(params[0], params[1])
    states = [optimizer.state[param] for optimizer, param in zip(optimizers, params, strict=True)]
    assert_same(states[0], states[1])
    square = values_of(states[0], "exp_avg_sq")
    assert (square > 0).all()
    assert square.isfinite().all()


@every_storage
def test_fp64_gradients_beyond_fp32_are_taken_for_the_limit(path, storage):
    params = [param_of(), param_of()]
    optimizers = [make([param], total_steps=9, state_storage=storage, **PATHS[path]) for param in params]
    for param, large in zip(params, (1e300, GRADIENT_LIMIT), strict=True):
        param.grad_dtype = None  # any
        param.grad = torch.tensor(gradients(7, SHAPE, 1))
        param.grad[3, 5], param.grad[6, 7] = large, -large
    for optimizer in optimizers:
        optimizer.step()
    assert_same(params[0], params[1])


@every_storage
def test_infinity_is_not_taken_for_the_limit(path, storage):
    param = param_of()
    optimizer = make([param], total_steps=9, state_storage=storage, **PATHS[path])
    param.grad = torch.tensor(gradients(7, SHAPE, 1), dtype=torch.float32)
    param.grad[3, 5], param.grad[6, 7] = torch.inf, -torch.inf
    optimizer.step()
    assert param.isnan().nonzero().tolist() == [[3, 5], [6, 7]]


@every_path
def test_fp64_has_no_limit(path):
    param = param_of(torch.float64)
    optimizer = make([param], total_steps=9, **PATHS[path])
    param.grad = torch.full(SHAPE, 1e30, dtype=torch.float64)
    optimizer.step()
    assert optimizer.state[param]["exp_avg_sq"].max() == pytest.approx(1e57)


@pytest.mark.parametrize("spike", [1e4, 1e5, 1e6, 1e8])
@pytest.mark.parametrize("path", ["single", "foreach", "fused"])
def test_the_neighbours_of_a_spike_keep_moving(path, spike):
    """In 500 steps after it they go as far as with moments in fp32, but for a tenth at most."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.zeros(32, 128), torch.zeros(32, 128)]
    optimizers = [
        make([param], lr=1e-3, total_steps=10_000, weight_decay=0.0, state_storage=storage, **PATHS[path])
        for param, storage in zip(params, ("compact", "fp32"), strict=True)
    ]
    for step in range(800):
        gradient = 0.5 * torch.randn(32, 128, generator=generator) + 0.3
        if step == 300:
            gradient[:, 0] *= spike
            starts = [param.clone() for param in params]
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = gradient
            optimizer.step()
    compact, exact = ((param - start)[:, 1:].mean() for param, start in zip(params, starts, strict=True))
    assert 0.9 < compact / exact < 1.1


FLUSHING = """
import sys, torch
from ademamix import AdEMAMix

def end(threads, storage):
    torch.set_num_threads(threads)
    param = torch.linspace(-1e-36, 1e-36, 200_000).view(400, 500)
    settings = {"weight_decay": 0.0, "state_storage": storage, "rounding_seed": 0, "fused": True}
    optimizer = AdEMAMix([param], lr=1e-37, total_steps=20, **settings)
    for step in range(5):
        param.grad = 1e-20 * torch.randn(400, 500, generator=torch.Generator().manual_seed(step))
        optimizer.step()
    return [param.view(torch.int32), *optimizer.state[param].values()]

assert torch.set_flush_denormal(True)
for storage in sys.argv[1:]:
    expected = end(1, storage)
    for _ in range(5):
        assert all(map(torch.equal, end(4, storage), expected)), storage
torch.set_flush_denormal(False)
assert not all(map(torch.equal, end(4, "fp32"), expected)), "there was nothing to flush"
"""


def test_threads_flush_subnormal_numbers_if_the_caller_does():
    subprocess.run([sys.executable, "-c", FLUSHING, *FUSED], check=True)
