"""Reading a checkpoint, whatever it is kept in, and finding the optimizer states in it.

===================================  ================================================================
container                            known by
===================================  ================================================================
file of ``torch.save``               being a file; Lightning's by its version
``torch.distributed.checkpoint``     a folder with ``.metadata``
Orbax                                a folder with ``_METADATA``
folder of a trainer                  such files or folders inside: ``optimizer.pt``, ``optimizer_0/``
===================================  ================================================================
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ademamix.checkpoints import flat_states, trees
from ademamix.checkpoints.errors import CheckpointError

OPTIMIZER_FILES = ("optimizer*.pt", "optimizer*.bin")  # of Hugging Face's Trainer, of its Accelerate

TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".tar")  # that files of torch.save commonly have


class Container(NamedTuple):
    """A way to keep a tree on disk. Its module has `read` and `write`, and is loaded when they are needed."""

    title: str
    module: str
    framework: str  # whose optimizer states are in it: "torch" or "optax"

    def read(self, path: Path, *, unsafe_pickle: bool) -> Any:
        """Return the tree."""
        return importlib.import_module(self.module).read(path, unsafe_pickle=unsafe_pickle)

    def write(self, path: Path, tree: Any) -> None:
        """Write the tree."""
        importlib.import_module(self.module).write(path, tree)


TORCH_FILE = Container("torch.save file", "ademamix.checkpoints.torch_files", "torch")
DISTRIBUTED = Container("torch.distributed.checkpoint folder", "ademamix.checkpoints.distributed_folders", "torch")
ORBAX = Container("Orbax folder", "ademamix.checkpoints.orbax_folders", "optax")


class Location(NamedTuple):
    """Where an optimizer state is, and the state as it was found."""

    part: int
    keys: trees.Keys
    node: Any


@dataclass(frozen=True)
class Part:
    """A file or folder of a checkpoint that has optimizer states in it."""

    place: Path
    """Relative to the checkpoint; ``Path()`` if it is the whole."""
    container: Container
    tree: Any


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: its parts with optimizer states, and where these are."""

    path: Path
    title: str
    parts: tuple[Part, ...]
    locations: tuple[Location, ...]

    @property
    def framework(self) -> str:
        """Whose optimizers it holds, "torch" or "optax"."""
        return self.parts[0].container.framework

    def label(self, location: Location) -> str:
        """Say where in the checkpoint a state is."""
        place = self.parts[location.part].place.as_posix()
        where = [part for part in ("" if place == "." else place, trees.label(location.keys)) if part]
        return ": ".join(where) or "the whole file"


def read(path: Path, *, unsafe_pickle: bool = False) -> Checkpoint:
    """Read a checkpoint, or raise :class:`CheckpointError` saying why it holds no optimizer state."""
    if not path.exists():
        raise CheckpointError(f"there is no file or folder {str(path)!r}")
    if not (path.is_file() or path.is_dir()):
        raise CheckpointError(f"{str(path)!r} is a device or a pipe: name a file or a folder")
    parts: list[Part] = []
    locations: list[Location] = []
    for place, container in _candidates(path):
        tree = container.read(path / place, unsafe_pickle=unsafe_pickle)
        found = list(trees.find(tree, IS_STATE[container.framework]))
        if found:
            locations += [Location(len(parts), keys, node) for keys, node in found]
            parts.append(Part(place, container, tree))
    if not parts:
        raise CheckpointError(f"there is no optimizer state in {str(path)!r}. {_advice(path)}")
    if len({part.container.framework for part in parts}) > 1:
        raise CheckpointError(f"{str(path)!r} has states of both torch and Optax: name one of its files or folders")
    return Checkpoint(path, _title(path, parts), tuple(parts), tuple(locations))


def _advice(path: Path) -> str:
    """Say what to name instead of something that has no optimizer state in it."""
    inside = sorted(path.iterdir()) if path.is_dir() and _container_of(path) is None else []
    if folders := [place.name for place in inside if place.is_dir() and any(_candidates(place))]:
        return f"Name one of the folders in it that may have one: {', '.join(folders)}."
    if files := [place.name for place in inside if place.is_file() and place.suffix in TORCH_ENDINGS]:
        return (
            f"In a folder it is looked for in {' and '.join(OPTIMIZER_FILES)}. Name one of the other files in it that "
            f"may have one: {', '.join(files)}."
        )
    return (
        "It must be a file of torch.save, a folder of torch.distributed.checkpoint or Orbax, or a trainer's folder "
        "that has such a file or folder in it."
    )


def _candidates(path: Path) -> Iterator[tuple[Path, Container]]:
    """List the files and folders that can have optimizer states in them, relative to `path`."""
    whole = _container_of(path)
    if whole is not None:
        yield Path(), whole
        return
    files = {file for pattern in OPTIMIZER_FILES for file in path.glob(pattern)}
    folders = {folder for folder in path.iterdir() if folder.is_dir() and _container_of(folder)}
    for inside in sorted(files | folders):
        container = _container_of(inside)
        if container is not None:
            yield inside.relative_to(path), container


def _container_of(path: Path) -> Container | None:
    if path.is_file():
        return TORCH_FILE
    if (path / ".metadata").is_file():
        return DISTRIBUTED
    return ORBAX if (path / "_METADATA").is_file() else None


def _title(path: Path, parts: list[Part]) -> str:
    if parts[0].place == Path():
        if parts[0].container is TORCH_FILE:
            from ademamix.checkpoints import torch_files

            return torch_files.title(parts[0].tree)
        return parts[0].container.title
    if (path / "trainer_state.json").is_file():
        return "Hugging Face Trainer folder"
    return f"folder with {parts[0].place} ({parts[0].container.title})"


def _is_torch_state(node: Any) -> bool:
    if flat_states.is_flat(node):
        return True
    return (
        isinstance(node, Mapping)
        and isinstance(node.get("state"), Mapping)
        and isinstance(node.get("param_groups"), list)
        and all(isinstance(group, Mapping) and "params" in group for group in node["param_groups"])
    )


# The fields of Optax's states, as Orbax keeps them: of AdamW, of optax.contrib.ademamix, and ours.
OPTAX_FIELDS = {
    "AdamW": ("count", "mu", "nu"),
    "optax.contrib": ("count", "count_m2", "m1", "m2", "nu"),
    "ademamix": ("count", "slow_count", "mu", "nu", "slow", "slow_scale", "slow_block"),
}


def _is_optax_state(node: Any) -> bool:
    return isinstance(node, Mapping) and set(node) in map(set, OPTAX_FIELDS.values())


IS_STATE = {"torch": _is_torch_state, "optax": _is_optax_state}
