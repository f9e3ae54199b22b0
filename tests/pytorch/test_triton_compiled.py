"""The Triton kernel as machine code for GPUs that are not here: what it takes of them, and the tables of docs/gpu.md.

`benchmarks/gpu_compiled.py` compiles all instances that docs/gpu.md shows, and such a choice of the others that each
combination of three settings is among them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ademamix import formats, memory_plan
from ademamix.pytorch import step_triton

pytestmark = pytest.mark.triton

ROOT = Path(__file__).parents[2]
SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int16": 2}
CODES = {"fast": 1, "slow": 2, "square": 1}  # bytes in compact state
TARGETS = ["sm_80", "sm_90", "sm_100", "gfx942"]
LEAST_OCCUPANCY = 0.25


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What was compiled. The interpreter is off in that process; machine code is kept in build/."""
    file = tmp_path_factory.mktemp("compiled") / "report.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "benchmarks/gpu_compiled.py", "--json", str(file)]
    run = subprocess.run(command, env=environment | {"PYTHONPATH": "src"}, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def instances(report):
    """Pairs of a case and its machine code."""
    return [(instance["case"], instance["code"]) for instance in report["instances"]]


def sizes_of(case):
    """Return the bytes of an element of the gradient, and of the arrays that are written too."""
    dtypes = {name: case[name].removeprefix("torch.") for name in ("param", "grad", "slow")}
    stored = [CODES[moment] if is_coded(case) else SIZES[dtypes["slow"]] for moment in moments_of(case)]
    corrections = [1] if case["corrected"] else []
    return SIZES[dtypes["grad"]], [SIZES[dtypes["param"]], *corrections, *stored]


def moments_of(case):
    return ["fast", "slow", "square"] if case["has_fast"] else ["slow", "square"]


def is_coded(case):
    return case["slow"] == "torch.int16"


def test_all_kinds_of_instances_are_compiled(instances):
    seen = {name: {case[name] for case, _ in instances} for name in instances[0][0]}
    assert seen["target"] == set(TARGETS)
    assert len(seen["param"]) == len(seen["grad"]) == len(seen["slow"]) == 4
    assert all(len(seen[name]) == 2 for name in ("alignment", "scaled", *step_triton.Variant._fields))


def test_nothing_is_spilled_and_shared_memory_is_small(instances):
    for case, code in instances:
        assert code["spills"] == 0, case
        assert code["registers"] <= 255
        assert code["shared"] <= 8 << 10, case
        assert code["occupancy"] >= LEAST_OCCUPANCY, case


def test_operations_are_those_of_ieee_754(instances):
    """Neither flushed subnormals nor approximate division would be what the other paths compute."""
    for case, code in instances:
        assert code["inexact"] == 0, case


def test_each_array_is_read_and_written_once(instances):
    elements = step_triton.BLOCKS_PER_PROGRAM * formats.BLOCK
    for case, code in instances:
        grad, others = sizes_of(case)
        scales = len(moments_of(case)) * step_triton.BLOCKS_PER_PROGRAM if is_coded(case) else 0
        assert code["bytes_read"] == elements * (grad + sum(others)) + scales, case
        assert code["bytes_written"] == elements * sum(others) + scales, case


def widths(case, sizes):
    """Return how many accesses of how many bits a thread needs for its elements of arrays."""
    is_aligned = case["alignment"] == 16
    is_demanding = case["skips"] or (case["bounds_slow"] and is_coded(case)) or case["slow"] == "torch.float64"
    elements = 8 if is_aligned and not is_demanding else 4
    accesses = Counter()
    for size in sizes:
        at_once = min(16, elements * size) if is_aligned else size
        accesses[8 * at_once] += elements * size // at_once
    return accesses


def test_accesses_are_as_wide_as_alignment_allows(instances):
    """128 bits, or 64 where the elements of a thread have no more. A store of a scale is one of 8 bits."""
    for case, code in instances:
        grad, others = sizes_of(case)
        stores = widths(case, others)
        stores[8] += len(moments_of(case)) if is_coded(case) else 0
        assert {int(bits): count for bits, count in code["stores"].items()} == +stores, case
        loads = {int(bits): count for bits, count in code["loads"].items()}
        wide = widths(case, [grad, *others])[128]
        # LLVM joins loads of coefficients for AMD
        assert loads.get(128, 0) >= wide if case["target"] == "gfx942" else loads.get(128, 0) == wide, case


def test_adamw_of_inductor_moves_the_bytes_of_adamw(report):
    assert len(report["adamw"]) == 6
    for entry in report["adamw"]:
        code = entry["code"]
        plan = memory_plan.plan([(1024, 128)], "adamw", devices=1, shard="ddp", precision=entry["precision"])
        two_programs = 2 * 1024
        moved = (code["bytes_read"] + code["bytes_written"]) / two_programs
        assert moved == (2 * plan.parameters + plan.gradients + 2 * plan.state) / (1024 * 128)
        assert code["spills"] == 0


def test_the_page_has_these_tables(report):
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert report["tables"].keys() == {"compiled", "times", "instances"}
    for name, table in report["tables"].items():
        assert page.count(table) == 1, f"table of {name} in docs/gpu.md: run benchmarks/gpu_compiled.py --write"
