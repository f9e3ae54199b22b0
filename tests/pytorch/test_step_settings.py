"""Settings that someone wrote into a group since the last step: all are checked before anything changes."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from cases import PATHS, make
from database import assert_same, params_of, run, set_gradients

BAD = [
    ({"betas": (0.9, 0.95)}, r"betas must be \(beta1, beta2, beta3\) .*got \(0.9, 0.95\).*group\['betas'\]\[2\]"),
    ({"betas": 0.9}, "betas must be .*got 0.9"),
    ({"betas": (0.9, 0.95, 1.0)}, r"beta3 must be a number in \[0, 1\), got 1.0"),
    ({"betas": (0.9, "x", 0.99)}, r"beta2 must be a number in \[0, 1\), got 'x'"),
    ({"betas": (math.nan, 0.9, 0.99)}, r"beta1 must be a number in \[0, 1\), got nan"),
    ({"alpha": "5"}, "alpha must be a finite number >= 0, got '5'"),
    ({"alpha": math.nan}, "alpha must be a finite number >= 0, got nan"),
    ({"alpha_warmup": None}, "alpha_warmup must be an integer >= 0, got None"),
    ({"beta3_warmup": -1}, "beta3_warmup must be an integer >= 0 .*got -1"),
    ({"beta3_start": 1.0}, r"beta3_start must be a number in \[0, 1\), got 1.0"),
    ({"eps": None}, "eps must be a finite number >= 0, got None"),
    ({"weight_decay": "0"}, "weight_decay must be a finite number >= 0, got '0'"),
    ({"lr": math.nan}, "lr must be a finite number, got nan"),
    ({"lr": math.inf}, "lr must be a finite number, got inf"),
    ({"lr": "fast"}, "lr must be a number or a 1-element Tensor, got 'fast'"),
    ({"lr": torch.ones(2)}, r"Tensor lr must be 1-element, got shape \(2,\)"),
    ({"lr": torch.tensor(math.nan)}, r"lr must be a finite number, got tensor\(nan\)"),
    ({"state_storage": "int4"}, "state_storage must be one of .*, got 'int4'"),
    ({"nonfinite": "skp"}, "nonfinite must be one of .*, got 'skp'"),
    ({"rounding_seed": -1}, "rounding_seed must be an integer"),
    ({"fused": True, "foreach": True}, "cannot be `True` together"),
]


@pytest.mark.parametrize("nonfinite", ["propagate", "skip"])
@pytest.mark.parametrize(("settings", "message"), BAD, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("path", PATHS)
def test_a_step_with_bad_settings_changes_nothing(path, settings, message, nonfinite):
    params = params_of((4, 3), (5,))
    optimizer = make([{"params": [param]} for param in params], nonfinite=nonfinite, **PATHS[path])
    run(params, optimizer, range(2))
    before = copy.deepcopy((params, [optimizer.state[param] for param in params]))
    good = dict(optimizer.param_groups[1])
    optimizer.param_groups[1].update(settings)
    set_gradients(params, 2)
    with pytest.raises((ValueError, RuntimeError), match=message):
        optimizer.step()
    assert_same((params, [optimizer.state[param] for param in params]), before)
    optimizer.param_groups[1].update(good)
    optimizer.step()
    assert optimizer.state[params[0]]["step"] == 3


TAKEN = [
    ({"betas": [0.5, 0.9, 0.99]}, {"betas": (0.5, 0.9, 0.99)}),
    ({"betas": (torch.tensor(0.5), 0.875, torch.tensor([0.75]))}, {"betas": (0.5, 0.875, 0.75)}),
    ({"betas": (0, 0.9, 0.99)}, {"betas": (0.0, 0.9, 0.99)}),
    ({"lr": -1e-20}, {"lr": 0.0}),
    ({"lr": torch.tensor([0.25])}, {"lr": 0.25}),
    ({"alpha": 3}, {"alpha": 3.0}),
    ({"alpha_warmup": 1e3}, {"alpha_warmup": 1000}),
    ({"eps": 0}, {"eps": 0.0}),
]


@pytest.mark.parametrize(("settings", "meant"), TAKEN, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("path", PATHS)
def test_what_others_write_is_taken(path, settings, meant):
    """Lists come from JSON; a cosine schedule may end a little below 0, which AdamW takes as well."""
    params, expected = params_of((4, 3)), params_of((4, 3))
    optimizer, reference = make(params, **PATHS[path]), make(expected, **PATHS[path])
    optimizer.param_groups[0].update(settings)
    reference.param_groups[0].update(meant)
    run(params, optimizer)
    run(expected, reference)
    assert_same(params, expected)
