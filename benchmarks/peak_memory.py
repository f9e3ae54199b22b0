"""Measure the peak memory of a whole training step, of AdamW and of AdEMAMix in each combination.

Each row is a process of its own: it builds a transformer of 85 million parameters and its optimizer, takes a step so
that the state exists, and then measures another one: forward, backward, step. What is measured is the peak of the
memory that is resident (VmHWM of Linux, set back before that step) above what was resident before the model was built.
Nothing is estimated: activations, temporaries and workspaces of torch's operators are in it. So that freed memory is
gone at once, glibc's allocator is told to give blocks of 64 KB and more back to the system, and huge pages are off.
The batch is small, 64 tokens, so that activations are a small part.

The last columns are what parameters, gradients, masters and state take by the formulas of ademamix.memory_plan.

With gradient release, each parameter is stepped in the backward pass and its gradient freed. AdamW has an optimizer for
each parameter for that, as in torch's tutorial. AdamW with fp32 masters keeps them beside bf16 parameters; gradients
are widened one after another, and each bf16 gradient is freed when that is done.

    python benchmarks/peak_memory.py            # some minutes; needs 3 GB, and Linux
    python benchmarks/peak_memory.py --quick    # a smaller model: seconds, and nothing to go by
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix import AdEMAMix, memory_plan
from ademamix.pytorch.gradient_release import gradient_release
from small_lm import Shape, SmallTransformer, training_batches
from study import Progress, Results, markdown, parse

SHAPE = Shape(width=768, layers=12, heads=12, context=64, batch=1)
QUICK_SHAPE = Shape(width=256, layers=4, heads=4, context=64, batch=1)
WARMUP_SHAPE = Shape(width=64, layers=1, heads=4, context=64, batch=1)
PR_SET_THP_DISABLE = 41
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}


class Row(NamedTuple):
    """What is trained, by the names of ademamix.memory_plan."""

    state: str
    precision: str

    @property
    def title(self) -> str:
        """Its name in the table."""
        parameters = {
            "fp32": "fp32",
            "bf16": "bf16, stochastic rounding",
            "24bit": "bf16, fp32 masters" if self.state == "adamw" else "bf16, 24-bit masters",
        }
        return f"{memory_plan.STATE_FORMATS[self.state].title} | {parameters[self.precision]}"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model."""
        return torch.float32 if self.precision == "fp32" else torch.bfloat16


STATES = ("fp32", "bf16", "compact", "compact-beta1-0")
ROWS = (
    Row("adamw", "fp32"),
    Row("adamw", "24bit"),
    *(Row(state, precision) for precision in ("fp32", "bf16", "24bit") for state in STATES),
)


def ademamix_step(row: Row, model: SmallTransformer, *, release: bool) -> Callable[[], None]:
    """Return what takes a step after the backward pass."""
    storage, _, no_fast = row.state.partition("-")
    betas = (0.0 if no_fast else 0.9, 0.999)
    master = "24bit" if row.precision == "24bit" else None
    optimizer = AdEMAMix(model.parameters(), betas=betas, total_steps=1000, state_storage=storage, master=master)
    if release:
        gradient_release(model, optimizer)
        return lambda: None
    return lambda: (optimizer.step(), optimizer.zero_grad())[1]


def adamw_step(row: Row, model: SmallTransformer, *, release: bool) -> Callable[[], None]:
    """The same for AdamW, on masters in fp32 if the model is in bf16."""
    params = list(model.parameters())
    masters = params if row.dtype == torch.float32 else [param.detach().float() for param in params]
    optimizers = [torch.optim.AdamW([x], fused=True) for x in masters] if release else []
    together = None if release else torch.optim.AdamW(masters, fused=True)

    def hand_over(param: Tensor, master: Tensor) -> None:
        if param is not master:
            master.grad, param.grad = param.grad.float(), None

    def take_back(param: Tensor, master: Tensor) -> None:
        master.grad = None
        if param is not master:
            param.data.copy_(master)

    def step_one(i: int) -> None:
        hand_over(params[i], masters[i])
        optimizers[i].step()
        take_back(params[i], masters[i])

    def step_all() -> None:
        for pair in zip(params, masters, strict=True):
            hand_over(*pair)
        together.step()
        for pair in zip(params, masters, strict=True):
            take_back(*pair)

    if not release:
        return step_all
    for i, param in enumerate(params):
        param.register_post_accumulate_grad_hook(lambda _, i=i: step_one(i))
    return lambda: None


