"""torch.compile(optimizer.step, fullgraph=True): at most two graphs, and the results of eager mode."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.lr_scheduler import CosineAnnealingLR

from cases import PATHS, make
from database import assert_same, difference, params_of, set_gradients

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's own compiler

STEPS = 50
SETTINGS = {"total_steps": 1000, "weight_decay": 0.1}
CASES = {
    "single": {**PATHS["single"]},
    "foreach": {**PATHS["foreach"]},
    "fused": {**PATHS["fused"]},
    "own choice": {},
    "foreach, tensor lr": {**PATHS["foreach"], "lr": torch.tensor(1e-2)},
    "fused, no beta1, skip": {**PATHS["fused"], "betas": (0.0, 0.999), "nonfinite": "skip", "maximize": True},
}


def train(make_step, scheduler_first, **settings):
    """Run with an lr that changes on each step; return parameters, state and the lrs."""
    params = params_of((3, 4), (5,), ())
    if settings.get("fused"):  # elsewhere it takes inductor half a minute to compile stochastic rounding
        params += params_of((6,), dtype=torch.bfloat16)
    settings = {"lr": 1e-2, **settings}
    if isinstance(settings["lr"], torch.Tensor):
        settings["lr"] = settings["lr"].clone()
    optimizer = make(params, **settings)
    if scheduler_first:
        scheduler = CosineAnnealingLR(optimizer, STEPS)
        step = make_step(optimizer)
    else:
        step = make_step(optimizer)
        scheduler = CosineAnnealingLR(optimizer, STEPS)
    lrs = set()
    for seed in range(STEPS):
        set_gradients(params, seed)
        step()
        lrs.add(float(optimizer.param_groups[0]["lr"]))
        scheduler.step()
    assert len(lrs) == STEPS
    return params, [optimizer.state[param] for param in params]


def compiled(counter):
    torch._dynamo.reset()
    return lambda optimizer: torch.compile(optimizer.step, fullgraph=True, backend=counter)


@pytest.mark.parametrize("scheduler_first", [True, False], ids=["scheduler first", "compiled first"])
@pytest.mark.parametrize("case", CASES)
def test_two_graphs_that_match_eager(case, scheduler_first):
    counter = CompileCounterWithBackend("inductor")
    settings = {**SETTINGS, **CASES[case]}
    params, states = train(compiled(counter), scheduler_first, **settings)
    expected, expected_states = train(lambda optimizer: optimizer.step, scheduler_first, **settings)
    assert 1 <= counter.frame_count <= 2
    for param, other, state, other_state in zip(params, expected, states, expected_states, strict=True):
        assert difference(param, other) < (1e-2 if param.dtype == torch.bfloat16 else 1e-6)
        assert state.keys() == other_state.keys()
        for name in state:
            assert difference(state[name], other_state[name]) < 1e-6, name
        assert_same(state["step"], torch.tensor(float(STEPS)))
