"""`ademamix bench --only optax`: the time of a jitted step in JAX, as ratios to optax.adamw and optax.contrib.ademamix.

As in :mod:`ademamix.lab.bench.pytorch_steps`, the optimizers step in turns in one process, on parameters of their own
that are donated, each counts with its fastest step, and the median over fresh processes is reported. JAX is imported
only inside these processes. Everything is measured twice, in processes that take turns: as XLA compiles by default,
where on a CPU each array is written in a loop of its own, and with the flag that has one loop write all moments of an
array. A bare loop moves the bytes of a fused step without arithmetic: the bound."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ADAMW, CONTRIB, OURS, OURS_BETA1_0 = "optax.adamw", "optax.contrib.ademamix", "ademamix", "ademamix, b1=0"
FUSED_STEPS = {"fused_step": OURS, "fused_step, b1=0": OURS_BETA1_0}  # the optimizer of each
BARE_LOOPS = {"bare loop": 5, "bare loop, b1=0": 4}  # as many arrays as a fused step has; the first is not written
DEFAULTS, FUSED = "XLA's defaults", "multi-output fusion"
TARGETS: dict[str, dict[str, dict[str, float]]] = {  # the time ratio should be at most this
    DEFAULTS: {OURS: {CONTRIB: 1.03, ADAMW: 1.35}, "fused_step": {ADAMW: 0.7}},
    FUSED: {OURS: {CONTRIB: 1.03, ADAMW: 1.35}},
}
FUSION_FLAG = "--xla_backend_extra_options=xla_cpu_use_multi_output_fusion"
FLAGS = {DEFAULTS: "", FUSED: FUSION_FLAG}  # added to XLA_FLAGS by each compilation
STEPS = 100_000  # the horizon of the schedules
WIDTH = 768
Shape = tuple[int, ...]
# Four layers of GPT-2 with a small vocabulary.
SHAPES: tuple[Shape, ...] = (
    (8192, WIDTH),
    *4 * ((WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), (WIDTH,), (WIDTH,)),
)
QUICK_SHAPES: tuple[Shape, ...] = ((64, 128), (128,))
SECONDS, QUICK_SECONDS = 40.0, 0.5  # in each process


def optimizers() -> dict[str, Any]:
    """Return the optimizers to compare, all with the same settings."""
    import optax

    from ademamix.optax import ademamix, alpha_schedule, beta3_schedule
    from ademamix.schedules import beta3_for_horizon

    beta3 = beta3_for_horizon(STEPS, 0.9)
    shared = {"learning_rate": 1e-6, "weight_decay": 1e-2}
    ours: dict[str, Any] = {**shared, "total_steps": STEPS}
    schedules = {"b3": beta3_schedule(beta3, 0.9, STEPS), "alpha": alpha_schedule(5.0, STEPS)}
    return {
        ADAMW: optax.adamw(**shared),
        CONTRIB: optax.contrib.ademamix(**shared, **schedules),
        OURS: ademamix(**ours),
        OURS_BETA1_0: ademamix(**ours, b1=0.0),
        "ademamix, slow bfloat16": ademamix(**ours, slow_dtype="bfloat16"),
        "ademamix, slow int16": ademamix(**ours, slow_dtype="int16"),
    }


def steps() -> dict[str, tuple[Any, Any]]:
    """Return the optimizer of each row, and its step: a function of parameters, gradients and state."""
    import optax

    from ademamix import native
    from ademamix.optax import fused_step

    def transformed(optimizer: Any) -> Any:
        def step(params: Any, gradients: Any, state: Any) -> Any:
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        return step

    known = optimizers()
    rows = {name: (optimizer, transformed(optimizer)) for name, optimizer in known.items()}
    if native.core is not None:
        rows |= {name: (known[of], fused_step(known[of])) for name, of in FUSED_STEPS.items()}
    return rows


def bare_loops(shapes: tuple[Shape, ...]) -> dict[str, Callable[[], float]]:
    """Return loops over as many elements as a fused step has, without arithmetic; they return the seconds they take."""
    import numpy as np

    from ademamix import native

    if native.core is None:
        return {}
    stream, threads = native.core.stream, os.cpu_count()
    size = sum(math.prod(shape) for shape in shapes)
    # Written before they are read: pages that never were are all one page of zeros, which stays in the cache.
    arrays = [np.ones(4 * size, np.uint8) for _ in range(max(BARE_LOOPS.values()))]

    def loop(count: int) -> Callable[[], float]:
        return lambda: float(stream([arrays[:count]], [size], threads))

    return {name: loop(count) for name, count in BARE_LOOPS.items()}


def measure(shapes: tuple[Shape, ...], seconds: float) -> dict[str, float]:
    """Step all optimizers in turns in this process, and return the fastest step of each, and of bare loops."""
    import jax
    import jax.numpy as jnp

    def leaves(seed: int, scale: float) -> list[Any]:
        keys = jax.random.split(jax.random.key(seed), len(shapes))
        return [scale * jax.random.normal(key, shape, jnp.float32) for key, shape in zip(keys, shapes, strict=True)]

    gradients = leaves(0, 1e-3)

    def steps_of(optimizer: Any, step: Any) -> Callable[[], float]:
        params = leaves(1, 0.02)
        carry = params, optimizer.init(params)
        compiled = jax.jit(step, donate_argnums=(0, 2)).lower(params, gradients, carry[1]).compile()

        def take() -> float:
            nonlocal carry
            start = time.perf_counter()
            carry = compiled(carry[0], gradients, carry[1])
            for array in jax.tree.leaves(carry):
                array.block_until_ready()
            return time.perf_counter() - start

        return take

    timed = {name: steps_of(*row) for name, row in steps().items()} | bare_loops(shapes)
    order, shuffle, fastest = list(timed), random.Random(0).shuffle, dict.fromkeys(timed, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        shuffle(order)
        for name in order:
            fastest[name] = min(fastest[name], timed[name]())
    return fastest


def environment(flag: str) -> dict[str, str]:
    """Return the environment of a process that measures with `flag`; without it there is no multi-output fusion."""
    flags = os.environ.get("XLA_FLAGS", "").replace(FUSION_FLAG, "")
    return {**os.environ, "XLA_FLAGS": f"{flags} {flag}".strip()}


def run(*, quick: bool, processes: int) -> dict[str, Any]:
    """Measure in fresh processes, and return each optimizer's ratios by compilation; a reason if that is not possible.

    The processes of the compilations take turns, so that other work of the machine falls on all of them.
    """
    if importlib.util.find_spec("optax") is None:
        return {"error": "JAX and Optax are not installed: pip install 'ademamix[jax]'"}
    code = f"from {__name__} import measuring_process; measuring_process({quick})"
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in FLAGS}
    for name, flag in processes * list(FLAGS.items()):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(flag))
        if done.returncode != 0:
            return {"error": f"with {name}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"}
        runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    shapes = QUICK_SHAPES if quick else SHAPES
    return {
        "error": None,
        "arrays": len(shapes),
        "parameters": sum(math.prod(shape) for shape in shapes),
        "targets": TARGETS,
        "compilations": {name: {"flag": FLAGS[name], **summary(runs[name])} for name in FLAGS},
    }


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Put together the findings of the processes of one compilation."""
    return {
        "seconds": min(run[ADAMW] for run in runs),
        "ratios": {
            name: {base: statistics.median(run[name] / run[base] for run in runs) for base in (ADAMW, CONTRIB)}
            for name in runs[0]
        },
    }


