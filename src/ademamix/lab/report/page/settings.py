"""The settings of runs: what all of them share, and what each has of its own; and where they were carried out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ademamix.lab.runs.record import RunError


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the settings of a config by their full names, as text.

    >>> flat({"optimizer": {"lr": 0.01, "settings": {"betas": [0.9, 0.99]}}, "seed": 1})
    {'optimizer.lr': '0.01', 'optimizer.settings.betas': '[0.9, 0.99]', 'seed': '1'}
    >>> flat({"phases": [{"step": 10}]})
    {'phases.1.step': '10'}
    """
    found: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
            found |= flat({str(number): part for number, part in enumerate(value, start=1)}, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found


def shared_and_own(configs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the settings that all configs have alike, and those of each that others lack or have otherwise.

    >>> shared_and_own([{"lr": 0.01, "seed": 1}, {"lr": 0.02, "seed": 1}])
    ({'seed': '1'}, [{'lr': '0.01'}, {'lr': '0.02'}])
    """
    settings = [flat(config) for config in configs]
    first = settings[0] if settings else {}
    shared = {name: value for name, value in first.items() if all(each.get(name) == value for each in settings)}
    return shared, [{name: value for name, value in each.items() if name not in shared} for each in settings]


def in_words(settings: Mapping[str, str]) -> str:
    """Return settings in a line, by the last parts of their names.

    >>> in_words({"optimizer.name": "adamw", "optimizer.lr": "0.01"})
    'adamw, lr 0.01'
    """
    parts = ((name.rpartition(".")[2], value) for name, value in settings.items())
    return ", ".join(value if name in ("name", "kind", "source") else f"{name} {value}" for name, value in parts)


@dataclass(frozen=True)
class Environment:
    """Versions and machine, and how many runs were carried out there."""

    words: str
    runs: int


def environments(folders: Sequence[Path], keys: Iterable[str]) -> list[Environment]:
    """Return where the runs of these keys were carried out, as far as they are in one of the folders and say so."""
    files = [folder / key / "environment.json" for key in keys for folder in folders]
    found = Counter(words for file in files for words in _carried_out(file))
    return [Environment(words, count) for words, count in found.most_common()]


def _carried_out(path: Path) -> set[str]:
    if not path.exists():
        return set()
    try:
        return {machine(where) for where in json.loads(path.read_text(encoding="utf-8"))["carried_out"]}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"{str(path)!r} is damaged ({error}): remove it, or the folder of the run") from error


def machine(where: Mapping[str, Any]) -> str:
    """Return versions and machine in a line, as far as they are known."""
    versions = ", ".join(f"{name} {where[name]}" for name in ("ademamix", "torch", "python") if where.get(name))
    threads = f"{where['threads']} thread{'s' if where['threads'] != 1 else ''}" if where.get("threads") else ""
    processors = f"{where['processors']} processors" if where.get("processors") else ""
    machine = [where.get("processor", ""), where.get("machine", ""), processors, threads, where.get("device", "")]
    return "; ".join(filter(None, [versions, ", ".join(filter(None, map(str, machine)))]))
