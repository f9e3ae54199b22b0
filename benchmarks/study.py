"""What the studies have in common: options, results that survive a kill, progress with the time left, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def parse(description: str, add_options: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    """Parse the options of a study: those of all of them, and what `add_options(parser)` adds."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run in seconds: it shows that the script works, no more")
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="where the JSON goes, after each finished part; a script that was stopped goes on from there "
        "(default: results/ beside the script)",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


class Results:
    """Finished parts of a study in a JSON file, which is written anew, atomically, with each of them."""

    def __init__(self, directory: Path, name: str, settings: dict[str, Any], *, quick: bool) -> None:
        self.path = directory / f"{name}{'-quick' if quick else ''}.json"
        self._content: dict[str, Any] = {
            "settings": json.loads(json.dumps(settings)),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "parts": {},
        }
        if self.path.exists():
            found = json.loads(self.path.read_text())
            if found["settings"] != self._content["settings"]:
                sys.exit(f"{self.path.name} holds results of other settings: remove it, or pass another --results")
            self._content = found

    def __contains__(self, part: str) -> bool:
        return part in self._content["parts"]

    def __getitem__(self, part: str) -> Any:
        return self._content["parts"][part]

    def __setitem__(self, part: str, value: Any) -> None:
        self._content["parts"][part] = value
        write_atomically(self.path, lambda path: path.write_text(json.dumps(self._content, indent=1) + "\n"))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write(temporary)` write a file, and only then give it its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    write(temporary)
    temporary.replace(path)


class Progress:
    """Tells on stderr, every few seconds, how much of the work is done and how long the rest will take."""

    def __init__(self, total: int, unit: str, *, every: float = 5.0) -> None:
        self._total, self._unit, self._every = total, unit, every
        self._done = self._skipped = 0
        self._start = self._told = time.monotonic()

    def skip(self, count: int) -> None:
        """Count work that was done in an earlier run."""
        self._done += count
        self._skipped += count

    def advance(self, label: str = "") -> None:
        """Count one unit of work as done."""
        self._done += 1
        now = time.monotonic()
        if now - self._told < self._every and self._done < self._total:
            return
        self._told = now
        left = (now - self._start) / (self._done - self._skipped) * (self._total - self._done)
        share = self._done / self._total
        print(
            f"{share:4.0%} of {self._total:,} {self._unit}, {_clock(left)} left  {label}", file=sys.stderr, flush=True
        )


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose columns are aligned in plain text too."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = tuple("-" * width for width in widths)
    padded = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (rule, *lines)
    ]
    padded[0], padded[1] = padded[1], padded[0]
    return "\n".join(f"| {line} |" for line in padded)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
