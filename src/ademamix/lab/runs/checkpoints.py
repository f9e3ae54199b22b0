"""Checkpoints in a folder, each named by its step and the hash of its content: a torn one is known when it is read."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ademamix.output.atomic import PART, to_disk, whole_or_not_at_all

if TYPE_CHECKING:  # it takes a second to import, and is not needed to see whether there is a checkpoint
    import torch


def save(folder: Path, step: int, state: Mapping[str, Any], *, keep: int = 1) -> None:
    """Write a checkpoint to disk, then remove all but the newest `keep`."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    to_disk(folder.parent)
    temporary = folder / f".checkpoint{PART}"
    with whole_or_not_at_all(temporary) as file:
        torch.save(dict(state), file)
    temporary.replace(folder / f"{step:09d}-{_hash(temporary)}.pt")
    to_disk(folder)
    for old in _newest_first(folder)[keep:]:
        old.unlink()


def load(folder: Path, device: torch.device | str = "cpu") -> tuple[int, dict[str, Any]] | None:
    """Return the newest checkpoint that is whole, and its step; say so if a newer one is not."""
    import torch

    damaged = False
    for path in _newest_first(folder):
        step, name = path.stem.split("-")
        if _hash(path) == name:
            return int(step), torch.load(path, map_location=device, weights_only=True)
        warnings.warn(f"the checkpoint {str(path)!r} is damaged, and is passed over", stacklevel=3)
        path.rename(path.with_suffix(".damaged"))  # or it would count as one of those to keep
        damaged = True
    if damaged:
        warnings.warn("no checkpoint is whole: training starts again from step 0", stacklevel=3)
    return None


def any_in(folder: Path) -> bool:
    """Tell whether there is a checkpoint in a folder."""
    return bool(_newest_first(folder))


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*-*.pt"), reverse=True)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()[:16]
