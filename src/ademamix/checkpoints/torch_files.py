"""Files of ``torch.save``: read without running code that they name, written in torch's own format."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from ademamix.checkpoints.errors import CheckpointError

LIGHTNING_KEY = "pytorch-lightning_version"


def read(path: Path, *, unsafe_pickle: bool = False) -> Any:
    """Return what a file holds, its tensors on the CPU; large ones stay in the file until they are used."""
    try:
        return torch.load(path, map_location="cpu", weights_only=not unsafe_pickle, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise unsafe(path, error) from error
    except OSError:
        raise
    except Exception as error:  # damaged files raise many kinds, some of them torch's own
        raise CheckpointError(f"cannot read {str(path)!r} as a file of torch.save: {first_line(error)}") from error


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


def unsafe(path: Path, error: BaseException) -> CheckpointError:
    """Return the error for a pickle that names code, or that is none."""
    named = re.search(r"GLOBAL ([\w.]+)|global ([\w.]+) was not|class ([\w.]+)", str(error))
    if named is None:
        return CheckpointError(f"{str(path)!r} is not a file of torch.save, or it is damaged")
    name = next(filter(None, named.groups())).rstrip(".")
    return CheckpointError(
        f"{str(path)!r} holds {name}, beside tensors and plain values: reading it would run code that the file names. "
        "If you trust whoever wrote it, add --unsafe-pickle (in Python: unsafe_pickle=True)."
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error, as the end of a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
