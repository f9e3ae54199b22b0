"""What the optimizer says of its averages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cases import PATHS, gradients, make, oracle_of


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("beta1", [0.9, 0.0])
def test_diagnostics_are_those_of_the_oracle(path, beta1):
    params = [torch.tensor(gradients(i, (4, 3), 0), requires_grad=True) for i in range(2)]
    optimizer = make(params, lr=0.01, betas=(beta1, 0.99, 0.999), total_steps=2000, weight_decay=0.0, **PATHS[path])
    oracles = [oracle_of(param.detach().numpy(), optimizer) for param in params]
    for step in range(1, 31):
        before = [oracle.theta for oracle in oracles]
        for i, oracle in enumerate(oracles):
            oracle.update(gradients(i, (4, 3), step))
            params[i].grad = torch.tensor(gradients(i, (4, 3), step))
        optimizer.step()
    m1 = np.concatenate([oracle.m1.ravel() for oracle in oracles])
    m2 = np.concatenate([oracle.m2.ravel() for oracle in oracles])
    change = np.concatenate([(oracle.theta - old).ravel() for oracle, old in zip(oracles, before, strict=True)])
    (found,) = optimizer.diagnostics()
    assert found["alpha"] == 5.0 * 30 / 2000
    assert found["m1_norm"] == pytest.approx(np.linalg.norm(m1), rel=1e-9)
    assert found["alpha_m2_norm"] == pytest.approx(found["alpha"] * np.linalg.norm(m2), rel=1e-9)
    assert found["update_norm"] == pytest.approx(np.linalg.norm(change), rel=1e-9)
    assert found["cosine"] == pytest.approx(m1 @ m2 / np.linalg.norm(m1) / np.linalg.norm(m2), rel=1e-9)
    if beta1 == 0:
        optimizer.zero_grad()
        assert math.isnan(optimizer.diagnostics()[0]["m1_norm"])


@pytest.mark.parametrize("beta1", [0.9, 0.0])
def test_a_slow_average_that_begins_anew_has_diagnostics(beta1):
    param = torch.ones(3, requires_grad=True)
    optimizer = make([param], betas=(beta1, 0.99, 0.999), total_steps=2000)
    for _ in range(3):
        param.grad = torch.ones(3)
        optimizer.step()
    optimizer.reset_slow()
    (found,) = optimizer.diagnostics()
    assert (found["step"], found["slow_step"], found["alpha_m2_norm"]) == (3, 0, 0.0)
    assert found["alpha"] == 5.0 / 2000
    assert found["update_norm"] > 0
