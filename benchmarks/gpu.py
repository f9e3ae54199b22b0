"""The time of a step on the GPU of this machine, over that of torch.optim.AdamW(fused=True): to be run once.

Nobody has done so yet. First it checks on small tensors that fused steps do what the readable path does. Then the
optimizers step in turns, on the parameters of GPT-2 124M; the fastest step of each counts. The time on the GPU is taken
by events while the host is ahead of it; the time on the wall has both. It needs 10 GB of memory.

    python benchmarks/gpu.py                     # prints a table
    python benchmarks/gpu.py --json h100.json    # also writes the figures, with the card and the versions
    python benchmarks/gpu.py --quick             # seconds, on small tensors: their ratios mean nothing

Please send the JSON: docs/gpu.md has a place for it beside the times that were computed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix import AdEMAMix
from ademamix.lab.bench.rows import gpt2_shapes
from gpu_bounds import CARDS, SETTINGS, Setting
from study import markdown

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LEARNING_RATE = 1e-6  # thousands of steps on one gradient leave the parameters where they are
AHEAD = 20_000_000  # clocks that the GPU waits, in which the host prepares a step
WALL_STEPS = 10
QUICK_SHAPES = gpt2_shapes(layers=2, width=48, vocabulary=101, context=64)
SMALL_SHAPES = ((64, 64), (41, 100), (33, 129), (5,))  # whole blocks, parts of them, and what stays fp32
AGREEMENT = 1e-2  # of the way that parameters went; other last bits round a few of them to another neighbour
Shapes = Sequence[tuple[int, ...]]
Timer = Callable[[Callable[[], object]], tuple[float, float]]  # the seconds of a step on the GPU, and on the wall


class Row(NamedTuple):
    """An optimizer of the table."""

    setting: Setting
    path: str  # "fused", "foreach" or "single"

    @property
    def title(self) -> str:
        """The parameters, and the optimizer with its state."""
        return f"{self.setting.precision} parameters, {self.setting.title}"

    @property
    def baseline(self) -> Row:
        """What its time is divided by."""
        return Row(self.setting.adamw, "fused")

    def optimizer(self, params: list[Tensor], lr: float = LEARNING_RATE) -> torch.optim.Optimizer:
        """Return the optimizer for some parameters."""
        paths: dict[str, Any] = {"fused": self.path == "fused", "foreach": self.path == "foreach"}
        if self.setting.state == "adamw":
            return torch.optim.AdamW(params, lr=lr, **paths)
        storage, _, no_fast = self.setting.state.partition("-")
        betas = (0.0 if no_fast else 0.9, 0.999)
        master = "24bit" if self.setting.precision == "24bit" else None
        return AdEMAMix(params, lr=lr, betas=betas, total_steps=100_000, state_storage=storage, master=master, **paths)


Results = dict[Row, dict[str, Any]]  # seconds, or an error

FUSED = tuple(Row(setting, "fused") for setting in SETTINGS)
FOREACH = tuple(Row(Setting("fp32", state), "foreach") for state in ("adamw", "fp32"))


def parameters(shapes: Shapes, dtype: torch.dtype, device: str) -> list[Tensor]:
    """Return parameters with gradients, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    params = []
    for shape in shapes:
        param = (0.02 * torch.randn(shape, generator=generator)).to(device, dtype).requires_grad_()
        param.grad = (1e-3 * torch.randn(shape, generator=generator)).to(device, dtype)
        params.append(param)
    return params


def disagreement(row: Row, device: str) -> float:
    """Return how far the parameters end from those of the readable path, as a share of the way that they went."""
    dtype = DTYPES[row.setting.dtype]
    start = parameters(SMALL_SHAPES, dtype, device)
    ends = []
    for path in (row.path, "single"):
        params = parameters(SMALL_SHAPES, dtype, device)
        optimizer = row._replace(path=path).optimizer(params, lr=1e-2)
        for _ in range(3):
            optimizer.step()
        ends.append(params)
    return _distance(*ends) / _distance(start, ends[1])


def _distance(params: list[Tensor], others: list[Tensor]) -> float:
    differences = [x.detach().double() - y.detach().double() for x, y in zip(params, others, strict=True)]
    return math.sqrt(sum(float(difference.square().sum()) for difference in differences))


