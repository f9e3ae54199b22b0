"""The environment of a run: the fingerprint of its data, versions and the machine, in environment.json."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ademamix
from ademamix.lab import data, process_group
from ademamix.lab.config import Data
from ademamix.lab.data.hub import is_of_the_hub
from ademamix.lab.runs.machine import processor
from ademamix.lab.runs.record import RunError, RunFolder

FILE = "environment.json"


def check_data(folder: RunFolder, fingerprint: str) -> None:
    """Refuse to continue with other data than the run began with."""
    if _fingerprint(folder) not in (None, fingerprint):
        raise RunError(
            f"the data {folder.config.data.source!r} has changed since the run in {str(folder.path)!r} began: bring it "
            "back, or remove that folder to start afresh"
        )


class CurrentData:
    """The fingerprints of data as it is now, each computed once."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._fingerprints: dict[Data, str | None] = {}

    def fingerprint(self, config: Data) -> str | None:
        """Return the fingerprint of data, or None where it is taken to be unchanged.

        Data of the hub is, since checking might mean reading it all again, and so is data that is gone.
        """
        if is_of_the_hub(config.source):
            return None
        if config not in self._fingerprints:
            try:
                self._fingerprints[config] = data.fingerprint(config, self._cache)
            except data.DataError:
                self._fingerprints[config] = None
        return self._fingerprints[config]

    def may_be(self, config: Data, fingerprint: str) -> bool:
        """Tell whether data still has a fingerprint, or is taken to."""
        return self.fingerprint(config) in (None, fingerprint)


def check_kept(folders: Iterable[RunFolder], cache: Path) -> None:
    """Refuse to show the results of runs whose data has changed since."""
    current = CurrentData(cache)
    for folder in folders:
        if (now := current.fingerprint(folder.config.data)) is not None:
            check_data(folder, now)


def describe(folder: RunFolder, fingerprint: str, *, step: int, device: str) -> None:
    """Record the environment of the run after `step`, if it differs from the one before."""
    import torch  # here, so that looking at results does not wait for it

    now = {**here(), "torch": torch.__version__, "threads": torch.get_num_threads(), "device": device}
    if (processes := process_group.current().count) > 1:
        now["processes"] = processes
    history = (folder.read_json(FILE) or {}).get("carried_out", [])
    if not history or {**history[-1], "after_step": step} != {**now, "after_step": step}:
        history.append({"after_step": step, **now})
    folder.write_json(FILE, {"data": fingerprint, "carried_out": history})


def here() -> dict[str, Any]:
    """Return versions and machine of what is computed here, without torch and its threads."""
    versions = {"ademamix": ademamix.__version__, "python": platform.python_version()}
    return {**versions, "machine": platform.platform(), "processor": processor(), "processors": os.cpu_count()}


def check_same_data(folders: Iterable[RunFolder]) -> None:
    """Refuse to compare runs if the content of their data has changed in between."""
    begun = [folder for folder in folders if _fingerprint(folder) is not None]
    newest: dict[Data, RunFolder] = {}
    for folder in sorted(begun, key=lambda folder: (folder.path / FILE).stat().st_mtime_ns):
        newest[folder.config.data] = folder
    old = [folder for folder in begun if _fingerprint(folder) != _fingerprint(newest[folder.config.data])]
    if old:
        paths = ", ".join(sorted({repr(str(folder.path)) for folder in old}))
        raise RunError(
            f"the data {old[0].config.data.source!r} has changed since some of these runs were trained, so they cannot "
            f"be compared. Bring the data back, or remove the runs on the older data, {paths}, and give the same "
            "command again, which trains them again"
        )


def _fingerprint(folder: RunFolder) -> Any:
    return (folder.read_json(FILE) or {}).get("data")
