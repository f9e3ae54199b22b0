import copy
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from ademamix.pytorch import gathering
from ademamix.pytorch.gradient_release import gradient_release
from ademamix.pytorch.monitoring import Monitor
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


class Counted(list):
    """Parameters of a group that count how many of them are looked at."""

    visits = 0

    def __iter__(self):
        for param in super().__iter__():
            type(self).visits += 1
            yield param


@pytest.mark.parametrize(
    ("settings", "looks"),
    [
        ({}, 1),
        ({"foreach": True}, 1),
        ({"state_storage": "compact", "master": "24bit"}, 2),  # the kind of parameter that it is, is tried second
    ],
)
def test_a_hook_looks_at_its_own_parameter_alone(monkeypatch, settings, looks):
    """However many there are, in however many groups."""
    model = layers(20, 64, torch.bfloat16)
    params = list(model.parameters())
    optimizer = make([{"params": params[:12]}, {"params": params[12:], "lr": 1e-3}], **settings)
    given = []

    def gather(group, kind, first_index, states, lists):
        given.append((len(group["params"]), len(states)))
        return whole_gather(group, kind, first_index, states, lists)

    whole_gather = gathering.gather
    with gradient_release(model, optimizer):
        model(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()  # makes the state
        for group in optimizer.param_groups:
            group["params"] = Counted(group["params"])
        monkeypatch.setattr(gathering, "gather", gather)
        monkeypatch.setattr(Counted, "visits", 0)
        model(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
        assert set(given) == {(1, 1)}
        assert len(given) == looks * len(params)
        assert Counted.visits == 0
        optimizer.step()
        assert Counted.visits >= len(params)  # it counts
    assert [float(optimizer.state[param]["step"]) for param in params] == [2.0] * len(params)


def test_settings_schedules_and_checkpoints_count_as_in_ordinary_steps():
    """Groups have settings of their own, a scheduler changes them, and loading replaces them."""
    model = layers(3, 64, torch.bfloat16)
    other = copy.deepcopy(model)
    ordinary, releasing = (
        make([{"params": [weights[0]], "lr": 1e-3}, {"params": weights[1:], "betas": (0.0, 0.99, 0.999)}], lr=1e-2)
        for weights in (list(model.parameters()), list(other.parameters()))
    )
    schedulers = [torch.optim.lr_scheduler.LambdaLR(x, lambda step: step / 2) for x in (ordinary, releasing)]
    with gradient_release(other, releasing):
        for step in range(4):
            batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(step)).bfloat16()
            model(batch).square().mean().backward()
            ordinary.step()
            ordinary.zero_grad()
            other(batch).square().mean().backward()
            for scheduler in schedulers:  # which warns if no step was taken before
                scheduler.step()
            if step == 1:
                saved = copy.deepcopy(ordinary.state_dict())
                releasing.load_state_dict(saved)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert releasing.schedule() == ordinary.schedule()


def test_a_monitor_sees_the_steps_that_the_loop_tells_it_of():
    model = layers(3, 64)
    optimizer = make(model.parameters())
    seen = []
    monitor = Monitor(optimizer, lambda values, step: seen.append(step), every=1, share=math.inf)
    with gradient_release(model, optimizer):
        for _ in range(3):
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
    monitor.close()
    assert seen == [1, 2, 3]


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