def check(row: Row, device: str) -> dict[str, Any]:
    """Return how far a fused step is from the readable path, or its error, and tell."""
    try:
        distance = disagreement(row, device)
        found, verdict = {"disagreement": distance}, "agrees" if distance < AGREEMENT else "DISAGREES"
        print(f"{row.title}: {verdict} with the readable path ({distance:.1e})")
    except Exception as error:
        found = {"error": _short(error)}
        print(f"{row.title}: {found['error']}")
    return found


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def time_on_gpu(step: Callable[[], object]) -> tuple[float, float]:
    """Take steps, and return the seconds of one on the GPU and on the wall."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(AHEAD)
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    before = time.perf_counter()
    for _ in range(WALL_STEPS):
        step()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3, (time.perf_counter() - before) / WALL_STEPS


def measure(rows: Sequence[Row], shapes: Shapes, repeats: int, device: str, timer: Timer) -> Results:
    """Step the optimizers of `rows`, all of one dtype, in turns; return the fastest times of each, or its error."""
    params = parameters(shapes, DTYPES[rows[0].setting.dtype], device)
    results: Results = {row: {} for row in rows}
    steps = {}
    for row in rows:
        try:
            optimizer = row.optimizer(params)
            for _ in range(3):  # the state is allocated, and kernels are compiled
                optimizer.step()
            steps[row] = optimizer.step
        except Exception as error:
            results[row] = {"error": _short(error)}
    order = random.Random(0)
    for _ in range(repeats):
        for row in order.sample(list(steps), len(steps)):
            gpu, wall = timer(steps[row])
            best = results[row]
            best["gpu"], best["wall"] = min(gpu, best.get("gpu", math.inf)), min(wall, best.get("wall", math.inf))
    return results


def copy_bandwidth(elements: int, repeats: int, timer: Timer, device: str) -> float:
    """Return the bytes per second that a copy of the parameters reads and writes: what the memory of this GPU gives."""
    source = torch.ones(elements, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / min(timer(lambda: target.copy_(source))[0] for _ in range(repeats))


def table(results: Results, shapes: Shapes, bandwidth: float, card: str) -> str:
    """Return the table of what was measured, beside what was computed for the card, if it is a known one."""
    known = next((known for known in CARDS if known.name in card), None)
    lines = []
    for row, result in results.items():
        names = [row.setting.precision, row.setting.title, row.path]
        base = results[row.baseline]
        if "error" in result or "error" in base:
            lines.append([*names, result.get("error", "AdamW failed"), *[""] * 5])
            continue
        speed = row.setting.traffic(shapes) / result["gpu"]
        computed = f"{1e3 * row.setting.traffic(shapes) / known.bandwidth:.2f}" if known and row.path == "fused" else ""
        ratios = [f"{result[clock] / base[clock]:.2f}" for clock in ("gpu", "wall")]
        own = [f"{speed / 1e9:.0f}", f"{speed / bandwidth:.0%}"] if row.path == "fused" else ["", ""]
        lines.append([*names, f"{1e3 * result['gpu']:.3f}", computed, *ratios, *own])
    header = [
        "parameters",
        "optimizer, state",
        "path",
        "ms",
        "computed",
        "over AdamW",
        "on the wall",
        "GB/s",
        "of a copy",
    ]
    return markdown(header, lines)


def environment() -> dict[str, Any]:
    """Return what the figures depend on."""
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "card": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "triton": triton.__version__,
    }


def run(found: dict[str, Any], shapes: Shapes, repeats: int, device: str, timer: Timer) -> dict[str, Any]:
    """Check, measure and print; return the figures as data."""
    print(", ".join(f"{key} {value}" for key, value in found.items()))
    checks = {row: check(row, device) for row in FUSED if row.setting.state != "adamw"}
    elements = sum(map(math.prod, shapes))
    bandwidth = copy_bandwidth(elements, repeats, timer, device)
    results: Results = {}
    for dtype in DTYPES:
        rows = [row for row in (*FUSED, *FOREACH) if row.setting.dtype == dtype]
        results |= measure(rows, shapes, repeats, device, timer)
    print(f"\n{elements:,} parameters; a copy moves {bandwidth / 1e9:.0f} GB/s")
    print(table(results, shapes, bandwidth, found["card"]))
    return {**found, "parameters": elements, "copy": bandwidth, "checks": records(checks), "rows": records(results)}


def records(results: Results) -> list[dict[str, Any]]:
    """Return what was found about rows as data."""
    return [{**row.setting._asdict(), "path": row.path, **figures} for row, figures in results.items()]


def main() -> None:
    """Read the options, refuse without a GPU, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small tensors, to see that everything works")
    parser.add_argument("--repeats", type=int, default=50, help="timed steps of each optimizer (default: 50)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py measures on a GPU, and torch finds none on this machine.", file=sys.stderr)
        sys.exit(2)
    report = run(environment(), QUICK_SHAPES if options.quick else gpt2_shapes(), options.repeats, "cuda", time_on_gpu)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
