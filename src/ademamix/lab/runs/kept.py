"""The runs that a folder keeps: what they train, how far they are, how large and how old."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ademamix.lab.config import ConfigError, Optimizer, Phase, Run, Text
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.runs.record import RunError, RunFolder, open_folder
from ademamix.output import tables

UNITS = ("bytes", "kB", "MB", "GB", "TB")
AGES = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


@dataclass(frozen=True)
class KeptRun:
    """A run in its folder."""

    path: Path
    config: Run | None
    """None if it cannot be read, for example because another version wrote it."""
    state: str
    """How it ended or how far it is, in words."""
    in_use: bool
    """Whether a process holds it."""
    size: int
    """In bytes."""
    changed: float
    """When a file of it last changed, in seconds since 1970."""

    @property
    def key(self) -> str:
        """The name of its folder."""
        return self.path.name

    def as_json(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return {
            "key": self.key,
            "path": str(self.path),
            "config": None if self.config is None else self.config.model_dump(mode="json", exclude_defaults=True),
            "state": self.state,
            "in_use": self.in_use,
            "bytes": self.size,
            "changed": self.changed,
        }


def kept_runs(root: Path) -> list[KeptRun]:
    """Return the runs in a folder, those that changed last first."""
    folders = [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    return sorted(map(kept_run, folders), key=lambda run: run.changed, reverse=True)


def kept_run(path: Path) -> KeptRun:
    """Return the run in a folder."""
    files = _files(path)
    in_use = _in_use(path)
    config, state = None, "cannot be read: another version may have written it"
    try:
        folder = open_folder(path)
        config, state = folder.config, _state(folder, in_use)
    except RunError:  # its config can be read, but has another key by now
        state = "of another version"
    except (ConfigError, OSError, UnicodeError):
        pass
    return KeptRun(
        path=path,
        config=config,
        state=state,
        in_use=in_use,
        size=sum(stat.st_size for stat in files),
        changed=max((stat.st_mtime for stat in files), default=0.0),
    )


def remove(run: KeptRun) -> None:
    """Remove the folder of a run; one that a process holds is refused."""
    lock = FileLock(run.path / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"{run.key} is in use: stop the process that trains it first") from None
    try:
        shutil.rmtree(run.path)
    finally:
        lock.release()


def table(runs: Sequence[KeptRun], width: int) -> str:
    """Lay runs out, one per row."""
    now = time.time()
    rows = [[run.key, _words(run.config), run.state, size(run.size), age(now - run.changed)] for run in runs]
    return tables.in_rows(["key", "run", "state", "size", "age"], rows, width)


def size(count: int) -> str:
    """Write a number of bytes.

    >>> size(0), size(1500), size(20_000_000_000)
    ('0 bytes', '1.5 kB', '20 GB')
    """
    number, unit = float(count), 0
    while number >= 999.5 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.3g} {UNITS[unit]}" if number < 99.5 else f"{number:.0f} {UNITS[unit]}"


def age(seconds: float) -> str:
    """Write how long ago something was.

    >>> age(7_300), age(5_400), age(3), age(-5)
    ('2 hours', '90 minutes', '3 seconds', '0 seconds')
    """
    unit = next((unit for unit, length in AGES.items() if seconds >= 2 * length), "seconds")
    return f"{max(0, seconds) // AGES[unit]:.0f} {unit}"


def _files(path: Path) -> list[os.stat_result]:
    """Return the size and time of the files in a folder; a run in progress may remove some meanwhile."""
    found = []
    for file in path.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if file.name != "lock":  # checking whether it is held changes its time
                found.append(file.lstat())
    return found


def _state(folder: RunFolder, in_use: bool) -> str:
    try:
        return _progress(folder, in_use)
    except RunError:
        return "damaged"


def _progress(folder: RunFolder, in_use: bool) -> str:
    if (result := folder.result()) is not None:
        if result.diverged:
            return f"diverged at step {result.steps:,}"
        accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.1%}"
        return f"finished, validation {result.validation_loss:.4f}{accuracy}"
    step = max((row["step"] for row in folder.metrics()), default=0)
    return f"{'in use' if in_use else 'stopped'} at step {step:,} of {folder.config.steps:,}"


def _in_use(path: Path) -> bool:
    if not (path / "lock").exists():
        return False
    lock = FileLock(path / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # somebody else's: without permission to lock it there is none to remove it
        return False
    lock.release()
    return False


def _words(config: Run | None) -> str:
    """Say what a run trains, and on what."""
    if config is None:
        return "?"
    model, data = config.model, config.data
    parts = [
        _optimizer(config.optimizer),
        f"{model.kind} of width {model.width} and {model.layers} layer{'s' if model.layers > 1 else ''}",
        f"{data.source} ({data.tokenizer})" if isinstance(data, Text) else data.source,
        f"{config.steps:,} steps",
        f"batch {config.batch}",
        f"seed {config.seed}",
    ]
    parts[1:1] = [f"from step {phase.step:,} {_change(phase)}" for phase in config.phases]
    return ", ".join(parts)


def _change(phase: Phase) -> str:
    optimizer = [] if phase.optimizer is None else [_optimizer(phase.optimizer)]
    schedule = [] if phase.schedule is None else [f"a {phase.schedule.kind} learning rate"]
    return " and ".join(optimizer + schedule)


def _optimizer(optimizer: Optimizer) -> str:
    settings = " ".join(f"{name}={value}".replace(" ", "") for name, value in optimizer.settings.items())
    return " ".join(filter(None, [OPTIMIZERS[optimizer.name].display, f"lr={optimizer.lr:g}", settings]))
