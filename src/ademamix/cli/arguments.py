"""The kinds of arguments that commands share, and the errors that they raise."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

from ademamix.hyperparameters import LAST_STEP
from ademamix.schedules import OPEN

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
Options: TypeAlias = "argparse._ActionsContainer"  # a parser, or a group of its options

MOST = 1000
"""The largest :func:`small_count`; the learning rates of a search that wide are still numbers that a float holds."""

UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}

FEWEST_RATES = 3  # of a search: the best of fewer has no neighbour on each side


class UsageError(Exception):
    """What is wrong, what was given and what to do; the command line prints it and exits with 2."""


class Parser(argparse.ArgumentParser):
    """A parser whose help keeps the lines of its texts, and may end with lists.

    The lists are made only when somebody asks for the help: they load modules.
    """

    lists: Callable[[], str] | None = None
    intermixed = False
    """Whether arguments without a name may stand between options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Read the arguments."""
        if not self.intermixed:
            return super().parse_known_args(args, namespace)
        self.intermixed = False  # the next line calls this method
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.intermixed = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def format_help(self) -> str:
        """Return the help, with the lists at the end of its description."""
        if self.lists is not None:
            self.description, self.lists = f"{self.description}\n{self.lists()}", None
        return super().format_help()


def add_flag(options: Options, name: str, explanation: str) -> None:
    """Add an option that is off unless it is given."""
    options.add_argument(name, action="store_true", help=explanation)


def add_value(
    options: Options, name: str, kind: Callable[[str], Any], metavar: str, explanation: str, *, default: Any = None
) -> None:
    """Add an option whose value `kind` reads."""
    options.add_argument(name, type=kind, default=default, metavar=metavar, help=explanation)


def add_choice(
    options: Options, name: str, choices: Iterable[str], metavar: str, explanation: str, *, default: str | None = None
) -> None:
    """Add an option that is one of some words."""
    options.add_argument(name, choices=choices, default=default, metavar=metavar, help=explanation)


def whole(text: str) -> int:
    """Read a whole number, perhaps with a unit, an exponent or commas between thousands; 0 if the text is none.

    >>> whole("10k"), whole("1.5M"), whole("7b"), whole("10,000"), whole("1e4")
    (10000, 1500000, 7000000000, 10000, 10000)
    >>> whole("1.5"), whole("1,5")
    (0, 0)
    """
    found = re.fullmatch(
        r"((?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?|\.\d+)(e\d{1,2}|[kmbt]?)", text, re.ASCII | re.IGNORECASE
    )
    if not found:
        return 0
    digits, size = found[1].replace(",", ""), found[2].lower()
    number = Fraction(digits) * (UNITS[size] if size in UNITS else 10 ** int(size[1:]))
    return int(number) if number.denominator == 1 else 0


def positive(text: str) -> int:
    """Read a whole number of at least 1; 10k is 10000, and 1.5M is 1500000."""
    if (number := whole(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r} (try 500, 10k or 1.5M)")
    return number


def count(text: str) -> int:
    """Read a whole number of at least 1 that a float holds."""
    if (number := positive(text)) > LAST_STEP:
        raise argparse.ArgumentTypeError(f"must be at most {LAST_STEP:,}, got {text[:40]}")
    return number


def horizon(text: str) -> int | str:
    """Read the length of a run.

    >>> horizon("10k"), horizon("1.5M"), horizon("open")
    (10000, 1500000, 'open')
    """
    return OPEN if text == OPEN else count(text)


def steps_or_zero(text: str) -> int:
    """Read a whole number of at least 0; 10k is 10000."""
    return 0 if text == "0" else positive(text)


def beta(text: str) -> float:
    """Read the decay of an average."""
    number = _number(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0 and below 1, got {text!r}")
    return number


def run_length(text: str, base: int) -> int:
    """Read a number of steps, or a multiple of `base`.

    >>> run_length("40k", base=10_000), run_length("1.5x", base=10_000)
    (40000, 15000)
    """
    try:
        steps = round(_number(text.removesuffix("x")) * base) if text.endswith("x") else positive(text)
    except (argparse.ArgumentTypeError, ValueError):  # round raises the latter for what is no number
        steps = 0
    if steps < 1:
        raise UsageError(
            f"steps must be a whole number of at least 1, or a multiple of --steps such as 2x, got {text!r}"
        )
    return steps


def small_count(text: str) -> int:
    """Read a number of threads, processes or runs."""
    number = positive(text)
    if number > MOST:
        raise argparse.ArgumentTypeError(f"must be at most {MOST}, got {text!r}")
    return number


def rates(text: str) -> int:
    """Read a number of learning rates to begin a search with."""
    number = small_count(text)
    if number < FEWEST_RATES:
        raise argparse.ArgumentTypeError(
            f"must be at least {FEWEST_RATES}, so that the best can have a worse one on each side, got {text!r}"
        )
    return number


def seed(text: str) -> int:
    """Read a whole number that torch accepts as a seed."""
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**64 - 1, got {text!r}")
    return int(text)


def rate(text: str) -> float:
    """Read a number above 0."""
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def rate_or_zero(text: str) -> float:
    """Read a number of at least 0."""
    number = _number(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")
    return number


def ray_address(text: str) -> str:
    """Read where a Ray cluster is."""
    if not re.fullmatch(r"auto|[^/\s]+:\d+", text):
        raise argparse.ArgumentTypeError(f"must be HOST:PORT or auto, got {text!r}")
    return text


def _number(text: str) -> float:
    """Read a finite number; NaN if the text is none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def file_to_write(text: str) -> Path:
    """Read the name of a file that can be written."""
    path = Path(text)
    folder = path.absolute().parent
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a file that can be written, got {text!r}")
    return path


def name_and_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Read a name and settings.

    >>> name_and_settings("ademamix:alpha=8,betas=[0.9,0.95]")
    ('ademamix', {'alpha': 8, 'betas': [0.9, 0.95]})
    """
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for part in _split_outside_brackets(rest):
        setting, equals, value = part.partition("=")
        if not setting or not equals:
            raise argparse.ArgumentTypeError(f"must be NAME or NAME:SETTING=VALUE,SETTING=VALUE, got {text!r}")
        try:
            settings[setting] = json.loads(value)
        except json.JSONDecodeError:
            settings[setting] = value
    return name, settings


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]


def writable_folder(path: Path, option: str = "--out") -> Path:
    """Create the folder that an option names and check that it can be written to: better now than after an hour."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to the folder {str(path)!r}: {error.strerror}. Choose another one: {option} DIR"
        ) from None
    return path
