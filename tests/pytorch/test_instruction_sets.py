"""ADEMAMIX_INSTRUCTION_SET, which chooses between the builds of the kernels."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ademamix.pytorch.core import core
from cases import FUSED

VARIABLE = "ADEMAMIX_INSTRUCTION_SET"
STEPS = """
import hashlib, sys, torch
from ademamix import AdEMAMix
from ademamix.pytorch.core import core

torch.manual_seed(1)
digest = hashlib.sha256()
clipped = {"slow_clip": 0.01, "nonfinite": "skip"}
for dtype, settings in (
    (torch.float32, {}),
    (torch.float32, clipped),
    (torch.bfloat16, {}),
    (torch.bfloat16, {"master": "24bit"}),
    (torch.bfloat16, {"master": "24bit", **clipped}),
    (torch.float16, {}),
    (torch.float16, clipped),
):
    for storage in sys.argv[1:]:
        params = [torch.randn(40, 1000).to(dtype), torch.randn(77).to(dtype)]
        optimizer = AdEMAMix(params, total_steps=100, fused=True, state_storage=storage, **settings)
        for _ in range(3):
            for param in params:
                param.grad = torch.randn_like(param)
                if settings.get("nonfinite"):
                    param.grad.view(-1)[7] = torch.nan
            optimizer.step()
        for tensor in [*params, *(value for state in optimizer.state.values() for value in state.values())]:
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
print(core.instruction_set(), digest.hexdigest())
"""


def run(code: str, chosen: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if chosen is not None:
        environment[VARIABLE] = chosen
    return subprocess.run([sys.executable, "-c", code, *FUSED], capture_output=True, text=True, env=environment)


def test_every_set_takes_the_same_steps():
    found = {}
    for chosen in core.instruction_sets():
        done = run(STEPS, chosen)
        assert done.returncode == 0, done.stderr
        in_use, found[chosen] = done.stdout.split()
        assert in_use == chosen
    assert len(set(found.values())) == 1
    assert "portable" in found


@pytest.mark.parametrize("chosen", [None, ""])
def test_without_a_choice_the_best_is_used(chosen):
    done = run("from ademamix import _core; print(_core.instruction_set())", chosen)
    assert done.stdout.split() == core.instruction_sets()[:1]


STEP = """
import torch
from ademamix import AdEMAMix

param = torch.zeros(3)
param.grad = torch.ones(3)
optimizer = AdEMAMix([param], total_steps=100, fused=True)
try:
    optimizer.step()
except ValueError as error:
    print(error)
state = optimizer.state[param]
assert param.tolist() == [0, 0, 0] and all(not value.any() for value in state.values())
"""


def test_a_set_that_cannot_be_used_is_an_error_of_the_step_and_changes_nothing():
    done = run(STEP, "sse9")
    assert done.returncode == 0, done.stderr
    known = ", ".join(core.instruction_sets())
    assert done.stdout.strip() == (
        f'"sse9" is no instruction set that the core can use on this processor: those are {known}. '
        f"The environment variable {VARIABLE} chooses one"
    )


def test_another_set_can_be_used_in_this_process():
    before = core.instruction_set()
    try:
        core.use_instruction_set("portable")
        assert core.instruction_set() == "portable"
        with pytest.raises(ValueError, match='"sse9" is no instruction set'):
            core.use_instruction_set("sse9")
        assert core.instruction_set() == "portable"
    finally:
        core.use_instruction_set(before)
