"""`ademamix bench`: step time and state memory of our paths, of torch's AdamW and of other AdEMAMix, as ratios.

Absolute step times say more about the machine and its other users than about an optimizer, so only ratios are
reported. The optimizers of a scenario hold the same parameters and gradients in one process and step in turns; each
counts with its fastest step. That is done in several fresh processes, and the median of their ratios is reported. A
peer has processes of its own, together with the AdamW that it is compared with: the state of all of them at once does
not fit into the memory of a laptop, and a peer that crashes takes nothing else down.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ademamix.lab.bench import optax_steps
from ademamix.lab.bench.measure import Result, Row, Shape, measure
from ademamix.lab.runs.machine import processor

FRAMEWORKS = ("jax", "numpy", "torch")
IMPORT_TARGET = 0.050  # seconds
PROCESS_TIMEOUT = 3600.0  # seconds; then a peer that never stops compiling is given up
LEARNING_RATE = 1e-6  # thousands of steps on one gradient leave the parameters where they are
STEPS = 100_000  # the horizon of the schedules, which are on for every optimizer that has them

ADAMW_FUSED = "torch AdamW fused"
ADAMW_FOREACH = "torch AdamW foreach"


def _make(module: str, name: str, **settings: Any) -> Callable[[list[Any]], Any]:
    """Return a factory that imports the optimizer only when it is called."""
    return lambda params: getattr(importlib.import_module(module), name)(params, lr=LEARNING_RATE, **settings)


def _ademamix(**settings: Any) -> Callable[[list[Any]], Any]:
    return _make("ademamix", "AdEMAMix", total_steps=STEPS, **settings)


def _peer(module: str, name: str, **settings: Any) -> Row:
    package = module.partition(".")[0]
    return Row(f"{package} {name}", ADAMW_FUSED, _make(module, name, **settings), package=package)


ROWS = (
    Row(ADAMW_FUSED, ADAMW_FUSED, _make("torch.optim", "AdamW", fused=True)),
    Row("ademamix fused", ADAMW_FUSED, _ademamix(fused=True), target=1.30),
    Row("ademamix fused, beta1=0", ADAMW_FUSED, _ademamix(fused=True, betas=(0.0, 0.999)), target=1.05),
    Row("ademamix fused, bf16", ADAMW_FUSED, _ademamix(fused=True, state_storage="bf16"), target=1.10),
    Row("ademamix fused, compact", ADAMW_FUSED, _ademamix(fused=True, state_storage="compact"), target=1.25),
    Row(
        "ademamix compact, beta1=0",
        ADAMW_FUSED,
        _ademamix(fused=True, state_storage="compact", betas=(0.0, 0.999)),
        target=1.25,
    ),
    Row(ADAMW_FOREACH, ADAMW_FUSED, _make("torch.optim", "AdamW", foreach=True)),
    Row("ademamix foreach", ADAMW_FOREACH, _ademamix(foreach=True), target=1.50),
    Row("ademamix single", ADAMW_FOREACH, _ademamix(foreach=False, fused=False)),
    _peer("heavyball", "AdEMAMix", weight_decay=1e-2, alpha=5.0, alpha_warmup=STEPS, beta3_warmup=STEPS),
    _peer("pytorch_optimizer", "AdEMAMix", weight_decay=1e-2, weight_decouple=True, t_alpha_beta3=STEPS),
    _peer("bitsandbytes.optim", "AdEMAMix", t_alpha=STEPS, t_beta3=STEPS),
    _peer("bitsandbytes.optim", "AdEMAMix8bit", t_alpha=STEPS, t_beta3=STEPS),
    _peer("torchao.optim", "AdamW8bit"),
    _peer("torchao.optim", "AdamWFp8"),
)


@dataclass(frozen=True)
class Scenario:
    """Parameters to step, and for how many seconds in each process to step each optimizer."""

    title: str
    shapes: tuple[Shape, ...]
    quick_shapes: tuple[Shape, ...]
    seconds: float


def gpt2_shapes(
    *, layers: int = 12, width: int = 768, vocabulary: int = 50257, context: int = 1024
) -> tuple[Shape, ...]:
    """Return the shapes of the parameters of GPT-2 in its own order; the defaults are those of the 124M model."""
    norm: tuple[Shape, ...] = ((width,), (width,))
    attention: tuple[Shape, ...] = ((width, 3 * width), (3 * width,), (width, width), (width,))
    mlp: tuple[Shape, ...] = ((width, 4 * width), (4 * width,), (4 * width, width), (width,))
    return ((vocabulary, width), (context, width), *layers * (*norm, *attention, *norm, *mlp), *norm)


SCENARIOS = {
    "gpt2": Scenario("GPT-2 124M", gpt2_shapes(), gpt2_shapes(layers=2, width=48, vocabulary=101, context=64), 10.0),
    "large": Scenario("one large tensor", ((1 << 13, 1 << 12),), ((1 << 6, 1 << 10),), 5.0),
    "small": Scenario("200 tensors of 1k", 200 * ((1024,),), 20 * ((1024,),), 2.0),
}
QUICK_SECONDS = 0.1
IMPORT = "import"  # the scenario that steps nothing
OPTAX = "optax"  # measured by optax_steps
NAMES = (*SCENARIOS, OPTAX, IMPORT)


def run(
    *,
    quick: bool = False,
    processes: int | None = None,
    threads: int | None = None,
    only: str | None = None,
    with_peers: bool = True,
    json_file: Path | None = None,
) -> int:
    """Measure, print a table per scenario, and return 0 unless something of ours or torch's could not be measured.

    Args:
        quick: tiny tensors and one process, to see that everything works; its ratios mean nothing.
        processes: fresh processes per scenario, 5 if None.
        threads: threads of torch and of the peers; None for torch's own choice.
        only: one of `NAMES`.
        with_peers: also measure the peers that are installed.
        json_file: rewritten after each scenario.
    """
    if only not in (IMPORT, OPTAX) and importlib.util.find_spec("torch") is None:
        raise SystemExit("ademamix bench needs PyTorch: pip install 'ademamix[lab]'")
    processes = processes or (1 if quick else 5)
    peers = list(dict.fromkeys(row.package for row in ROWS if row.package is not None)) if with_peers else []
    missing = [peer for peer in peers if importlib.util.find_spec(peer) is None]
    report: dict[str, Any] = {
        "environment": _environment() | {"quick": quick, "processes": processes, "missing_peers": missing},
        "scenarios": {},
    }
    broken = False
    for name in NAMES if only is None else (only,):
        if name == IMPORT:
            report[IMPORT] = measured = measure_import(3 if quick else 10)
            print(_import_line(measured))
            broken |= bool(measured["frameworks"])
        elif name == OPTAX:
            report[OPTAX] = optax_steps.run(quick=quick, processes=processes)
            print("\n".join(optax_steps.table(report[OPTAX])), flush=True)
        else:
            job = {"scenario": name, "quick": quick, "threads": threads}
            packages = [None, *(peer for peer in peers if peer not in missing)]
            report["scenarios"][name] = scenario = _measure_scenario(job, packages, processes, report["environment"])
            print("\n".join(_table(name, scenario)), flush=True)
            broken |= any(row["error"] and row["package"] is None for row in scenario["rows"])
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(_footer(report["environment"])))
    return int(broken)


def _measure_scenario(
    job: dict[str, Any], packages: Iterable[str | None], processes: int, environment: dict[str, Any]
) -> dict[str, Any]:
    """Measure the rows of each package in fresh processes; also note their findings in `environment`."""
    scenario = SCENARIOS[job["scenario"]]
    shapes = scenario.quick_shapes if job["quick"] else scenario.shapes
    parameters = sum(math.prod(shape) for shape in shapes)
    rows = []
    for package in packages:
        own = [row for row in ROWS if row.package == package]
        needed = list(dict.fromkeys([*(row.baseline for row in own), *(row.name for row in own)]))
        runs: list[dict[str, Result]] = []
        for number in range(1, processes + 1):
            _progress(f"{job['scenario']}: {package or 'ademamix and torch'}, process {number} of {processes}")
            answer = _in_fresh_process(job | {"rows": needed})
            environment.update({key: answer[key] for key in ("torch", "threads") if key in answer})
            runs.append(answer.get("results") or {name: {"error": answer["error"]} for name in needed})
            if all("error" in runs[-1][row.name] for row in own):
                break  # it would fail again
        rows += [_summary(row, runs, parameters) for row in own]
    _progress("")
    return {"title": scenario.title, "tensors": len(shapes), "parameters": parameters, "rows": rows}


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
    shapes, seconds = (scenario.quick_shapes, QUICK_SECONDS) if job["quick"] else (scenario.shapes, scenario.seconds)
    results = measure(rows, shapes, seconds)
    json.dump({"results": results, "torch": torch.__version__, "threads": torch.get_num_threads()}, output)
    output.close()


def _summary(row: Row, runs: Sequence[dict[str, Result]], parameters: int) -> dict[str, Any]:
    """Put together the findings of the processes about `row`."""
    summary: dict[str, Any] = {"name": row.name, "package": row.package, "baseline": row.baseline, "target": row.target}
    for run in runs:
        if "error" in run[row.name]:
            return summary | {"error": run[row.name]["error"]}
        if "error" in run[row.baseline]:
            return summary | {"error": f"{row.baseline} failed"}
    ratios = [run[row.name]["seconds"] / run[row.baseline]["seconds"] for run in runs]
    ratio = statistics.median(ratios)
    return summary | {
        "error": None,
        "ratio": ratio,
        "ratios": ratios,
        "met": None if row.target is None else ratio <= row.target,
        "seconds": min(run[row.name]["seconds"] for run in runs),
        "steps": min(run[row.name]["steps"] for run in runs),
        "state_bytes_per_parameter": runs[0][row.name]["state_bytes"] / parameters,
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


def _table(name: str, scenario: dict[str, Any]) -> list[str]:
    """Lay out one scenario, a line per row, and a line for each that failed."""
    base = next(row for row in scenario["rows"] if row["name"] == ADAMW_FUSED)
    speed = "" if base["error"] else f"; {ADAMW_FUSED} takes {1e3 * base['seconds']:.4g} ms a step"
    form = "  {:<27} {:>6}  {:<15}  {:<19}  {:<12} {:>6}"
    lines = [
        f"{name}: {scenario['title']} ({scenario['tensors']} tensors, {scenario['parameters']:,} parameters{speed})",
        form.format("optimizer", "time", "lowest..highest", "to", "target", "state").rstrip(),
    ]
    for row in scenario["rows"]:
        if row["error"]:
            lines.append(f"  {row['name']:<27} failed: {row['error']}")
            continue
        is_base = row["name"] == row["baseline"]
        target = "" if row["target"] is None else f"{row['target']:.2f} {'met' if row['met'] else 'not met'}"
        spread = "" if is_base else f"{min(row['ratios']):.2f}..{max(row['ratios']):.2f}"
        to, state = "" if is_base else row["baseline"], f"{row['state_bytes_per_parameter']:.2f}"
        lines.append(form.format(row["name"], f"{row['ratio']:.2f}", spread, to, target, state))
    return [*lines, ""]


def _import_line(measured: dict[str, Any]) -> str:
    met = "met" if measured["met"] else "not met"
    loaded = ", ".join(measured["frameworks"]) or "no framework"
    return (
        f"{IMPORT}: `import ademamix` takes {1e3 * measured['seconds']:.1f} ms "
        f"(target under {1e3 * measured['target']:.0f} ms: {met}) and loads {loaded}\n"
    )


def _footer(environment: dict[str, Any]) -> list[str]:
    e = environment
    load = "" if e["load"] is None else f", load average {e['load']:.1f} at the start"
    torch = f", {e['threads']} thread{'' if e['threads'] == 1 else 's'}, torch {e['torch']}" if "torch" in e else ""
    lines = [
        "time: fastest step, over that of the optimizer under `to` in the same process; median, lowest and highest",
        f"of {e['processes']} process{'es' if e['processes'] > 1 else ''}. state: bytes per parameter.",
        f"{e['cpu']}{torch}{load}",
    ]
    if e["missing_peers"]:
        lines.append(f"not installed: {', '.join(e['missing_peers'])}; `make bench` installs them")
    if e["quick"]:
        lines.append("This was --quick: the tensors are too small for its ratios to mean anything.")
    return lines


def _environment() -> dict[str, Any]:
    return {
        "cpu": processor(),
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
