"""Checkpoints of optimizers: converting them, and saying what they hold."""

from ademamix.checkpoints.conversion import convert
from ademamix.checkpoints.errors import CheckpointError
from ademamix.checkpoints.inspection import inspect

__all__ = ["CheckpointError", "convert", "inspect"]