def measuring_process(quick: bool) -> None:
    """Print the measurements of this process."""
    print(json.dumps(measure(QUICK_SHAPES, QUICK_SECONDS) if quick else measure(SHAPES, SECONDS)))


def table(report: dict[str, Any]) -> list[str]:
    """Lay out a report: for each compilation, a line for each optimizer."""
    if report["error"]:
        return [f"optax: not measured: {report['error']}", ""]
    form = "  {:<27} {:>22} {:>30}"
    lines = [f"optax: a jitted step ({report['arrays']} arrays, {report['parameters']:,} parameters)"]
    for compilation, measured in report["compilations"].items():
        setting = f"XLA_FLAGS={measured['flag']}" if measured["flag"] else compilation
        lines += [
            f" {setting}: {ADAMW} takes {1e3 * measured['seconds']:.4g} ms",
            form.format("optimizer", f"to {ADAMW}", f"to {CONTRIB}"),
        ]
        for name, ratios in measured["ratios"].items():
            targets = TARGETS[compilation].get(name, {})
            lines.append(form.format(name, *(cell(ratios[base], targets.get(base)) for base in (ADAMW, CONTRIB))))
    return [*lines, ""]


def cell(ratio: float, target: float | None) -> str:
    """Write a ratio, with its target if it has one.

    >>> cell(1.2, 1.35), cell(1.2, None)
    ('1.20 (1.35 met)', '1.20')
    """
    return f"{ratio:.2f}" if target is None else f"{ratio:.2f} ({target:.2f} {'met' if ratio <= target else 'not met'})"
