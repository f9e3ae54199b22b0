"""Small records of finished runs, one JSON file for each: what is committed, and what results can be shown from again.

A record has the config of a run, its result, its environment, and what was recorded at validations and by probes, to
seven digits. The model, and the training loss in between, are not in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ademamix.lab.config import ConfigError, Run, read
from ademamix.lab.runs import environment
from ademamix.lab.runs.atomic import write_atomically
from ademamix.lab.runs.record import Result, RunError, RunFolder

LEFT_OUT = {"step", "lr", "gradient_norm"}
ROUTINE = LEFT_OUT | {"loss"}
"""What nearly every step records: a row of nothing else is left out."""


@dataclass(frozen=True)
class Archive:
    """A folder of records, each under the key of its run."""

    folder: Path

    def add(self, run: RunFolder) -> None:
        """Write the record of a finished run, unless it is there."""
        path, result = self._path(run.config), run.result()
        if result is None or path.exists():
            return
        metrics: dict[str, dict[int, float | None]] = {}
        for row in run.metrics():
            for name in row.keys() - LEFT_OUT if row.keys() - ROUTINE else ():
                metrics.setdefault(name, {})[row["step"]] = _short(row[name])
        record = {
            "run": run.config.model_dump(mode="json", exclude_defaults=True),
            "result": {name: _short(value) for name, value in asdict(result).items()},
            "environment": run.read_json(environment.FILE),
            "metrics": dict(sorted(metrics.items())),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record) + "\n")

    def restore(self, runs: Iterable[Run], root: Path, current: environment.CurrentData | None) -> None:
        """Lay the folders of those runs in `root` that have a record and are not finished there.

        Records of runs on data that is another by now are passed over; if `current` is None, they are not.
        """
        for run in runs:
            folder = RunFolder(root, run)
            record = None if folder.result() else self._read(run)
            if record and (current is None or current.may_be(run.data, record["environment"]["data"])):
                _lay(folder, record)

    def _path(self, run: Run) -> Path:
        return self.folder / f"{run.key}.json"

    def _read(self, run: Run) -> dict[str, Any] | None:
        path = self._path(run)
        if not path.exists():
            return None
        try:
            record = dict(json.loads(path.read_text(encoding="utf-8")))
            if read(Run, json.dumps(record["run"])).key != run.key:
                raise ValueError("it is that of another run")
            Result(**_with_nan(record["result"]))
            record["environment"]["data"], record["metrics"].items()
        except (ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
            raise RunError(f"the record {str(path)!r} is damaged ({error}): restore it, or remove it") from error
        return record


def _lay(folder: RunFolder, record: dict[str, Any]) -> None:
    rows: dict[int, dict[str, Any]] = {}
    for name, by_step in record["metrics"].items():
        for step, value in by_step.items():
            rows.setdefault(int(step), {"step": int(step)})[name] = value
    with folder.locked():
        if folder.result() is not None:  # the process that held the folder has finished the run
            return
        folder.write_json(environment.FILE, record["environment"])
        folder.keep_metrics_until(-1)
        with folder.open_metrics() as append:
            for step in sorted(rows):
                append(rows[step])
        folder.write_result(Result(**_with_nan(record["result"])))


def _with_nan(result: dict[str, Any]) -> dict[str, Any]:
    loss = result["validation_loss"]
    return {**result, "validation_loss": math.nan if loss is None else loss}


def _short(value: Any) -> Any:
    """Return a number to seven digits, and null for one that is not finite."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value
