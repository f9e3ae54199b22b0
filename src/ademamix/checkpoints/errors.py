"""What keeps a checkpoint from being read, converted or written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CheckpointError(ValueError):
    """What is wrong with a checkpoint, what was found and what to do."""


@contextmanager
def endless_nesting_said(path: Path) -> Iterator[None]:
    """Raise a CheckpointError if what a checkpoint holds cannot be walked through."""
    try:
        yield
    except RecursionError:
        raise CheckpointError(
            f"{str(path)!r} has a dict or list that holds itself, or a thousand of them inside of each other: save the "
            "optimizer's state_dict() alone, or without what holds itself"
        ) from None


def disk_error(error: BaseException) -> OSError | None:
    """Return what the disk said, if that is behind an error: torch.save raises another one while it handles it."""
    reason = error if isinstance(error, OSError) else error.__context__
    return reason if isinstance(reason, OSError) else None


def causes_of(error: BaseException) -> list[BaseException]:
    """Return an error and those behind it, the deepest last: torch wraps what its workers raise."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        cause = waiting.pop(0)
        if cause not in found:
            found.append(cause)
            waiting += [failure[0] for failure in getattr(cause, "failures", {}).values()]
            waiting += [behind for behind in (cause.__cause__ or cause.__context__,) if behind is not None]
    return found


def outside_cause(error: BaseException, what: str) -> OSError | CheckpointError | None:
    """Return what to raise if `what` may be whole, and the disk or the memory kept it from being read.

    A file that does not exist is missing from the checkpoint.
    """
    for cause in reversed(causes_of(error)):  # the outer ones repeat what the inner ones say
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            return cause
        if isinstance(cause, MemoryError) or re.search("(can't|cannot) allocate memory", str(cause), re.IGNORECASE):
            return CheckpointError(
                f"there is not enough memory to read {what} ({said_by(cause)}): free some, or do it where there is more"
            )
    return None


def said_by(error: BaseException) -> str:
    """Return the first sentence of an error, without the place in torch's code that it may begin with.

    >>> said_by(RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. can't allocate memory. Error code 12"))
    "can't allocate memory"
    """
    sentence = re.sub(r"^\[enforce fail at [^]]*\] .*?\. ", "", str(error)).partition("\n")[0].partition(". ")[0]
    return sentence.strip().removesuffix(".") or type(error).__name__
