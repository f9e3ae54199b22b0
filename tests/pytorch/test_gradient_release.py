import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ademamix.pytorch.gradient_release import gradient_release
from cases import make

WIDTH, LAYERS = 1024, 16
LAYER_BYTES = 4 * WIDTH**2


def layers(count, width, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(count)])


@pytest.mark.parametrize("state_storage", ["fp32", "compact"])
def test_the_steps_are_the_ordinary_ones(state_storage):
    """Also their random words, which every parameter has of its own."""
    model = layers(4, 64, torch.bfloat16)
    other = copy.deepcopy(model)
    ordinary, releasing = (make(m.parameters(), lr=1e-2, state_storage=state_storage) for m in (model, other))
    with gradient_release(other, releasing):
        for step in range(3):
            torch.manual_seed(step)
            batch = torch.randn(8, 64, dtype=torch.bfloat16)
            model(batch).square().mean().backward()
            ordinary.step()
            ordinary.zero_grad()
            other(batch).square().mean().backward()
            assert all(param.grad is None for param in other.parameters())
    for param, own in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(param, own)
        assert all(torch.equal(value, releasing.state[own][key]) for key, value in ordinary.state[param].items())
    other(batch).sum().backward()
    assert all(param.grad is not None for param in other.parameters())  # it has ended


def peak_of_backward(model, optimizer):
    """Return by how many bytes the memory of this process grows at most while gradients are computed."""
    loss = model(torch.ones(1, WIDTH)).sum()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = in_memory("VmRSS")
    loss.backward()
    grown = in_memory("VmHWM") - before
    optimizer.step()
    optimizer.zero_grad()
    return grown


def in_memory(name):
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status[name].split()[0])


def peaks():
    """Return the peaks of an ordinary backward pass and of one that releases gradients."""
    model = layers(LAYERS, WIDTH)
    optimizer = make(model.parameters(), lr=1e-5, state_storage="compact")
    peak_of_backward(model, optimizer)  # the state is made once
    ordinary = peak_of_backward(model, optimizer)
    with gradient_release(model, optimizer):
        peak_of_backward(model, optimizer)
        return ordinary, peak_of_backward(model, optimizer)


def test_gradients_are_not_in_memory_all_at_once():
    """In a process of its own, which gives the memory of each large tensor back as soon as that is freed."""
    command = [sys.executable, "-c", "import test_gradient_release as test; print(*test.peaks())"]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    ordinary, releasing = map(int, printed.split())
    assert ordinary > (LAYERS - 2) * LAYER_BYTES
    assert releasing < 4 * LAYER_BYTES
