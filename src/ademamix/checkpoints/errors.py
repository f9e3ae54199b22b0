"""What keeps a checkpoint from being read, converted or written."""

from __future__ import annotations


class CheckpointError(ValueError):
    """What is wrong with a checkpoint, what was found and what to do."""


def disk_error(error: BaseException) -> OSError | None:
    """Return what the disk said, if that is behind an error: torch.save raises another one while it handles it."""
    reason = error if isinstance(error, OSError) else error.__context__
    return reason if isinstance(reason, OSError) else None
