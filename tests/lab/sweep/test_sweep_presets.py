"""The presets are the paper's tables: 110_hyper, 330_hyper, 1300_hyper, vit_hyperparams and 110_hyper_lion.

Values are typed from the tables, row by row, with the bold ones second.
"""

from __future__ import annotations

from typing import Any

import pytest

from ademamix.lab.config import ConfigError, Run
from ademamix.lab.report.kinds import setting_of
from ademamix.lab.settings import changed
from ademamix.lab.sweep.presets import PRESETS, preset
from ademamix.lab.sweep.space import Values, space

BETA3 = ([0.999, 0.9999, 0.99999], 0.9999)
VIT = {"alpha": ([1, 5, 10, 15, 20], None), "beta3": ([0.999, 0.9999], None)}
VIT_BETA1 = ([0.9, 0.99, 0.999], 0.9)

TABLES: dict[tuple[str, str], dict[str, tuple[list[Any], Any]]] = {
    ("paper-110m", "adamw"): {
        "lr": ([0.005, 0.002, 0.001, 0.0005, 0.0001], 0.001),
        "warmup": ([2000, 3000, 4000, 5000, 6000], 3000),
        "weight_decay": ([0.1, 0.0], 0.1),
        "schedule": (["constant", "cosine"], "cosine"),
        "clip": ([None, 5.0, 1.0, 0.5], 0.5),
        "beta1": ([0.9, 0.99, 0.999, 0.9999], 0.9),
        "beta2": ([0.95, 0.999], 0.999),
    },
    ("paper-110m", "ademamix"): {"beta3": BETA3, "alpha": ([2, 4, 6, 8, 10, 15, 20], 8)},
    ("paper-330m", "adamw"): {"lr": ([0.001, 0.0005, 0.0001], 0.0005), "clip": ([1.0, 0.5, 0.1], 0.1)},
    ("paper-330m", "ademamix"): {"beta3": BETA3, "alpha": ([5, 8, 10, 15], 8)},
    ("paper-1.3b", "adamw"): {
        "lr": ([0.001, 0.0005, 0.0003, 0.0001, 0.00005], 0.0005),
        "clip": ([1.0, 0.5, 0.1], 0.1),
    },
    ("paper-1.3b", "ademamix"): {"lr": ([0.0005, 0.0003], 0.0003), "beta3": BETA3, "alpha": ([1, 3, 5, 8, 10, 15], 5)},
    ("paper-vit-24m-11m", "adamw"): {
        "lr": ([0.001, 0.003, 0.005], 0.003),
        "weight_decay": ([0.03, 0.1, 0.3], 0.03),
        "beta1": VIT_BETA1,
    },
    ("paper-vit-86m-11m", "adamw"): {
        "lr": ([0.001, 0.003], 0.001),
        "weight_decay": ([0.03, 0.1, 0.3], 0.1),
        "beta1": VIT_BETA1,
    },
    ("paper-vit-86m-1.3m", "adamw"): {
        "lr": ([0.001, 0.003, 0.005], 0.005),
        "weight_decay": ([0.03, 0.1, 0.3, 0.5, 0.7], 0.3),
        "beta1": VIT_BETA1,
    },
    **{(name, "ademamix"): VIT for name in PRESETS if "vit" in name},
    ("paper-lion", "lion"): {
        "lr": ([0.00005, 0.0001, 0.0002, 0.0004, 0.0006, 0.0008, 0.001], 0.0004),
        "weight_decay": ([0.01, 0.125, 0.166, 0.25, 0.5, 1.0], 0.25),
        "clip": ([1.0, 0.5], 0.5),
        "alpha": ([0.5, 0.7, 0.9], 0.9),
        "beta": ([0.99, 0.9999], 0.99),
    },
}

FIXED = {
    "paper-110m": {"batch": 64, "warmup": 3000, "clip": 0.5, "weight_decay": 0.1, "steps": 256_000},
    "paper-330m": {"batch": 96, "warmup": 3000, "clip": 0.1, "weight_decay": 0.1},
    "paper-1.3b": {"batch": 128, "warmup": 3000, "clip": 0.1, "weight_decay": 0.1, "steps": 770_000},
    "paper-vit-24m-11m": {"batch": 4096, "steps": 100_000, "lr": 0.003, "weight_decay": 0.03},
    "paper-vit-86m-11m": {"batch": 4096, "steps": 100_000, "lr": 0.001, "weight_decay": 0.1},
    "paper-vit-86m-1.3m": {"batch": 4096, "steps": 100_000, "lr": 0.005, "weight_decay": 0.3},
    "paper-lion": {"batch": 64, "warmup": 3000},
}
"""Rows with a single value, and bold ones that the other optimizer takes over."""

GRIDS = [(name, optimizer) for name, found in PRESETS.items() for optimizer in found.grids]


def _value(run: Run, name: str) -> Any:
    if name == "warmup":
        return run.schedule.warmup
    return run.schedule.kind if name == "schedule" else setting_of(run, name)


def test_every_table_is_a_preset() -> None:
    assert set(GRIDS) == set(TABLES)


@pytest.mark.parametrize(("name", "optimizer"), GRIDS)
def test_a_preset_is_the_papers_table(name: str, optimizer: str) -> None:
    grid = PRESETS[name].grids[optimizer]
    table = TABLES[name, optimizer]
    assert space(grid.space).dimensions == tuple(Values(row, tuple(values)) for row, (values, _) in table.items())
    for row, (_, bold) in table.items():
        if bold is not None:
            assert _value(grid.base, row) == bold
    for row, value in FIXED[name].items():
        assert _value(grid.base, row) == value
    assert grid.base.optimizer.name == optimizer


@pytest.mark.parametrize(("name", "optimizer"), GRIDS)
def test_a_preset_can_be_trained(name: str, optimizer: str) -> None:
    grid = PRESETS[name].grids[optimizer]
    found = space(grid.space, finite=True)
    found.check(grid.base)
    bold = {row: value for row, (_, value) in TABLES[name, optimizer].items() if value is not None or row == "clip"}
    assert changed(grid.base, **bold).key == grid.base.key  # a run of recipes is a trial as well


def test_unknown_presets_and_optimizers_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no preset 'paper-7b': choose one of paper-110m, "):
        preset("paper-7b")
    with pytest.raises(ConfigError, match="has no grid for 'lion': it has one for ademamix, adamw"):
        preset("paper-110m").grid("paper-110m", "lion")
