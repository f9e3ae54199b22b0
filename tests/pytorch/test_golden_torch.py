"""PyTorch follows the golden traces."""

from __future__ import annotations

import pytest
import torch

import golden
from ademamix import AdEMAMix
from cases import PATHS

EAGER = {name: path for name, path in PATHS.items() if "capturable" not in name}  # which have the same arithmetic


@pytest.mark.parametrize("dtype", golden.TOLERANCES)
@pytest.mark.parametrize("name", golden.TRACES)
@pytest.mark.parametrize("path", EAGER)
def test_golden_trace(path, name, dtype):
    trace = golden.TRACES[name]
    params = [torch.tensor(theta, dtype=getattr(torch, dtype), requires_grad=True) for theta in golden.start()]
    series = [torch.tensor(gradients, dtype=params[0].dtype) for gradients in golden.gradients()]
    if trace.switches:
        optimizer = torch.optim.AdamW(params, lr=trace.lr, betas=trace.betas, weight_decay=trace.weight_decay)
    else:
        settings = {"lr": trace.lr, "betas": trace.betas, "weight_decay": trace.weight_decay}
        optimizer = AdEMAMix(params, **settings, **trace.given, **PATHS[path])
    for step in range(1, golden.STEPS + 1):
        for param, gradients in zip(params, series, strict=True):
            param.grad = gradients[step - 1]
        optimizer.step()
        if step in golden.expected(name):
            golden.assert_golden(name, dtype, step, [param.detach().numpy() for param in params])
        if trace.switches and step == golden.SWITCH:
            optimizer = AdEMAMix.from_adamw(optimizer, **trace.given)
            optimizer.param_groups[0].update(PATHS[path])
