"""Files of ``torch.save``: read without running code that they name, written in torch's own format."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from ademamix.checkpoints.errors import CheckpointError, causes_of, outside_cause, said_by

BEGINNINGS = (b"PK", b"\x80")  # of ZIP archives, and of pickles, as older torch wrote them
LIGHTNING_KEY = "pytorch-lightning_version"


def read(path: Path, *, unsafe_pickle: bool = False) -> Any:
    """Return what a file holds, its tensors on the CPU; large ones stay in the file until they are used."""
    try:
        return torch.load(path, map_location="cpu", weights_only=not unsafe_pickle, mmap=zipfile.is_zipfile(path))
    except OSError:
        raise
    except Exception as error:  # damaged files raise many kinds, some of them torch's own
        if unsafe_pickle and isinstance(error, (ImportError, AttributeError)):
            raise CheckpointError(
                f"{str(path)!r} names code that is not here: {error}. Read it where the program that wrote it can run."
            ) from error
        raise outside_cause(error, repr(str(path))) or unsafe(path, error) or _unreadable(path, error) from error


def write(path: Path, tree: Any) -> None:
    """Write a file, and wait until it is on disk."""
    with path.open("wb") as file:
        torch.save(tree, file)
        file.flush()
        os.fsync(file.fileno())


def title(tree: Any) -> str:
    """Say whose file it is."""
    if isinstance(tree, dict) and LIGHTNING_KEY in tree:
        return f"Lightning checkpoint (version {tree[LIGHTNING_KEY]})"
    return "torch.save file"


def unsafe(path: Path, error: BaseException) -> CheckpointError | None:
    """Return the error for a pickle that names code, or None if this is about something else."""
    if not isinstance(error, pickle.UnpicklingError):
        return None
    named = re.search(r"GLOBAL ([\w.]+)|global ([\w.]+) was not|class ([\w.]+)", str(error))
    if named is None:
        return None
    name = next(filter(None, named.groups())).rstrip(".")
    return CheckpointError(
        f"{str(path)!r} holds {name}, beside tensors and plain values: reading it would run code that the file names. "
        "If you trust its author, add --unsafe-pickle (in Python: unsafe_pickle=True)."
    )


def _unreadable(path: Path, error: BaseException) -> CheckpointError:
    """Return the error for a file that is empty, something else, or damaged; torch has raised `error`."""
    with path.open("rb") as file:
        beginning = file.read(24)
    if not beginning:
        return CheckpointError(
            f"{str(path)!r} is empty: whatever wrote it was interrupted. Copy it again, or use an earlier checkpoint."
        )
    if not beginning.startswith(BEGINNINGS):
        return CheckpointError(
            f"{str(path)!r} is not a file of torch.save: it begins with {beginning!r}. Name the file that has the "
            "state of the optimizer, such as optimizer.pt."
        )
    if "TorchScript" in str(error):
        return CheckpointError(
            f"{str(path)!r} is a model of torch.jit.save, which has no optimizer state. Name the file that has the "
            "state of the optimizer, such as optimizer.pt."
        )
    return CheckpointError(
        f"{str(path)!r} cannot be read as a file of torch.save ({said_by(causes_of(error)[-1])}): it is cut off or "
        "changed, or something else has written it. Copy it again, or use an earlier checkpoint."
    )
