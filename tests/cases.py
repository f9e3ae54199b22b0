"""The cases that tests run over: a new path, dtype or setting is one row here."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import torch

from ademamix import AdEMAMix
from ademamix.hyperparameters import STATE_STORAGES
from ademamix.reference import ReferenceAdEMAMix

PATHS: dict[str, dict[str, Any]] = {
    "single": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "single-capturable": {"foreach": False, "fused": False, "capturable": True},
    "foreach-capturable": {"foreach": True, "capturable": True},
    "fused-capturable": {"fused": True, "capturable": True},
}

# The storages of the state, those that take fewer bits than fp32, and those that have kernels.
STORAGES = STATE_STORAGES
REDUCED = tuple(storage for storage in STORAGES if storage != "fp32")
FUSED = ("fp32", "bf16", "compact")
FUSED_REDUCED = tuple(storage for storage in FUSED if storage != "fp32")

# Norm of the difference to the oracle over the largest norm that the oracle has had, per tensor, at any step.
TOLERANCES = {torch.float32: 3e-6, torch.float64: 1e-12, torch.complex64: 3e-6, torch.complex128: 1e-12}

SHAPES: list[tuple[int, ...]] = [(3, 5), (129,), (), (2, 0), (4, 3, 2)]

# Constructor arguments, as AdEMAMix takes them.
SETTINGS: dict[str, dict[str, Any]] = {
    "horizon": {"total_steps": 500},
    "short-warmups": {"betas": (0.9, 0.999, 0.9999), "alpha": 8.0, "alpha_warmup": 50, "beta3_warmup": 80},
    "no-warmups": {"betas": (0.9, 0.95, 0.99), "alpha": 2.0, "alpha_warmup": 0, "beta3_warmup": 0},
    "beta1-zero": {"betas": (0.0, 0.999, 0.999), "total_steps": 3000},
    "beta3-start-zero": {"betas": (0.9, 0.999, 0.999), "total_steps": 3000, "beta3_start": 0.0},
    "beta3-below-start": {"betas": (0.9, 0.999, 0.5), "total_steps": 300},
    "weight-decay": {"total_steps": 400, "weight_decay": 0.3, "lr": 3e-3},
    "no-weight-decay": {"total_steps": 400, "weight_decay": 0.0},
    "adamw": {"alpha": 0.0},
    "large-eps": {"total_steps": 400, "eps": 1e-2},
    "slow-clip": {"total_steps": 400, "alpha": 8.0, "slow_clip": 0.5},
}


def on_paths(paths: Iterable[str], storages: Iterable[str]) -> list[tuple[str, str]]:
    """List each path with each storage that it has."""
    return [(path, storage) for path, storage in product(paths, storages) if storage in FUSED or "fused" not in path]


def make(params: Any, **settings: Any) -> AdEMAMix:
    """Build an optimizer that never warns about a missing horizon, and has the random words of others like it."""
    if "total_steps" not in settings:
        settings = {"alpha_warmup": 0, "beta3_warmup": 0, **settings}
    return AdEMAMix(params, **{"rounding_seed": 0, **settings})


def oracle_of(theta: Any, optimizer: AdEMAMix, group: int = 0, **more: Any) -> ReferenceAdEMAMix:
    """Build the oracle with the settings that the optimizer's group has resolved to."""
    settings = optimizer.param_groups[group]
    return ReferenceAdEMAMix(
        theta,
        lr=float(settings["lr"]),
        betas=settings["betas"],
        alpha=settings["alpha"],
        T_alpha=settings["alpha_warmup"],
        T_beta3=settings["beta3_warmup"],
        beta_start=settings["beta3_start"],
        eps=settings["eps"],
        weight_decay=settings["weight_decay"],
        slow_clip=math.inf if settings["slow_clip"] is None else settings["slow_clip"],
        **more,
    )


@functools.cache
def gradients(seed: int, shape: tuple[int, ...], step: int) -> np.ndarray:
    """A gradient with a drifting mean and element scales over four decades, of float32 values."""
    scales = 10 ** np.random.default_rng(seed).uniform(-3, 1, size=shape)
    direction = np.random.default_rng(seed + 1).standard_normal(size=shape)
    noise = np.random.default_rng((seed, step)).standard_normal(size=shape)
    return np.asarray(scales * (direction * np.cos(step / 300) + noise), dtype=np.float32).astype(np.float64)


def distance(actual: torch.Tensor, expected: np.ndarray) -> float:
    """Norm of the difference."""
    return float(np.linalg.norm((actual.detach().numpy() - expected).ravel()))


def relative_error(actual: torch.Tensor, expected: np.ndarray) -> float:
    """Norm of the difference over the norm of what is expected."""
    return distance(actual, expected) / max(float(np.linalg.norm(expected.ravel())), 1e-30)
