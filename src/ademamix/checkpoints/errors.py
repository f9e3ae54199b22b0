"""What keeps a checkpoint from being read, converted or written."""

from __future__ import annotations


class CheckpointError(ValueError):
    """What is wrong with a checkpoint, what was found and what to do."""
