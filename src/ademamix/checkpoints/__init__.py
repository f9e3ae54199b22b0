"""Checkpoints of optimizers: converting them, and saying what they hold. What is not used is not loaded."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ademamix.checkpoints.conversion import convert
    from ademamix.checkpoints.errors import CheckpointError
    from ademamix.checkpoints.inspection import inspect

__all__ = ["CheckpointError", "convert", "inspect"]

_HOME = {"CheckpointError": "errors", "convert": "conversion", "inspect": "inspection"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
