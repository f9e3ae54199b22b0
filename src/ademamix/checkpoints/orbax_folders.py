"""Folders of Orbax: read as NumPy arrays in dicts and lists, on whatever devices they were saved."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ademamix.checkpoints.errors import CheckpointError, outside_cause

DESCRIPTION = "_METADATA"


def read(path: Path, *, unsafe_pickle: bool = False) -> Any:
    """Return all that a folder holds. Orbax pickles nothing, so that `unsafe_pickle` makes no difference."""
    try:
        import jax
        import orbax.checkpoint as ocp
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"{str(path)!r} is a folder of Orbax, and {error.name} is not installed: pip install orbax-checkpoint"
        ) from error
    try:
        with _quiet(), ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.metadata(path.absolute()).item_metadata.tree
            return checkpointer.restore(path.absolute(), restore_args=jax.tree.map(_as_numpy, tree))
    except OSError:
        raise
    except Exception as error:
        if (found := outside_cause(error, repr(str(path)))) is not None:
            raise found from error
        what = "files are missing or changed" if _is_described(path) else f"{DESCRIPTION!r} describes no arrays"
        raise CheckpointError(
            f"the folder of Orbax {str(path)!r} is damaged, or was written by a newer Orbax: {what}. Copy all of it "
            "again, or use an earlier checkpoint."
        ) from error


def write(path: Path, tree: Any) -> None:
    """Write a folder."""
    import orbax.checkpoint as ocp

    with _quiet(), ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path.absolute(), tree)


def _is_described(path: Path) -> bool:
    """Tell whether the description of a folder is whole, as far as Orbax needs it."""
    try:
        found = json.loads((path / DESCRIPTION).read_bytes())
    except ValueError:
        return False
    return isinstance(found, dict) and "tree_metadata" in found


def _as_numpy(leaf: Any) -> Any:
    """Return how to restore a leaf: arrays without the devices that they were on, anything else as it is."""
    import numpy as np
    import orbax.checkpoint as ocp

    is_array = type(leaf).__name__ == "ArrayMetadata"
    return ocp.RestoreArgs(restore_type=np.ndarray) if is_array else ocp.RestoreArgs()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what Orbax logs about arrays that have lost their devices."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
