"""`ademamix bench`: step time and state memory of our paths, of torch's AdamW and of other AdEMAMix, as ratios.

Absolute step times say more about the machine and its other users than about an optimizer, so ratios are reported
first. The optimizers of a scenario hold the same parameters and gradients in one process and step in turns; each counts
with its fastest step. That is done in several fresh processes, and the median of their ratios is reported. A peer has
processes of its own, together with the AdamW that it is compared with: the state of all of them at once does not fit
into the memory of a laptop, and a peer that crashes takes nothing else down. So do bf16 parameters.

This module imports torch only inside the processes that measure.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ademamix import native
from ademamix.lab.bench import optax_steps, tables
from ademamix.lab.bench.measure import Result, measure
from ademamix.lab.bench.rows import (
    BF16_PARAMETERS,
    IMPORT,
    NAMES,
    OPTAX,
    QUICK_SECONDS,
    ROWS,
    SCENARIOS,
    Row,
    Scenario,
)
from ademamix.lab.runs.machine import processor, processor_model

FRAMEWORKS = ("jax", "numpy", "torch")
IMPORT_TARGET = 0.050  # seconds
PROCESS_TIMEOUT = 3600.0  # seconds; then a peer that never stops compiling is given up


def run(
    *,
    quick: bool = False,
    processes: int | None = None,
    threads: int | None = None,
    only: str | None = None,
    peers: Sequence[str] = (),
    with_own: bool = True,
    json_file: Path | None = None,
) -> int:
    """Measure, print a table per scenario, and return 0 unless something of ours or torch's could not be measured.

    Args:
        quick: tiny tensors and one process, to see that everything works; its ratios mean nothing.
        processes: fresh processes per scenario, 5 if None.
        threads: threads of torch and of the peers; None for torch's own choice.
        only: one of `NAMES`.
        peers: packages to measure as well; those that are not installed are only named.
        with_own: measure our paths and torch's; else the peers alone, with what they are compared with.
        json_file: rewritten after each scenario.
    """
    if only not in (IMPORT, OPTAX) and importlib.util.find_spec("torch") is None:
        raise SystemExit("ademamix bench needs PyTorch: pip install 'ademamix[lab]'")
    processes = processes or (1 if quick else 5)
    missing = [peer for peer in peers if importlib.util.find_spec(peer) is None]
    packages: set[str | None] = set(peers) - set(missing) | ({None} if with_own else set())
    report: dict[str, Any] = {
        "environment": _environment() | {"quick": quick, "processes": processes, "missing_peers": missing},
        "scenarios": {},
    }
    broken = False
    for name in (only,) if only is not None else NAMES if with_own else SCENARIOS:
        if name == IMPORT:
            report[IMPORT] = measured = measure_import(3 if quick else 10)
            print(tables.import_line(measured))
            broken |= bool(measured["frameworks"])
        elif name == OPTAX:
            report[OPTAX] = optax_steps.run(quick=quick, processes=processes)
            print("\n".join(optax_steps.table(report[OPTAX])), flush=True)
        else:
            job = {"scenario": name, "quick": quick, "threads": SCENARIOS[name].threads or threads}
            report["scenarios"][name] = scenario = _measure_scenario(job, packages, processes, report["environment"])
            print("\n".join(tables.scenario_table(name, scenario)), flush=True)
            broken |= any(row["error"] and row["package"] is None for row in scenario["rows"])
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(tables.footer(report["environment"])))
    return int(broken)


def _measure_scenario(
    job: dict[str, Any], packages: set[str | None], processes: int, environment: dict[str, Any]
) -> dict[str, Any]:
    """Measure the rows of `packages` in fresh processes; also note the version of torch in `environment`."""
    scenario = SCENARIOS[job["scenario"]]
    shapes = _shapes(scenario, job["quick"])
    measured: dict[str, Any] = {
        "title": scenario.title,
        "tensors": len(shapes),
        "parameters": sum(math.prod(shape) for shape in shapes),
        "threads": None,
        "rows": [],
    }
    chosen = [row for row in scenario.rows if row.package in packages]
    for package, dtype in dict.fromkeys((row.package, row.parameters) for row in chosen):
        own = [row for row in chosen if (row.package, row.parameters) == (package, dtype)]
        needed = list(dict.fromkeys([*(row.baseline for row in own), *(row.name for row in own)]))
        label = (package or "ademamix and torch") + (", bf16 parameters" if dtype == BF16_PARAMETERS else "")
        runs: list[dict[str, Result]] = []
        for number in range(1, processes + 1):
            _progress(f"{job['scenario']}: {label}, process {number} of {processes}")
            answer = _in_fresh_process(job | {"rows": needed})
            if "torch" in answer:
                environment["torch"], measured["threads"] = answer["torch"], answer["threads"]
            runs.append(answer.get("results") or {name: {"error": answer["error"]} for name in needed})
            if all("error" in runs[-1][row.name] for row in own):
                break  # it would fail again
        measured["rows"] += [_summary(row, scenario, runs, measured["parameters"]) for row in own]
    _progress("")
    return measured


def _shapes(scenario: Scenario, quick: bool) -> tuple[tuple[int, ...], ...]:
    return scenario.quick_shapes if quick else scenario.shapes


def _in_fresh_process(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a new interpreter; return its answer, or the error that ended it."""
    environment = dict(os.environ)
    if job["threads"] is not None:
        environment["OMP_NUM_THREADS"] = str(job["threads"])  # for the threads that are not torch's
    command = [sys.executable, "-c", f"from {__name__} import _measuring_process; _measuring_process()"]
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, env=environment, timeout=PROCESS_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {PROCESS_TIMEOUT:g} seconds"}
    if done.returncode != 0 or not done.stdout:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"error": f"the process ended with code {done.returncode}: {last}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _measuring_process() -> None:
    """Read a job from stdin, and write the measurements to stdout."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not come between
    import torch

    job = json.load(sys.stdin)
    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    scenario = SCENARIOS[job["scenario"]]
    rows = [row for row in ROWS if row.name in job["rows"]]
    seconds = QUICK_SECONDS if job["quick"] else scenario.seconds
    results = measure(rows, _shapes(scenario, job["quick"]), seconds, turn=scenario.turn)
    json.dump({"results": results, "torch": torch.__version__, "threads": torch.get_num_threads()}, output)
    output.close()


def _summary(row: Row, scenario: Scenario, runs: Sequence[dict[str, Result]], parameters: int) -> dict[str, Any]:
    """Put together the findings of the processes about `row`."""
    target = scenario.target(row.name, processor())
    summary = {"name": row.name, "package": row.package, "baseline": row.baseline, "target": target}
    for run in runs:
        if "error" in run[row.name]:
            return summary | {"error": run[row.name]["error"]}
        if "error" in run[row.baseline]:
            return summary | {"error": f"{row.baseline} failed"}
    ratios = [run[row.name]["seconds"] / run[row.baseline]["seconds"] for run in runs]
    ratio = statistics.median(ratios)
    seconds = min(run[row.name]["seconds"] for run in runs)
    state = runs[0][row.name]["state_bytes"] / parameters
    return summary | {
        "error": None,
        "ratio": ratio,
        "ratios": ratios,
        "met": None if target is None else ratio <= target,
        "seconds": seconds,
        "steps": min(run[row.name]["steps"] for run in runs),
        "ns_per_parameter": 1e9 * seconds / parameters,
        "state_bytes_per_parameter": state,
        **_speeds(row, runs, seconds, state, parameters),
    }


def _speeds(
    row: Row, runs: Sequence[dict[str, Result]], seconds: float, state: float, parameters: int
) -> dict[str, float | None]:
    """Return the bytes per parameter that a step moves, its speed in GB/s, and that of a loop without arithmetic."""
    own = 2 if row.parameters == BF16_PARAMETERS else 4  # bytes of a parameter, and of its gradient
    moved = 2 * (state + own) + own
    bare = [run[row.name]["bare_seconds"] for run in runs]

    def speed(seconds: float | None) -> float | None:
        return 1e-9 * moved * parameters / seconds if row.one_pass and seconds is not None else None

    return {
        "bytes_moved": moved if row.one_pass else None,
        "gigabytes_per_second": speed(seconds),
        "bare_gigabytes_per_second": speed(min((x for x in bare if x is not None), default=None)),
    }


def measure_import(repeats: int) -> dict[str, Any]:
    """Import `ademamix` in fresh interpreters: the shortest time, and the frameworks that it loaded."""
    code = (
        "import json, sys, time; before = set(sys.modules); start = time.perf_counter(); import ademamix; "
        f"seconds = time.perf_counter() - start; loaded = (set(sys.modules) - before) & set({FRAMEWORKS!r}); "
        "print(json.dumps([seconds, sorted(loaded)]))"
    )
    _progress(f"{IMPORT}: {repeats} fresh interpreters")
    found = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(repeats)
    ]
    _progress("")
    seconds = min(seconds for seconds, _ in found)
    return {"seconds": seconds, "target": IMPORT_TARGET, "met": seconds < IMPORT_TARGET, "frameworks": found[0][1]}


def _environment() -> dict[str, Any]:
    return {
        "cpu": ", ".join(filter(None, (processor(), processor_model()))),
        "instruction_set": None if native.core is None else native.core.instruction_set(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def _progress(text: str) -> None:
    """Show progress on stderr: on a terminal in one line, which an empty text clears."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)
