"""torch.compile(optimizer.step, fullgraph=True): at most two graphs, and the results of eager mode."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.lr_scheduler import CosineAnnealingLR

from ademamix import formats
from ademamix.pytorch import block_codes
from cases import PATHS, REDUCED, make
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
    "fused, compact": {**PATHS["fused"], "state_storage": "compact"},
    "fused, compact, masters": {**PATHS["fused"], "state_storage": "compact", "master": "24bit"},
    "fused, no beta1, skip": {**PATHS["fused"], "betas": (0.0, 0.999), "nonfinite": "skip", "maximize": True},
}


def train(make_step, scheduler_first, **settings):
    """Run with an lr that changes on each step; return parameters, state and the lrs."""
    params = params_of((3, 4), (5,), ())
    if "state_storage" in settings:
        params += params_of((32, 200))
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
            if not state[name].is_floating_point() and name != "skipped":  # a code changes with the last bit of a value
                assert (state[name] != other_state[name]).float().mean() < 1e-2, name
                continue
            assert difference(state[name], other_state[name]) < 1e-6, name
        assert_same(state["step"], torch.tensor(float(STEPS)))


@pytest.mark.parametrize(
    "settings", [*({"state_storage": storage} for storage in REDUCED), {"master": "24bit"}], ids=str
)
@pytest.mark.parametrize("path", ["single", "foreach"])
def test_reduced_state_and_masters_are_traced_in_one_graph(path, settings):
    """Without inductor, which takes a minute for it; the next test compiles the codes."""
    dtype = torch.bfloat16 if "master" in settings else torch.float32
    states = []
    for counter in (None, CompileCounterWithBackend("aot_eager")):
        params = params_of((32, 200), (5,), dtype=dtype)
        optimizer = make(params, **SETTINGS, **PATHS[path], **settings)
        step = optimizer.step if counter is None else compiled(counter)(optimizer)
        for seed in range(5):
            set_gradients(params, seed)
            step()
        states.append([*params, *(value for param in params for value in optimizer.state[param].values())])
    assert 1 <= counter.frame_count <= 2
    for expected, actual in zip(*states, strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("code", [formats.FAST, formats.SLOW, formats.SQUARE], ids=["fast", "slow", "square"])
def test_codes_compile(code):
    torch._dynamo.reset()
    values = torch.randn(64, 200, generator=torch.Generator().manual_seed(0)).abs()
    expected, scale = block_codes.encode(values, code)
    actual, actual_scale = torch.compile(block_codes.encode, fullgraph=True)(values, code)
    assert_same(actual, expected)
    assert_same(actual_scale, scale)
    decode = torch.compile(block_codes.decode, fullgraph=True)
    assert_same(decode(actual, actual_scale), block_codes.decode(expected, scale))
