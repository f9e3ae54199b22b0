"""The folder of a run: its config, metrics, checkpoints and result, none of them ever half written.

A file gets its name only after its content is on disk, and a checkpoint's name ends with the hash of its content, so
that a torn one is recognised when it is read. Metrics are appended; rows beyond the checkpoint that a run continues
from are cut off, and come again, the same. One process at a time may write into a folder: it holds the lock, which the
kernel takes back when the process dies.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from ademamix.checkpoints.errors import disk_error
from ademamix.lab.config import Run, read
from ademamix.lab.runs import checkpoints
from ademamix.output.atomic import PART, to_disk, write_atomically

if TYPE_CHECKING:  # it takes a second to import, and is not needed to read a result
    import torch

KEPT_CHECKPOINTS = 2  # the newest may be torn by a failing disk


class RunError(RuntimeError):
    """A run that cannot continue; the message says why, where it stands and what to do."""


@dataclass(frozen=True)
class Result:
    """How a finished run ended."""

    steps: int
    validation_loss: float
    """The last one; if the run diverged, the last that was finite, or NaN."""
    accuracy: float | None
    """Of the last validation, if the run classifies images."""
    seconds: float
    """Time spent in steps: no validation, no checkpoints."""
    parameters: int
    state_bytes: int
    diverged: bool = False

    @property
    def seconds_per_step(self) -> float:
        """The mean time of a step."""
        return self.seconds / self.steps


class RunFolder:
    """The folder of one run, `root`/`config.key`.

    >>> import tempfile, torch
    >>> from ademamix.lab.config import GPT, Cosine, Optimizer, Text
    >>> config = Run(
    ...     model=GPT(kind="gpt", width=64, layers=2, heads=2, context=64), data=Text(kind="text"),
    ...     optimizer=Optimizer(name="adamw", lr=1e-3), schedule=Cosine(kind="cosine"),
    ...     steps=1000, batch=8, validate_every=100,
    ... )
    >>> with tempfile.TemporaryDirectory() as root:
    ...     folder = RunFolder(Path(root), config)
    ...     with folder.locked():
    ...         folder.save_checkpoint(10, {"weights": torch.ones(2)})
    ...         step, state = folder.load_checkpoint()
    >>> step, state
    (10, {'weights': tensor([1., 1.])})
    """

    def __init__(self, root: Path, config: Run) -> None:
        self.config = config
        self.path = root / config.key
        self._metrics = self.path / "metrics.jsonl"
        self._result = self.path / "result.json"
        self._checkpoints = self.path / "checkpoints"

    @contextlib.contextmanager
    def locked(self, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Create the folder and hold it alone; while another process holds it, wait, after calling `on_wait` once.

        If an error ends that before anything but the config was written, the folder is gone again.
        """
        with self.explained("create"):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / "lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if on_wait is not None:
                    on_wait()
                lock.acquire()
        try:
            with self.explained("write to"):
                for leftover in (*self.path.glob(f".*{PART}"), *self._checkpoints.glob(f".*{PART}")):
                    _remove(leftover)
                write_atomically(self.path / "config.json", self.config.model_dump_json(indent=1) + "\n")
            yield
        except BaseException:
            if {file.name for file in self.path.iterdir()} <= {"config.json", "lock"}:  # the run was refused
                shutil.rmtree(self.path)
            raise
        finally:
            lock.release()

    def result(self) -> Result | None:
        """Return how the run ended, or None if it has not."""
        if not self._result.exists():
            return None
        with self._undamaged(self._result):
            content = json.loads(self._result.read_text())
            return Result(**{**content, "validation_loss": _number(content["validation_loss"])})

    def metrics(self) -> list[dict[str, Any]]:
        """Return the recorded rows; each has a "step" and whatever was recorded after it."""
        if not self._metrics.exists():
            return []
        with self._undamaged(self._metrics):
            lines = self._metrics.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]  # the last may be half written
            return [_row(number, line) for number, line in enumerate(whole, start=1)]

    def keep_metrics_until(self, step: int) -> None:
        """Cut off the rows that were recorded after `step`."""
        rows = [row for row in self.metrics() if row["step"] <= step]
        with self.explained("write to"):
            write_atomically(self._metrics, "".join(_line(row) for row in rows))

    @contextlib.contextmanager
    def open_metrics(self) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """Give a function that appends a row."""
        with self.explained("write to"):
            file = self._metrics.open("a")

        def append(row: Mapping[str, Any]) -> None:
            with self.explained("write to"):
                file.write(_line(row))
                file.flush()

        with file:
            yield append

    def save_checkpoint(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, and the metrics so far, to disk; then remove the oldest."""
        with self.explained("write a checkpoint to"):
            if self._metrics.exists():
                to_disk(self._metrics)
            checkpoints.save(self._checkpoints, step, state, keep=KEPT_CHECKPOINTS)

    def load_checkpoint(self, device: torch.device | str = "cpu") -> tuple[int, dict[str, Any]] | None:
        """Return the newest checkpoint that is whole, and its step; say so if a newer one is not."""
        return checkpoints.load(self._checkpoints, device)

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run can continue from somewhere."""
        return checkpoints.any_in(self._checkpoints)

    def finish(self, result: Result, save_model: Callable[[Path], object]) -> None:
        """Keep the result and the model that `save_model(folder)` writes, and drop the checkpoints."""
        with self.explained("write the result to"):
            temporary, model = self.path / f".model{PART}", self.path / "model"
            try:
                save_model(temporary)
                for path in (*temporary.rglob("*"), temporary):
                    to_disk(path)
            except BaseException:
                _remove(temporary)
                raise
            _remove(model)
            temporary.replace(model)
            self.write_result(result)

    def write_result(self, result: Result) -> None:
        """Write how the run ended, after which it is finished, and drop the checkpoints."""
        with self.explained("write the result to"):
            if self._metrics.exists():
                to_disk(self._metrics)
            write_atomically(self._result, json.dumps(_without_nan(asdict(result)), indent=1) + "\n")
            _remove(self._checkpoints)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write another file of the folder."""
        with self.explained("write to"):
            write_atomically(self.path / name, json.dumps(content, indent=1) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read what :meth:`write_json` wrote, or None."""
        path = self.path / name
        if not path.exists():
            return None
        with self._undamaged(path):
            return dict(json.loads(path.read_text()))

    @contextlib.contextmanager
    def _undamaged(self, path: Path) -> Iterator[None]:
        """If a file is not as it was written, say that it is damaged, and what to do."""
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(
                f"{str(path)!r} is damaged ({error}). Restore it, or remove the folder {str(self.path)!r} and give "
                "the same command again, which trains the run again"
            ) from error

    @contextlib.contextmanager
    def explained(self, deed: str) -> Iterator[None]:
        """If the disk fails, say what could not be done, that nothing is lost, and what to do."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            if (cause := disk_error(error)) is None:
                raise
            raise RunError(
                f"cannot {deed} the folder {str(self.path)!r}: {cause.strerror or cause}. Everything saved before is "
                "intact: free some space or make it writable, then give the same command again, and the run continues."
            ) from error


def open_folder(path: Path) -> RunFolder:
    """Return the run whose folder this is."""
    folder = RunFolder(path.parent, read(Run, (path / "config.json").read_text(encoding="utf-8")))
    if folder.path.name != path.resolve().name:
        raise RunError(f"the folder {str(path)!r} is that of a run of another version: train it again")
    return folder


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(_without_nan(row)) + "\n"


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with null for infinite numbers and NaN, for which JSON has no word."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _row(number: int, line: str) -> dict[str, Any]:
    content = json.loads(line)
    if not isinstance(content, dict) or type(content.get("step")) is not int:
        raise ValueError(f"line {number} has no step")
    return {name: value if name == "step" else _number(value, f"line {number}") for name, value in content.items()}


def _number(value: Any, where: str = "validation_loss") -> float:
    """Return a number of a JSON file, in which null is one that is not finite."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} has {value!r} for a number")
    return value
