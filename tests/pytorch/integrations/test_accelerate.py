"""Accelerate: the horizon of a loop is the number of its steps, on one process and on two."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader, TensorDataset

from ademamix import AdEMAMix
from ademamix.pytorch.integrations.accelerate import total_steps

EXAMPLE = Path(__file__).parents[3] / "examples" / "accelerate_loop.py"
EPOCHS = 3


def prepared(accumulation, *, sync=True):
    """A model, its optimizer and five batches, as Accelerate prepares them."""
    plugin = GradientAccumulationPlugin(num_steps=accumulation, sync_with_dataloader=sync)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    torch.manual_seed(0)
    dataloader = accelerator.prepare(DataLoader(TensorDataset(torch.randn(10, 4)), 2))
    model = torch.nn.Linear(4, 1)
    steps = total_steps(accelerator, dataloader, EPOCHS)
    optimizer = AdEMAMix(model.parameters(), lr=1e-2, total_steps=steps)
    return accelerator, *accelerator.prepare(model, optimizer), dataloader


def train(accelerator, model, optimizer, dataloader, epochs=EPOCHS):
    for _ in range(epochs):
        for (batch,) in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize(("accumulation", "sync", "steps"), [(1, True, 15), (2, True, 9), (4, True, 6), (4, False, 3)])
def test_the_horizon_is_the_number_of_steps(accumulation, sync, steps):
    accelerator, model, optimizer, dataloader = prepared(accumulation, sync=sync)
    train(accelerator, model, optimizer, dataloader)
    assert optimizer.param_groups[0]["total_steps"] == steps
    assert optimizer.optimizer.schedule()[0]["slow_step"] == steps


def test_a_loader_that_is_not_prepared_is_refused():
    with pytest.raises(ValueError, match=r"that accelerator\.prepare returned"):
        total_steps(Accelerator(cpu=True), DataLoader(TensorDataset(torch.randn(10, 4))), EPOCHS)


def test_a_resumed_run_has_the_same_numbers(tmp_path):
    accelerator, model, optimizer, dataloader = prepared(2)
    train(accelerator, model, optimizer, dataloader, epochs=1)
    accelerator.save_state(str(tmp_path))
    train(accelerator, model, optimizer, dataloader, epochs=2)
    accelerator.free_memory()

    accelerator, resumed, continued, dataloader = prepared(2)
    accelerator.load_state(str(tmp_path))
    assert continued.optimizer.schedule()[0]["step"] == 3
    train(accelerator, resumed, continued, dataloader, epochs=2)
    assert torch.equal(model.weight, resumed.weight)
    assert torch.equal(model.bias, resumed.bias)


def test_two_processes_train_like_one(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    alone = capsys.readouterr().out
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu"]
    options = {"num_processes": "2", "num_machines": "1", "mixed_precision": "no", "dynamo_backend": "no"}
    port = {"main_process_port": "0"}  # any that is free
    launch += [word for name, value in {**options, **port}.items() for word in (f"--{name}", value)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([*launch, EXAMPLE], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert "on 1 process(es)" in alone
    assert run.stdout == alone.replace("on 1 process(es)", "on 2 process(es)")  # losses of four digits