def measure(row: Row, shape: Shape, *, release: bool) -> dict[str, int]:
    """Return the bytes of a step's peak, and the number of parameters. Only right in a process of its own."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    batches = training_batches(shape, seed=0)
    _train(row, WARMUP_SHAPE, training_batches(WARMUP_SHAPE, seed=0), release=release)()  # loads all that torch loads
    gc.collect()
    before = _resident("RSS")
    model = SmallTransformer(shape)
    step = _train(row, shape, batches, model=model, release=release)
    step()
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back
    step()
    return {"bytes": _resident("HWM") - before, "parameters": sum(param.numel() for param in model.parameters())}


def _train(
    row: Row, shape: Shape, batches: Any, *, model: SmallTransformer | None = None, release: bool
) -> Callable[[], None]:
    """Return a function that takes a whole step."""
    model = (model or SmallTransformer(shape)).to(row.dtype)
    take_step = (adamw_step if row.state == "adamw" else ademamix_step)(row, model, release=release)

    def step() -> None:
        model.loss(next(batches)).backward()
        take_step()

    return step


def _resident(which: str) -> int:
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"Vm{which}:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])


def measured_apart(number: int, *, release: bool, quick: bool) -> dict[str, int]:
    """Measure a row in a new process."""
    command = [sys.executable, __file__, "--row", str(number), *["--release"] * release, *["--quick"] * quick]
    done = subprocess.run(command, env={**os.environ, **GIVEN_BACK}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{ROWS[number].title}: {done.stderr}")
    found, parameters = map(int, done.stdout.split())
    return {"bytes": found, "parameters": parameters}


def planned(row: Row, shape: Shape, *, release: bool) -> float:
    """Return the bytes per parameter that formulas give, without gradients if they are released."""
    shapes = [tuple(param.shape) for param in SmallTransformer(shape).parameters()]
    device = memory_plan.plan(shapes, row.state, devices=1, shard="ddp", precision=row.precision)
    gradients = 0 if release else device.gradients
    if row.state == "adamw" and row.precision == "24bit" and not release:
        gradients *= 2  # they are in fp32 during the step, when those in bf16 are gone
    return (device.memory - device.gradients + gradients) / sum(map(torch.Size.numel, map(torch.Size, shapes)))


def report(results: Results, shape: Shape) -> str:
    rows = []
    for row in ROWS:
        cells = row.title.split(" | ")
        for form in ("measured", "by formula"):
            for release in (False, True):
                found = results[f"{row.title} | {'released' if release else 'kept'}"]
                size = (
                    found["bytes"] / found["parameters"] if form == "measured" else planned(row, shape, release=release)
                )
                cells.append(f"{size:.2f}")
        rows.append(cells)
    elements = results[f"{ROWS[0].title} | kept"]["parameters"]
    header = ["optimizer, state", "parameters", "peak", "released", "formula", "formula, released"]
    return f"bytes per parameter at the peak of a training step, {elements:,} parameters\n\n{markdown(header, rows)}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--row", type=int, default=None, help="measure one row in this process, and print bytes")
    parser.add_argument("--release", action="store_true", help="with gradient release, for --row")


def main() -> None:
    options = parse(__doc__ or "", add_options)
    shape = QUICK_SHAPE if options.quick else SHAPE
    if options.row is not None:
        print(*measure(ROWS[options.row], shape, release=options.release).values())
        return
    results = Results(options.results, "peak_memory", {"shape": asdict(shape)}, quick=options.quick)
    progress = Progress(2 * len(ROWS), "processes")
    for number, row in enumerate(ROWS):
        for release in (False, True):
            part = f"{row.title} | {'released' if release else 'kept'}"
            if part in results:
                progress.skip(1)
                continue
            results[part] = measured_apart(number, release=release, quick=options.quick)
            progress.advance(part)
    print(report(results, shape))


if __name__ == "__main__":
    main()
