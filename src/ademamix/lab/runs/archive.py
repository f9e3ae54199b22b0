"""Small records of finished runs, one JSON file for each: what is committed, and what results can be shown from again.

A record has the config of a run, its result, its environment, and what was recorded during it, to six digits. The
model, the learning rate and the norms of the gradients are not in it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ademamix.lab.config import ConfigError, Run, read
from ademamix.lab.runs import environment
from ademamix.lab.runs.record import Result, RunError, RunFolder
from ademamix.output.atomic import write_atomically

LEFT_OUT = {"step", "lr", "gradient_norm"}


@dataclass(frozen=True)
class Archive:
    """A folder of records, each under the key of its run."""

    folder: Path

    def add(self, run: RunFolder, result: Result) -> None:
        """Write the record of a run that has ended so, unless it is there."""
        path = self._path(run.config)
        if path.exists():
            return
        metrics: dict[str, dict[int, float | None]] = {}
        for row in run.metrics():
            for name in row.keys() - LEFT_OUT:
                metrics.setdefault(name, {})[row["step"]] = _short(row[name])
        record = {
            "run": run.config.model_dump(mode="json", exclude_defaults=True),
            "result": {name: _short(value) for name, value in asdict(result).items()},
            "environment": run.read_json(environment.FILE),
            "metrics": {name: _column(metrics[name]) for name in sorted(metrics)},
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record) + "\n")

    def restore(
        self, runs: Mapping[str, Run], root: Path, current: environment.CurrentData | None
    ) -> dict[str, Result]:
        """Return the results of those runs that are finished, by name; some are so by their records.

        The folders of these are laid in `root`. Records of runs on data that is another by now are passed over; if
        `current` is None, they are not.
        """
        results = {}
        for name, run in runs.items():
            folder = RunFolder(root, run)
            result = folder.result()
            record = self._read(run) if result is None else None
            if record and (current is None or current.may_be(run.data, record["environment"]["data"])):
                result = _lay(folder, record)
            if result is not None:
                results[name] = result
        return results

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
            record["environment"]["data"]
            record["metrics"] = {name: _by_step(column) for name, column in record["metrics"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, ConfigError) as error:
            first, *_ = str(error).splitlines()  # of a config there may be a line for each mistake
            raise RunError(f"the record {str(path)!r} is damaged ({first}): restore it, or remove it") from error
        return record


def _lay(folder: RunFolder, record: dict[str, Any]) -> Result:
    rows: dict[int, dict[str, Any]] = {}
    for name, by_step in record["metrics"].items():
        for step, value in by_step.items():
            rows.setdefault(step, {"step": step})[name] = value
    with folder.locked():
        if (result := folder.result()) is not None:  # the process that held the folder has finished the run
            return result
        folder.write_json(environment.FILE, record["environment"])
        folder.keep_metrics_until(-1)
        with folder.open_metrics() as append:
            for step in sorted(rows):
                append(rows[step])
        result = Result(**_with_nan(record["result"]))
        folder.write_result(result)
    return result


def _column(by_step: Mapping[int, float | None]) -> dict[str, Any]:
    """Return the values of a metric with their steps: all, or the first and the distance if they are regular.

    >>> _column({10: 2.5, 20: 2.0, 30: None})
    {'first': 10, 'every': 10, 'values': [2.5, 2.0, None]}
    >>> _column({10: 2.5, 15: 2.0, 30: 1.5})
    {'steps': [10, 15, 30], 'values': [2.5, 2.0, 1.5]}
    """
    steps, values = list(by_step), list(by_step.values())
    every = {later - earlier for earlier, later in itertools.pairwise(steps)}
    if len(every) == 1:
        return {"first": steps[0], "every": every.pop(), "values": values}
    return {"steps": steps, "values": values}


def _by_step(column: Mapping[str, Any]) -> dict[int, float | None]:
    """Return what :func:`_column` has written down.

    >>> _by_step({"first": 10, "every": 10, "values": [2.5, 2.0, None]})
    {10: 2.5, 20: 2.0, 30: None}
    """
    steps = column["steps"] if "steps" in column else itertools.count(column["first"], column["every"])
    return dict(zip(steps, column["values"], strict=False))


def _with_nan(result: dict[str, Any]) -> dict[str, Any]:
    loss = result["validation_loss"]
    return {**result, "validation_loss": math.nan if loss is None else loss}


def _short(value: Any) -> Any:
    """Return a number to six digits, and null for one that is not finite."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
