"""bf16 and fp16 parameters: fp32 state and arithmetic, stochastic rounding, and non-finite gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases import PATHS, gradients, make, oracle_of, relative_error

LOW = [torch.bfloat16, torch.float16]
SPACING = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}  # of the parameter dtype, relative


@pytest.mark.parametrize("stochastic", [True, False], ids=["stochastic", "nearest"])
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("path", PATHS)
def test_each_step_rounds_the_oracle_once(path, dtype, stochastic):
    shape = (8, 65)
    param = torch.tensor(gradients(1, shape, 0)).to(dtype).requires_grad_()
    optimizer = make([param], lr=1e-2, total_steps=60, stochastic_rounding=stochastic, **PATHS[path])
    oracle = oracle_of(param.detach().double().numpy(), optimizer)
    inexact = 0
    for step in range(1, 101):
        oracle.theta = param.detach().double().numpy()
        param.grad = torch.tensor(gradients(2, shape, step)).to(dtype)
        exact = oracle.update(param.grad.double().numpy())
        optimizer.step()
        actual = param.detach().double().numpy()
        spacing = np.maximum(SPACING[dtype] * 2.0 ** np.floor(np.log2(np.abs(exact))), 2.0**-24)
        error = np.abs(actual - exact) / spacing
        if stochastic and dtype == torch.bfloat16:
            assert error.max() < 1 + 1e-2
            inexact += (error > 0.5 + 1e-2).sum()
        else:
            assert error.max() < 0.5 + 1e-2
    assert (inexact > 0) == (stochastic and dtype == torch.bfloat16)
    for name, attribute in {"exp_avg": "m1", "exp_avg_slow": "m2", "exp_avg_sq": "nu"}.items():
        assert optimizer.state[param][name].dtype == torch.float32
        assert relative_error(optimizer.state[param][name], getattr(oracle, attribute)) < 2e-6


@pytest.mark.parametrize("path", PATHS)
def test_stochastic_rounding_keeps_updates_that_nearest_loses(path):
    """With lr far below the spacing of bf16, the mean parameter still moves by lr a step."""
    start, lr, steps = 1.0, 1e-4, 200
    moved = {}
    for stochastic in (True, False):
        param = torch.full((20_000,), start, dtype=torch.bfloat16, requires_grad=True)
        optimizer = make([param], lr=lr, alpha=0.0, weight_decay=0.0, stochastic_rounding=stochastic, **PATHS[path])
        for _ in range(steps):
            param.grad = torch.ones_like(param)
            optimizer.step()
        moved[stochastic] = start - param.detach().double().mean().item()
    assert moved[True] == pytest.approx(lr * steps, rel=0.03)
    assert moved[False] == 0.0


def test_the_same_bits_on_every_path_and_for_one_seed():
    """From the same fp32 values, the torch and the C++ generator round alike; another seed rounds otherwise."""

    def stepped(seed=0, **path):
        param = torch.linspace(-3, 3, 5000).to(torch.bfloat16).requires_grad_()
        other = torch.linspace(-1, 1, 5000).to(torch.bfloat16).requires_grad_()
        # alpha = 0 and beta1 = 0 at the first step: the change is -lr sign(g), exactly the same on every path
        optimizer = make([param, other], lr=2**-10, betas=(0.0, 0.999), alpha=0.0, eps=0.0, rounding_seed=seed, **path)
        for p in (param, other):
            p.grad = torch.ones_like(p)
        optimizer.step()
        return torch.stack([param.detach(), other.detach()])

    expected = stepped(**PATHS["single"])
    for path in PATHS.values():
        assert torch.equal(stepped(**path), expected)
    assert not torch.equal(stepped(seed=1), expected)
    assert not torch.equal(expected[0] - torch.linspace(-3, 3, 5000), expected[1] - torch.linspace(-1, 1, 5000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("path", ["single", "foreach", "fused", "fused-capturable", "foreach-capturable"])
def test_skip_leaves_nonfinite_elements_as_they_were(path, dtype):
    start = torch.linspace(-1, 1, 50).to(dtype)
    bad = {3: torch.nan, 17: torch.inf, 49: -torch.inf}
    results = {}
    for poisoned in (True, False):
        param = start.clone().requires_grad_()
        optimizer = make([param], lr=0.1, total_steps=20, nonfinite="skip", **PATHS[path])
        for step in range(1, 11):
            gradient = torch.tensor(gradients(1, (50,), step)).to(dtype)
            if poisoned and step == 5:
                before = {name: value.clone() for name, value in optimizer.state[param].items()}
                before["param"] = param.detach().clone()
                for element, value in bad.items():
                    gradient[element] = value
            param.grad = gradient
            optimizer.step()
            if poisoned and step == 5:
                state = optimizer.state[param]
                for element in bad:
                    assert param[element] == before["param"][element]
                    for name in ("exp_avg", "exp_avg_slow", "exp_avg_sq"):
                        assert state[name][element] == before[name][element]
                assert state["step"] == 5
                assert state["slow_step"] == 5
        results[poisoned] = param.detach()
        assert optimizer.diagnostics()[0]["skipped"] == (3 if poisoned else 0)
    untouched = [i for i in range(50) if i not in bad]
    assert torch.equal(results[True][untouched], results[False][untouched])
    assert results[True].isfinite().all()


@pytest.mark.parametrize("path", PATHS)
def test_propagate_does_as_torch_does(path):
    param = torch.ones(4, requires_grad=True)
    optimizer = make([param], total_steps=10, **PATHS[path])
    param.grad = torch.tensor([1.0, torch.nan, torch.inf, 1.0])
    optimizer.step()
    assert param.isnan().tolist() == [False, True, True, False]
    assert "skipped" not in optimizer.state[param]
