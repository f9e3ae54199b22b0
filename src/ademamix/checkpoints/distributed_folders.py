"""Folders of ``torch.distributed.checkpoint``: read by one process, whatever the number of those that wrote them.

torch reads the description of such a folder, and all values beside tensors, with Python's pickle, which runs code that
a file names. Here the description may name only the classes that torch writes, and values are read like any other file
of ``torch.save``.
"""

from __future__ import annotations

import inspect
import io
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ademamix.checkpoints.errors import CheckpointError, causes_of, outside_cause, said_by
from ademamix.checkpoints.torch_files import unsafe

DESCRIPTION = ".metadata"
HARMLESS = {
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},  # where newer Pythons have them
    "torch": {"Size", *(name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype))},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}

# Also where a process group exists; older torch finds out by itself that there is none.
ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in inspect.signature(load).parameters else {}


def read(path: Path, *, unsafe_pickle: bool = False) -> dict[str, Any]:
    """Return all that a folder holds, in the dicts and lists that it was saved from."""
    try:
        reader = _Reader(path, unsafe_pickle)
        description = reader.read_metadata()
        flat = {key: _room_for(entry) for key, entry in description.state_dict_metadata.items()}
        planner = _Planner(unsafe_pickle)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process reads it all
            load(flat, storage_reader=reader, planner=planner, **ALONE)
    except (CheckpointError, OSError):
        raise
    except (Exception, CheckpointException) as error:  # torch's own is a BaseException, which the first lets pass
        causes = causes_of(error)
        found = outside_cause(error, repr(str(path))) or next(
            filter(None, (unsafe(path, cause) for cause in causes)), None
        )
        raise found or _damaged(path, causes) from error
    paths = description.planner_data or {}
    return _nested({paths.get(key, (key,)): value for key, value in flat.items()})


def write(path: Path, tree: dict[str, Any]) -> None:
    """Write a folder."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        save(tree, checkpoint_id=path, **ALONE)


def _room_for(entry: Any) -> Any:
    return torch.empty(entry.size, dtype=entry.properties.dtype) if isinstance(entry, TensorStorageMetadata) else None


def _damaged(path: Path, causes: list[BaseException]) -> CheckpointError:
    missing = next((cause.filename for cause in causes if isinstance(cause, FileNotFoundError)), None)
    if missing is None:
        what = f"{DESCRIPTION!r} or a file of values in it is cut off or changed ({said_by(causes[-1])})"
    else:
        what = f"its file {Path(missing).name!r} is missing"
    return CheckpointError(
        f"the folder of torch.distributed.checkpoint {str(path)!r} is damaged: {what}. Copy all of it again, or use an "
        "earlier checkpoint."
    )


def _nested(flat: dict[Sequence[str | int], Any]) -> dict[str, Any]:
    """Return values at paths as a tree: numbers in paths are places in lists."""
    tree: dict[Any, Any] = {}
    for path, value in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = value

    def with_lists(node: Any, path: Sequence[str | int]) -> Any:
        if not isinstance(node, dict) or path in flat:
            return node
        inner = {key: with_lists(value, (*path, key)) for key, value in node.items()}
        if inner and all(isinstance(key, int) for key in inner):
            return [inner[key] for key in sorted(inner)]
        return inner

    return {key: with_lists(value, (key,)) for key, value in tree.items()}


class _Reader(FileSystemReader):
    """Reads the description without running code that it names."""

    def __init__(self, path: Path, unsafe_pickle: bool) -> None:
        super().__init__(path)
        self.folder, self.unsafe_pickle = path, unsafe_pickle

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the description of the folder."""
        if self.unsafe_pickle:
            return super().read_metadata(*args, **kwargs)
        with (self.folder / DESCRIPTION).open("rb") as file:
            description = _Unpickler(file).load()
        if not isinstance(description, Metadata):
            raise CheckpointError(
                f"{str(self.folder / DESCRIPTION)!r} does not describe a checkpoint: name a folder that "
                "torch.distributed.checkpoint has written"
            )
        if getattr(description, "storage_meta", None) is None:
            description.storage_meta = StorageMeta()
        description.storage_meta.load_id = self.load_id  # type: ignore[union-attr]
        return description


class _Unpickler(pickle.Unpickler):
    """Knows only the classes that torch describes checkpoints with."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class, or raise if it is not one of them."""
        if name not in HARMLESS.get(module, ()):
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is not needed")
        return super().find_class(module, name)


class _Planner(DefaultLoadPlanner):
    """Loads into a flat dict, and reads values that are no tensors like files of ``torch.save``."""

    def __init__(self, unsafe_pickle: bool) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.unsafe_pickle = unsafe_pickle

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take a value that was saved."""
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=not self.unsafe_pickle)
