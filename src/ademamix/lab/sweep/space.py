"""What a sweep tries: a list of values or a range for each setting, as written on the command line."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ademamix.lab.config import ConfigError, Run
from ademamix.lab.settings import changed

if TYPE_CHECKING:
    import optuna

Scale = Literal["even", "log", "memory"]
"""How values of a range are spread: evenly, by their logarithm, or by that of 1 - value, the speed of forgetting."""
Point = dict[str, Any]
"""A value for each setting."""

FIELDS = ("batch", "clip", "schedule", "warmup")
"""What can be swept besides `lr` and the settings of the optimizer."""
WHOLE = ("batch", "warmup", "alpha_warmup", "beta3_warmup", "total_steps")
BETAS = ("beta1", "beta2", "beta3")
DIGITS = 3
"""Of a value that is drawn from a range: more would say nothing, and nobody could read them."""


def ladder(lowest: float, factor: float, count: int) -> list[float]:
    """Return numbers that are a factor apart.

    >>> ladder(0.25, 2.0, 4)
    [0.25, 0.5, 1.0, 2.0]
    """
    return [lowest * factor**power for power in range(count)]


@dataclass(frozen=True)
class Values:
    """A setting with a list of values."""

    name: str
    values: tuple[Any, ...]

    @property
    def parameter(self) -> str:
        """Its name in a study."""
        return self.name

    @property
    def extremes(self) -> tuple[Any, ...]:
        """The values that are checked before anything is trained: all."""
        return self.values

    def suggested(self, trial: optuna.Trial) -> None:
        """Have a sampler choose."""
        trial.suggest_categorical(self.name, [spelled(value) for value in self.values])

    def value_of(self, stored: Any) -> Any:
        """Return the value that a study has stored, by its text."""
        return {spelled(value): value for value in self.values}[stored]

    def at_edge(self, value: Any) -> bool:
        """Whether a number is the smallest or the largest of several, so that a better one may lie outside."""
        numbers = [each for each in self.values if is_number(each)]
        return len(numbers) > 1 and is_number(value) and value in (min(numbers), max(numbers))

    def __str__(self) -> str:
        return f"{self.name}={','.join(map(spelled, self.values))}"


@dataclass(frozen=True)
class Between:
    """A setting with a range of values."""

    name: str
    low: float
    high: float
    scale: Scale = "even"

    @property
    def parameter(self) -> str:
        """Its name in a study, which draws 1 - value where that is what matters."""
        return f"1-{self.name}" if self.scale == "memory" else self.name

    @property
    def extremes(self) -> tuple[float, float]:
        """Both ends."""
        return self.low, self.high

    def suggested(self, trial: optuna.Trial) -> None:
        """Have a sampler choose."""
        ends = (1 - self.high, 1 - self.low) if self.scale == "memory" else (self.low, self.high)
        trial.suggest_float(self.parameter, *ends, log=self.scale != "even")

    def value_of(self, stored: float) -> float:
        """Return the value that stands for a number of a study.

        >>> Between("beta3", 0.9, 0.9999, "memory").value_of(0.00123456)
        0.99877
        """
        short = float(f"{stored:.{DIGITS}g}")
        value = round(1 - short, 12) if self.scale == "memory" else short
        value = min(max(value, self.low), self.high)
        return round(value) if self.name in WHOLE else value

    def spread(self, count: int) -> Values:
        """Return a list of so many values, from one end to the other.

        >>> print(Between("lr", 1e-3, 16e-3, "log").spread(5), Between("beta3", 0.9, 0.9999, "memory").spread(4))
        lr=0.001,0.002,0.004,0.008,0.016 beta3=0.9,0.99,0.999,0.9999
        """
        if self.scale == "even":
            numbers = [self.low + (self.high - self.low) * share / (count - 1) for share in range(count)]
        else:
            first, last = (1 - self.low, 1 - self.high) if self.scale == "memory" else (self.low, self.high)
            numbers = ladder(first, (last / first) ** (1 / (count - 1)), count)
        return Values(self.name, tuple(map(self.value_of, numbers)))

    def at_edge(self, value: float) -> bool:
        """Whether a value is within a twentieth of an end, so that a better one may lie outside."""
        place = _place(value, self.scale)
        low, high = _place(self.low, self.scale), _place(self.high, self.scale)
        return min(place - low, high - place) < (high - low) / 20

    def __str__(self) -> str:
        scale = "" if self.scale == default_scale(self.name) else f":{self.scale}"
        return f"{self.name}={self.low:g}..{self.high:.10g}{scale}"


Dimension = Values | Between


@dataclass(frozen=True)
class Space:
    """All settings that vary."""

    dimensions: tuple[Dimension, ...]

    @property
    def finite(self) -> bool:
        """Whether it has a list for each setting."""
        return all(isinstance(each, Values) for each in self.dimensions)

    def __len__(self) -> int:
        """How many combinations a finite space has."""
        return math.prod(len(each.values) for each in self.dimensions if isinstance(each, Values))

    def grid(self) -> Iterator[dict[str, str]]:
        """Yield every combination of a finite space, as a study stores it."""
        lists = [[spelled(value) for value in each.extremes] for each in self.dimensions]
        for combination in itertools.product(*lists):
            yield dict(zip((each.name for each in self.dimensions), combination, strict=True))

    def suggested(self, trial: optuna.Trial) -> Point:
        """Have the sampler of a study choose a value for each setting."""
        for each in self.dimensions:
            each.suggested(trial)
        return self.point(trial.params)

    def point(self, stored: Mapping[str, Any]) -> Point:
        """Return the values that a study has stored, those that it has."""
        known = [each for each in self.dimensions if each.parameter in stored]
        return {each.name: each.value_of(stored[each.parameter]) for each in known}

    def check(self, base: Run) -> None:
        """Raise if a setting or a value is impossible, before anything is trained."""
        from ademamix.lab.optimizers import transitions  # imports torch

        for each in self.dimensions:
            if each.name in Run.model_fields and each.name not in FIELDS:
                raise ConfigError(
                    f"{each.name} cannot be swept: it can be lr, {', '.join(FIELDS)} or a setting of the optimizer"
                )
            for value in each.extremes:
                transitions.check(changed(base, **{each.name: value}))

    def __str__(self) -> str:
        return " ".join(map(str, self.dimensions))


def space(texts: Sequence[str], *, finite: bool = False) -> Space:
    """Read a space; one that must be `finite` takes no range without a number of values.

    >>> print(space(["lr=1e-3..16e-3", "alpha=2,4,8", "beta3=0.99..0.9999:3", "clip=none,1"]))
    lr=0.001..0.016 alpha=2,4,8 beta3=0.99,0.999,0.9999 clip=none,1
    """
    dimensions = tuple(map(dimension, texts))
    names = [each.name for each in dimensions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{twice} is given twice: give one list or range for it")
    for each in dimensions:
        if finite and isinstance(each, Between):
            raise ConfigError(
                f"a grid needs a list of values, got {str(each)!r}: say how many, {each}:5, or search with --search tpe"
            )
    return Space(dimensions)


def dimension(text: str) -> Dimension:
    """Read a list or a range.

    >>> dimension("alpha=2,4,8"), dimension("lr=1e-3..2e-2")
    (Values(name='alpha', values=(2, 4, 8)), Between(name='lr', low=0.001, high=0.02, scale='log'))
    """
    name, equals, rest = text.partition("=")
    if not name or not equals or not rest:
        raise ConfigError(f"a setting is given as NAME=A,B,C or NAME=A..B, got {text!r}")
    if ".." in rest:
        return _range(name, rest, text)
    values = tuple(map(_value, rest.split(",")))
    if "" in values:
        raise ConfigError(f"a list of values has a comma too many, got {text!r}")
    if len(set(map(spelled, values))) < len(values):
        raise ConfigError(f"{text!r} has a value twice")
    return Values(name, values)


def _range(name: str, rest: str, text: str) -> Dimension:
    ends, *suffixes = rest.split(":")
    try:
        low, high = map(float, ends.split("..", 1))
    except ValueError:
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise ConfigError(f"a range is A..B with numbers A < B, got {text!r}")
    scale, count = default_scale(name), 0
    for suffix in suffixes:
        if suffix in ("even", "log", "memory"):
            scale = suffix  # type: ignore[assignment]
        elif suffix.isdecimal() and 2 <= int(suffix) <= 1000:
            count = int(suffix)
        else:
            raise ConfigError(f"after a range comes log, even, memory or a number of values from 2 on, got {text!r}")
    if scale == "log" and low <= 0:
        raise ConfigError(f"a logarithmic range begins above 0, got {text!r}: {name}={ends}:even spreads it evenly")
    if scale == "memory" and not 0 <= low < high < 1:
        raise ConfigError(f"{name} must be in [0, 1), got {text!r}")
    between = Between(name, low, high, scale)
    return between.spread(count) if count else between


def default_scale(name: str) -> Scale:
    """Return how values of a setting are spread unless that is stated."""
    return "log" if name == "lr" else "memory" if name in BETAS else "even"


def described(point: Point) -> str:
    """Write the values of a point.

    >>> described({"lr": 0.004, "clip": None})
    'lr=0.004 clip=none'
    """
    return " ".join(f"{name}={spelled(value)}" for name, value in point.items())


def spelled(value: Any) -> str:
    """Write a value as one would on the command line.

    >>> spelled(1e-3), spelled(8.0), spelled(None), spelled(True), spelled("compact")
    ('0.001', '8', 'none', 'true', 'compact')
    """
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)


def is_number(value: Any) -> bool:
    """Whether a value is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _place(value: float, scale: Scale) -> float:
    if scale == "even":
        return value
    return -math.log(1 - value) if scale == "memory" else math.log(value)
