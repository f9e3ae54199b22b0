"""benchmarks/gpu.py as far as it runs without a GPU: what it refuses, which steps it takes, what it makes of times."""

from __future__ import annotations

import doctest
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from ademamix.pytorch import step

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALL = ((64, 64), (5,))
# The interpreter computes with NumPy, which warns of what the padding of blocks leads to.
interpreted = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered:RuntimeWarning")


@pytest.fixture(autouse=True)
def _importable_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def gpu():
    return importlib.import_module("gpu")


def rows_of(gpu, *states, precision="fp32"):
    return [gpu.Row(gpu.Setting(precision, state), "fused") for state in states]


def test_without_a_gpu_it_says_so(gpu, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "benchmarks/gpu.py measures on a GPU, and torch finds none on this machine.\n"


class Timer:
    """Takes steps, and says that each took less time than the one before it."""

    def __init__(self):
        self.steps = []

    def __call__(self, step):
        step()
        self.steps.append(step)
        return 1.0 + 1.0 / len(self.steps), 3.0


def test_optimizers_take_turns_and_the_fastest_step_counts(gpu):
    rows = rows_of(gpu, "adamw", "fp32", "compact-beta1-0")
    timer = Timer()
    results = gpu.measure(rows, SMALL, repeats=4, device="cpu", timer=timer)
    rounds = [timer.steps[i : i + 3] for i in range(0, 12, 3)]
    assert [len(set(steps)) for steps in rounds] == [3] * 4
    assert len({tuple(steps) for steps in rounds}) > 1
    assert min(result["gpu"] for result in results.values()) == 1.0 + 1.0 / 12
    assert {result["wall"] for result in results.values()} == {3.0}


def test_an_optimizer_that_fails_does_not_end_the_others(gpu, monkeypatch):
    rows = rows_of(gpu, "adamw", "fp32")

    def refuse(*args, **settings):
        raise RuntimeError("no kernel\nand more")

    monkeypatch.setattr(gpu, "AdEMAMix", refuse)
    results = gpu.measure(rows, SMALL, repeats=1, device="cpu", timer=Timer())
    assert results[rows[0]]["gpu"] == 2.0
    assert results[rows[1]] == {"error": "RuntimeError: no kernel"}
    assert "RuntimeError: no kernel" in gpu.table(results, SMALL, 1e12, "any card")
    assert gpu.check(rows[1], "cpu") == {"error": "RuntimeError: no kernel"}


def cells_of(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_the_table_compares_with_adamw_with_a_copy_and_with_what_was_computed(gpu):
    adamw, compact = rows_of(gpu, "adamw", "compact")
    foreach = compact._replace(path="foreach")
    times = {adamw: (2e-3, 4e-3), compact: (1e-3, 6e-3), foreach: (8e-3, 8e-3)}
    results = {row: {"gpu": on_gpu, "wall": wall} for row, (on_gpu, wall) in times.items()}
    shapes = [(1024, 1024)] * 64
    printed = gpu.table(results, shapes, bandwidth=2e12, card="NVIDIA H100 80GB HBM3")
    lines = cells_of(printed)
    moved = 64 * 1024**2 * 20.046875
    assert lines[0] == ["fp32", "AdamW", "fused", "2.000", "0.56", "1.00", "1.00", "940", "47%"]
    assert lines[1][2:7] == ["fused", "1.000", f"{1e3 * moved / 3.35e12:.2f}", "0.50", "1.50"]
    assert lines[1][7:] == [f"{moved / 1e-3 / 1e9:.0f}", "67%"]
    assert lines[2][2:] == ["foreach", "8.000", "", "4.00", "2.00", "", ""]
    assert cells_of(gpu.table(results, shapes, 2e12, "another card"))[0][4] == ""


def test_a_whole_run(gpu, capsys, monkeypatch):
    """On CPU tensors, with the C++ core in the place of Triton, and without the clock of a GPU."""
    monkeypatch.setattr(gpu, "FUSED", tuple(row for row in gpu.FUSED if "beta1" not in row.setting.state))
    report = gpu.run({"card": "no GPU"}, SMALL, repeats=1, device="cpu", timer=Timer())
    printed = capsys.readouterr().out
    assert printed.count("agrees with the readable path") == 9
    assert "DISAGREES" not in printed
    assert len(report["rows"]) == 13
    assert all(row["gpu"] > 0 for row in report["rows"])
    assert {row["path"] for row in report["rows"]} == {"fused", "foreach"}
    assert json.loads(json.dumps(report))["parameters"] == 64 * 64 + 5


@pytest.mark.triton
@interpreted
@pytest.mark.parametrize("precision", ["fp32", "bf16", "24bit"])
@pytest.mark.parametrize("state", ["bf16", "compact-beta1-0"])
def test_its_steps_in_the_interpreter(gpu, monkeypatch, precision, state):
    monkeypatch.setattr(step, "runs_on_triton", lambda param: True)
    (row,) = rows_of(gpu, state, precision=precision)
    assert gpu.disagreement(row, "cpu") < gpu.AGREEMENT


def test_a_wrong_kernel_would_disagree(gpu, monkeypatch):
    (row,) = rows_of(gpu, "fp32")
    monkeypatch.setattr(gpu.Row, "optimizer", wrong_if_fused(gpu.Row.optimizer))
    assert gpu.disagreement(row, "cpu") > gpu.AGREEMENT


def wrong_if_fused(make):
    return lambda row, params, lr: make(row, params, lr * 1.05 if row.path == "fused" else lr)


def test_examples_of_the_bounds():
    outcome = doctest.testmod(importlib.import_module("gpu_bounds"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
