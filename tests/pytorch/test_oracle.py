"""Every execution path against the oracle, step by step over long traces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import PATHS, SETTINGS, SHAPES, TOLERANCES, distance, gradients, make, oracle_of, relative_error

STEPS = 1000


MOMENTS = {"exp_avg": "m1", "exp_avg_slow": "m2", "exp_avg_sq": "nu"}


def assert_trace_matches(params, optimizer, oracles, steps, tolerance, sign=1.0):
    largest = [dict.fromkeys(("theta", *MOMENTS.values()), 0.0) for _ in params]

    def assert_close(actual, i, name):
        expected = getattr(oracles[i], name)
        largest[i][name] = max(largest[i][name], float(np.linalg.norm(expected)))
        assert distance(actual, expected) <= tolerance * largest[i][name], (name, oracles[i].step, i)

    for step in range(1, steps + 1):
        for seed, (param, oracle) in enumerate(zip(params, oracles, strict=True)):
            gradient = gradients(seed, tuple(param.shape), step)
            param.grad = torch.as_tensor(gradient).to(param.dtype)
            oracle.update(sign * gradient)
        optimizer.step()
        for i, param in enumerate(params):
            assert_close(param, i, "theta")
            for key, name in MOMENTS.items():
                if key in optimizer.state[param]:
                    assert_close(optimizer.state[param][key], i, name)
    for param, oracle in zip(params, oracles, strict=True):
        assert optimizer.state[param]["step"] == oracle.step
        assert optimizer.state[param]["slow_step"] == oracle.slow_step


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_trace(path, dtype, setting):
    rng = np.random.default_rng(7)
    params = [torch.tensor(rng.standard_normal(shape), dtype=dtype, requires_grad=True) for shape in SHAPES]
    optimizer = make(params, **PATHS[path], **SETTINGS[setting])
    oracles = [oracle_of(param.detach().numpy(), optimizer) for param in params]
    steps = STEPS if "capturable" not in path else 200
    assert_trace_matches(params, optimizer, oracles, steps, TOLERANCES[dtype])
    stored = {name for state in optimizer.state.values() for name in state}
    assert ("exp_avg" in stored) == (setting != "beta1-zero")


@pytest.mark.parametrize("path", PATHS)
def test_maximize(path):
    params = [torch.ones(3, 5, dtype=torch.float64, requires_grad=True)]
    optimizer = make(params, maximize=True, total_steps=100, **PATHS[path])
    assert_trace_matches(params, optimizer, [oracle_of(np.ones((3, 5)), optimizer)], 200, 1e-12, sign=-1.0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_complex_parameters_are_pairs_of_real_ones(path, dtype):
    real_dtype = torch.float32 if dtype == torch.complex64 else torch.float64
    start = torch.view_as_complex(torch.tensor(gradients(3, (6, 4, 2), 0), dtype=real_dtype))
    param = start.clone().requires_grad_()
    optimizer = make([param], total_steps=60, **PATHS[path])
    oracle = oracle_of(torch.view_as_real(start).numpy(), optimizer)
    for step in range(1, 101):
        gradient = gradients(5, (6, 4, 2), step)
        param.grad = torch.view_as_complex(torch.tensor(gradient, dtype=real_dtype))
        oracle.update(gradient)
        optimizer.step()
        assert relative_error(torch.view_as_real(param.detach()), oracle.theta) <= TOLERANCES[dtype]
    assert optimizer.state[param]["exp_avg_slow"].dtype == dtype


@pytest.mark.parametrize("path", PATHS)
def test_late_and_missing_gradients_have_their_own_clocks(path):
    params = [torch.ones(4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    optimizer = make(params, total_steps=50, **PATHS[path])
    oracles = [oracle_of(np.ones(4), optimizer) for _ in params]
    present = [lambda t: True, lambda t: t > 20, lambda t: t % 3 == 0]
    for step in range(1, 81):
        for i, (param, oracle) in enumerate(zip(params, oracles, strict=True)):
            param.grad = None
            if present[i](step):
                gradient = gradients(i, (4,), step)
                param.grad = torch.tensor(gradient)
                oracle.update(gradient)
        optimizer.step()
    for param, oracle in zip(params, oracles, strict=True):
        assert relative_error(param, oracle.theta) <= 1e-12


@pytest.mark.parametrize("path", PATHS)
def test_an_added_group_starts_its_own_schedule(path):
    first = torch.ones(4, dtype=torch.float64, requires_grad=True)
    second = torch.ones(4, dtype=torch.float64, requires_grad=True)
    optimizer = make([first], total_steps=60, **PATHS[path])
    oracles = [oracle_of(np.ones(4), optimizer)]
    for step in range(1, 81):
        if step == 30:
            optimizer.add_param_group({"params": [second], "lr": 0.01, "alpha": 3.0, "total_steps": 40})
            oracles.append(oracle_of(np.ones(4), optimizer, group=1))
            assert oracles[1].T_alpha == 40
        for i, (param, oracle) in enumerate(zip([first, second], oracles, strict=False)):
            gradient = gradients(i, (4,), step)
            param.grad = torch.tensor(gradient)
            oracle.update(gradient)
        optimizer.step()
    for param, oracle in zip([first, second], oracles, strict=True):
        assert relative_error(param, oracle.theta) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_an_average_without_memory_is_the_newest_value_to_the_last_digit(path, dtype):
    param = torch.zeros(4, 8, dtype=dtype, requires_grad=True)
    optimizer = make([param], betas=(0.9, 0.0, 0.0), **PATHS[path])
    for size in (1.0, 1e-6, 1e-12):
        param.grad = torch.full_like(param, size)
        optimizer.step()
        assert optimizer.state[param]["exp_avg_slow"].equal(param.grad)
        assert optimizer.state[param]["exp_avg_sq"].equal(param.grad * param.grad)


@given(
    path=st.sampled_from(["single", "foreach", "fused"]),
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), min_size=1, max_size=5),
    transposed=st.booleans(),
    beta1=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    beta2=st.sampled_from([0.0, 0.9, 0.999]),
    beta3=st.sampled_from([None, 0.0, 0.9, 0.9999]),
    alpha=st.floats(0.0, 20.0),
    warmup=st.integers(0, 30),
    weight_decay=st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_stride_and_setting(path, shapes, transposed, beta1, beta2, beta3, alpha, warmup, weight_decay):
    betas = (beta1, beta2) if beta3 is None else (beta1, beta2, beta3)
    tensors = [torch.tensor(gradients(i, shape, 0), dtype=torch.float64) for i, shape in enumerate(shapes)]
    if transposed:
        tensors = [tensor.permute(tuple(reversed(range(tensor.dim())))) for tensor in tensors]
    params = [tensor.requires_grad_() for tensor in tensors]
    optimizer = make(
        params,
        betas=betas,
        alpha=alpha,
        alpha_warmup=warmup,
        beta3_warmup=warmup,
        weight_decay=weight_decay,
        **PATHS[path],
    )
    oracles = [oracle_of(param.detach().numpy(), optimizer) for param in params]
    assert_trace_matches(params, optimizer, oracles, 20, 1e-11)


@pytest.mark.parametrize("path", PATHS)
def test_tensors_larger_than_the_parts_of_a_step(path):
    params = [torch.ones(600, 600, requires_grad=True) for _ in range(2)]
    optimizer = make(params, total_steps=100, **PATHS[path])
    oracles = [oracle_of(param.detach().numpy(), optimizer) for param in params]
    assert_trace_matches(params, optimizer, oracles, 3, TOLERANCES[torch.float32])
