"""Converting the optimizer states of a checkpoint: everything else in it stays, and the original is not touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ademamix.checkpoints import containers, trees
from ademamix.checkpoints.containers import Checkpoint
from ademamix.checkpoints.errors import CheckpointError, disk_error, endless_nesting_said
from ademamix.checkpoints.wish import Wish

if TYPE_CHECKING:
    from ademamix.checkpoints.explanation import Change
    from ademamix.checkpoints.torch_states import Converted


@dataclass(frozen=True)
class Report:
    """What was done to one optimizer state."""

    label: str
    origin: str
    """Whose it was; empty if it was left as it is."""
    changes: list[Change]
    notes: list[str]


def convert(
    source: str | Path,
    destination: str | Path,
    to: str = "ademamix",
    *,
    only: str | Sequence[str] = (),
    unsafe_pickle: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
    **settings: Any,
) -> list[Report]:
    r"""Convert the optimizer states of a checkpoint to AdEMAMix, or to AdamW, and write it beside the original.

    .. math:: (t, m_1, \nu) \leftarrow (t, m_1, \nu)_{theirs}, \qquad
              (t_{slow}, m_2) \leftarrow (t_{slow}, m_2)_{theirs} \text{ or } (0, 0) \text{ after AdamW}

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(4, 1)
    >>> adamw = torch.optim.AdamW(model.parameters())
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> adamw.step()
    >>> folder = Path(tempfile.mkdtemp())
    >>> torch.save({"model": model.state_dict(), "optimizer": adamw.state_dict()}, folder / "adamw.pt")
    >>> (report,) = convert(folder / "adamw.pt", folder / "ademamix.pt", total_steps=10_000)
    >>> report.label, report.origin
    ('optimizer', 'AdamW')
    >>> sorted(torch.load(folder / "ademamix.pt")["optimizer"]["state"][0])
    ['exp_avg', 'exp_avg_slow', 'exp_avg_sq', 'slow_step', 'step']

    Args:
        source: a file of ``torch.save``, also of Lightning; a folder of ``torch.distributed.checkpoint`` or of Orbax;
            or a trainer's folder that has such a file or folder in it.
        destination: what to write. It must not exist. It appears when it is whole, and was read again and compared.
        to: ``"ademamix"`` or ``"adamw"``.
        only: the places of the states to convert, by the labels of reports and errors, such as ``"optimizers[0]"``. The
            others are left as they are. All are converted if none is named.
        unsafe_pickle: also read files that name code to run. Only for files of people whom you trust.
        progress: called with what is about to be done, for large checkpoints.
        settings: `total_steps`, `alpha`, `beta3`, `alpha_warmup`, `beta3_warmup`, `slow_clip` and `state_storage` of
            the run to come, as in the constructor; after AdamW, those that are left out are those of
            :meth:`ademamix.AdEMAMix.from_adamw`, and otherwise the checkpoint's own.

    Reference: section 4.1 of the paper, "Resume from AdamW", and its appendix C, "Removing the second EMA".
    """
    source, destination = Path(source), Path(destination)
    wish = Wish(to, settings)
    _check_destination(source, destination)
    progress(f"reading {source}")
    with endless_nesting_said(source):
        checkpoint = containers.read(source, unsafe_pickle=unsafe_pickle)
        chosen = _chosen(checkpoint, [only] if isinstance(only, str) else only)
        new_trees, reports = _converted(checkpoint, chosen, wish, progress)
        progress(f"writing {destination}, and reading it again")
        _write(checkpoint, new_trees, destination, dict.fromkeys(chosen, wish.to), unsafe_pickle=unsafe_pickle)
    return reports


def _chosen(checkpoint: Checkpoint, only: Sequence[str]) -> list[str]:
    """Return the labels of the states to convert."""
    labels = [checkpoint.label(location) for location in checkpoint.locations]
    unknown = next((label for label in only if label not in labels), None)
    if unknown is not None:
        raise CheckpointError(f"there is no optimizer state at {unknown!r}; there is: {', '.join(labels)}")
    return [label for label in labels if label in only or not only]


def _converted(
    checkpoint: Checkpoint, chosen: list[str], wish: Wish, progress: Callable[[str], None]
) -> tuple[list[Any], list[Report]]:
    """Return the trees of all parts with the chosen states in their new form, and what was done to each state."""
    states = _states_of(checkpoint.framework)
    trees_of_parts = [part.tree for part in checkpoint.parts]
    reports = []
    for location in checkpoint.locations:
        label = checkpoint.label(location)
        if label not in chosen:
            reports.append(Report(label, "", [], []))
            continue
        progress(f"converting {label}")
        tree = trees_of_parts[location.part]
        _refuse_injected(tree, location.keys)
        with _at(label, others=[other for other in chosen if other != label]):
            result: Converted = states.convert(location.node, wish)
        trees_of_parts[location.part] = trees.replaced(tree, location.keys, result.node)
        reports.append(Report(label, result.origin, result.changes, result.notes))
    return trees_of_parts, reports


def _states_of(framework: str) -> Any:
    """Return the module that knows the states of a framework; only that framework is loaded."""
    if framework == "torch":
        from ademamix.checkpoints import torch_states

        return torch_states
    from ademamix.checkpoints import optax_states

    return optax_states


def _check_destination(source: Path, destination: Path) -> None:
    if destination.exists() or destination.is_symlink():
        raise CheckpointError(f"{str(destination)!r} exists, and is not written over: name something new")
    if not destination.absolute().parent.is_dir():
        raise CheckpointError(f"there is no folder {str(destination.absolute().parent)!r} to write into")
    if source.is_dir() and destination.resolve().is_relative_to(source.resolve()):
        raise CheckpointError(f"{str(destination)!r} is inside of {str(source)!r}: write beside it")


def _refuse_injected(tree: Any, keys: trees.Keys) -> None:
    """Raise if hyperparameters are part of an Optax state: those of AdamW and AdEMAMix are not the same ones."""
    for key in keys:
        if isinstance(tree, dict) and "hyperparams" in tree:
            raise CheckpointError(
                "this state was made by optax.inject_hyperparams, which keeps the settings of the optimizer in it: "
                "convert it in Python, with ademamix.optax.from_adamw_state or to_adamw_state"
            )
        tree = tree[key]


@contextmanager
def _at(label: str, *, others: Sequence[str] = ()) -> Iterator[None]:
    """Say where in a checkpoint an error is, and how to convert others, if there are any."""
    try:
        yield
    except (ValueError, TypeError) as error:
        advice = f" To leave it as it is, name what to convert, as in --only {others[0]!r}." if others else ""
        raise CheckpointError(f"at {label}: {error}{advice}") from error


def _write(
    checkpoint: Checkpoint, new_trees: list[Any], destination: Path, targets: Mapping[str, str], *, unsafe_pickle: bool
) -> None:
    """Write under another name, read that again, and give it its name only if it is what it should be."""
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        with _writing(destination):
            if checkpoint.parts[0].place != Path():
                converted = {checkpoint.path / part.place for part in checkpoint.parts}
                shutil.copytree(
                    checkpoint.path,
                    temporary,
                    ignore=lambda folder, names: [name for name in names if Path(folder) / name in converted],
                )
            for part, tree in zip(checkpoint.parts, new_trees, strict=True):
                part.container.write(temporary / part.place, tree)
        _verify(temporary, checkpoint, new_trees, targets, unsafe_pickle=unsafe_pickle)
        _to_disk(temporary)
        _name(temporary, checkpoint.path, destination)
    except BaseException:
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
        raise


def _name(temporary: Path, source: Path, destination: Path) -> None:
    """Give what was written its name, if nothing else has got it: writing takes a while."""
    try:
        if temporary.is_dir():
            temporary.rename(destination)  # fails if there is a file or a folder with something in it
        else:
            os.link(temporary, destination)  # fails if there is anything
            temporary.unlink()
    except OSError:
        _check_destination(source, destination)
        temporary.rename(destination)  # the file system has no links


@contextmanager
def _writing(destination: Path) -> Iterator[None]:
    """Say that a disk is full, for example, where torch says something of its own instead."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if (reason := disk_error(error)) is None:
            raise
        raise CheckpointError(f"cannot write {str(destination)!r}: {reason.strerror or reason}") from error


def _verify(
    written: Path, checkpoint: Checkpoint, new_trees: list[Any], targets: Mapping[str, str], *, unsafe_pickle: bool
) -> None:
    again = containers.read(written, unsafe_pickle=unsafe_pickle)
    for part, tree in zip(again.parts, new_trees, strict=True):
        different = trees.difference(tree, part.tree)
        if different is not None:
            raise CheckpointError(f"what was written differs from what was to be written, at {different}")
    for location in again.locations:
        label = checkpoint.label(location)
        if label in targets:
            with _at(label):
                _states_of(again.framework).verify(location.node, targets[label])


def _to_disk(path: Path) -> None:
    """Wait until a file, or all that is in a folder, is on disk."""
    for written in [path, *path.rglob("*")] if path.is_dir() else [path]:
        descriptor = os.open(written, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
