"""The golden traces: 2,000 steps of fixed gradients that every framework has to follow.

What is expected comes from the oracle, with all of its settings written out here, so that what an optimizer derives
from its arguments is checked too. No framework is imported.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ademamix.reference import ReferenceAdEMAMix

STEPS = 2000
SWITCH = STEPS // 2
EVERY = 250  # steps between comparisons
SHAPES: tuple[tuple[int, ...], ...] = ((7, 19), (129,), (3, 4, 5))

# Norm of the difference over the norm, per tensor.
TOLERANCES = {"float32": 2e-6, "float64": 1e-12}


@dataclass(frozen=True)
class Trace:
    """Arguments of an optimizer, under the names of the oracle's own where it has them, and what they come to."""

    lr: float
    betas: tuple[float, ...]  # as given: two or three
    given: dict[str, Any]  # further arguments of an optimizer
    oracle: dict[str, Any]  # the oracle's settings, all but lr and weight_decay
    weight_decay: float = 1e-2
    switches: bool = False  # the first half is AdamW


TRACES = {
    "beta1-zero": Trace(
        lr=1e-3,
        betas=(0.0, 0.999, 0.999),
        given={"total_steps": 4000},
        oracle={"betas": (0.0, 0.999, 0.999), "alpha": 5.0, "T_alpha": 4000, "T_beta3": 4000, "beta_start": 0.0},
    ),
    "switch-from-adamw": Trace(
        lr=3e-4,
        betas=(0.9, 0.95),
        given={"alpha": 2.0, "total_steps": 1000, "alpha_warmup": 0, "beta3_warmup": 0},
        oracle={"betas": (0.9, 0.95, 0.975), "alpha": 2.0, "T_alpha": 0, "T_beta3": 0, "beta_start": 0.9},
        weight_decay=0.0,  # torch's AdamW multiplies by an fp32 1 - lr weight_decay: off by 6e-6 after 250 steps
        switches=True,
    ),
    "short-horizon": Trace(
        lr=1e-3,
        betas=(0.9, 0.999, 0.9999),
        given={"alpha": 8.0, "total_steps": 30_000, "alpha_warmup": 700, "beta3_warmup": 900},
        oracle={"betas": (0.9, 0.999, 0.9999), "alpha": 8.0, "T_alpha": 700, "T_beta3": 900, "beta_start": 0.9},
    ),
    "horizon-within-trace": Trace(
        lr=1e-3,
        betas=(0.9, 0.999),
        given={"total_steps": 1200},
        oracle={
            "betas": (0.9, 0.999, 1 - 1 / 48),
            "alpha": 5.0,
            "T_alpha": 1200,
            "T_beta3": 1200,
            "beta_start": 0.9,
        },
    ),
    "weight-decay-beta3-chosen": Trace(
        lr=2e-3,
        betas=(0.9, 0.999),
        given={"alpha": 4.0, "total_steps": 50_000},
        oracle={"betas": (0.9, 0.999, 0.9995), "alpha": 4.0, "T_alpha": 50_000, "T_beta3": 50_000, "beta_start": 0.9},
        weight_decay=0.3,
    ),
    "slow-clip": Trace(
        lr=1e-3,
        betas=(0.9, 0.999),
        given={"alpha": 8.0, "total_steps": 1200, "slow_clip": 0.3},
        oracle={
            "betas": (0.9, 0.999, 1 - 1 / 48),
            "alpha": 8.0,
            "T_alpha": 1200,
            "T_beta3": 1200,
            "beta_start": 0.9,
            "slow_clip": 0.3,
        },
    ),
}


@functools.cache
def start() -> tuple[np.ndarray, ...]:
    """The parameters before the first step, of float32 values."""
    rng = np.random.default_rng(4)
    return tuple(rng.standard_normal(shape).astype(np.float32).astype(np.float64) for shape in SHAPES)


@functools.cache
def gradients() -> tuple[np.ndarray, ...]:
    """All gradients of each tensor, (steps, *shape), of float32 values: noise with a drifting mean, at scales over
    four decades."""
    rng = np.random.default_rng(5)
    drift = np.cos(np.arange(STEPS) / 300)
    result = []
    for shape in SHAPES:
        scale, direction = 10 ** rng.uniform(-3, 1, shape), rng.standard_normal(shape)
        noise = rng.standard_normal((STEPS, *shape))
        result.append((scale * (np.multiply.outer(drift, direction) + noise)).astype(np.float32).astype(np.float64))
    return tuple(result)


@functools.cache
def expected(name: str) -> dict[int, tuple[np.ndarray, ...]]:
    """The oracle's parameters at every EVERY-th step."""
    trace = TRACES[name]
    oracles = [
        ReferenceAdEMAMix(theta, lr=trace.lr, weight_decay=trace.weight_decay, **trace.oracle) for theta in start()
    ]
    if trace.switches:
        for oracle in oracles:
            oracle.alpha = 0.0
    found = {}
    for step in range(1, STEPS + 1):
        for oracle, series in zip(oracles, gradients(), strict=True):
            oracle.update(series[step - 1])
            if trace.switches and step == SWITCH:
                oracle.alpha, oracle.slow_step = trace.oracle["alpha"], 0
                oracle.m2 = np.zeros_like(oracle.m2)
        if step % EVERY == 0:
            found[step] = tuple(oracle.theta for oracle in oracles)
    return found


def assert_golden(name: str, dtype: str, step: int, params: list[np.ndarray]) -> None:
    """Compare parameters after `step` steps with the oracle's."""
    for actual, theta in zip(params, expected(name)[step], strict=True):
        error = np.linalg.norm((actual - theta).ravel()) / np.linalg.norm(theta.ravel())
        assert error <= TOLERANCES[dtype], (name, step, theta.shape, error)
