"""A storage that no kernel knows: torch's own operations take its steps, and `fused` is refused."""

from __future__ import annotations

import copy

import pytest
import torch

from ademamix import AdEMAMix, hyperparameters
from ademamix.pytorch import storage
from ademamix.state_keys import MOMENT_KEYS
from cases import PATHS, STORAGES, make
from database import assert_same, params_of, run

SHAPES = [(64, 100), (5,)]  # the second stays fp32
REFUSED = "no fused kernel for state_storage='half'"


@pytest.fixture(autouse=True)
def half(monkeypatch):
    """Make it known by its dtypes alone, which rounds to nearest."""
    monkeypatch.setattr(hyperparameters, "STATE_STORAGES", (*STORAGES, "half"))
    monkeypatch.setitem(storage.REDUCED_DTYPES, "half", dict.fromkeys(MOMENT_KEYS, torch.float16))


def stepped(state_storage, **settings):
    params = params_of(*SHAPES)
    optimizer = make(params, total_steps=50, state_storage=state_storage, **settings)
    run(params, optimizer)
    return params, optimizer


@pytest.mark.parametrize("path", [{}, PATHS["single"], PATHS["foreach"]], ids=["chosen", "single", "foreach"])
def test_torch_takes_the_steps(path):
    params, optimizer = stepped("half", **path)
    for param, other, dtype in zip(params, stepped("fp32", **path)[0], (torch.float16, torch.float32), strict=True):
        assert {optimizer.state[param][key].dtype for key in MOMENT_KEYS.values()} == {dtype}
        assert torch.equal(param, other) == (dtype == torch.float32)
        assert (param - other).abs().max() < 1e-3  # a step of lr
    resumed = copy.deepcopy(params)
    continued = AdEMAMix(resumed, total_steps=50, **path)
    continued.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(params, optimizer)
    run(resumed, continued)
    assert_same(resumed, params)


def test_the_fastest_is_foreach():
    assert_same(stepped("half")[0], stepped("half", foreach=True)[0])


def test_fused_is_refused():
    params, optimizer = stepped("half")
    before = [param.detach().clone() for param in params]
    optimizer.param_groups[0]["fused"] = True
    with pytest.raises(RuntimeError, match=REFUSED):
        run(params, optimizer)
    assert_same([param.detach() for param in params], before)
    with pytest.raises(RuntimeError, match=REFUSED):
        make(params, total_steps=50, state_storage="half", fused=True)


def test_a_switch_from_a_fused_adamw_is_not_fused():
    params = params_of(*SHAPES)
    optimizer = AdEMAMix.from_adamw(torch.optim.AdamW(params, fused=True), total_steps=50, state_storage="half")
    assert optimizer.param_groups[0]["fused"] is None
    run(params, optimizer)
