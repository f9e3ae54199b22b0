"""One module for each result of the paper, and the names under which `ademamix reproduce` knows them.

Each module has a function ``reproduce(folder, scale)``, which writes its figures into the folder and returns the
report, or ``reproduce(folder, scale, lab)`` if it trains, which yields the report in parts as they are found. Recipes
are imported only when they are run, so that listing them needs neither torch nor matplotlib.
"""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Scale = Literal["smoke", "laptop", "paper"]
"""Seconds, for tests; minutes to hours on two cores; the paper's own sizes and step counts."""

SCALES: tuple[Scale, ...] = get_args(Scale)

NO_TRAINING = "Needs no training: every scale is the paper's."


@dataclass(frozen=True)
class Recipe:
    """Where a recipe is, and what `--help` says of it."""

    module: str
    summary: str
    trains: bool = False


RECIPES: dict[str, Recipe] = {
    "toy-rosenbrock": Recipe(
        "ademamix.lab.recipes.toy_rosenbrock",
        "Adam's beta1 against AdEMAMix's beta3 on the Rosenbrock function (toy_rosenbrock; ten seconds)",
    ),
    "toy-two-emas": Recipe(
        "ademamix.lab.recipes.toy_two_emas",
        "Adam and AdEMAMix from a momentum that leads astray (convergence-toy; five seconds)",
    ),
    "ema-weights": Recipe(
        "ademamix.lab.recipes.ema_weights",
        "the weight of each past gradient in an average, for several beta (limitation-EMA; a second)",
    ),
    "beta3-schedule": Recipe(
        "ademamix.lab.recipes.beta3_schedule",
        "the schedule of beta3 against a linear one (beta_scheduler; a second)",
    ),
    "mix-weights": Recipe(
        "ademamix.lab.recipes.mix_weights",
        "the weights of m1 and m2 as a sum and as a convex mix (weights-m1-m2, schedulers-convex; a second)",
    ),
    "nested-emas": Recipe(
        "ademamix.lab.recipes.nested_emas",
        "the weights of nested averages, DEMA and AdMeta against AdEMAMix's (dema; a second)",
    ),
    "lm-comparison": Recipe(
        "ademamix.lab.recipes.lm_comparison",
        "AdEMAMix for T steps against AdamW for T and 2T, on language models (llm_results; laptop: about three hours)",
        trains=True,
    ),
}
"""By name. A summary ends with the paper's label of the result and how long it takes."""


def load(name: str) -> Callable[..., str | Iterator[str]]:
    """Import a recipe and return its function; a package that it needs may be missing.

    >>> load("rosenbrock")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: there is no recipe 'rosenbrock'; there are toy-rosenbrock, ...
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    reproduce: Callable[..., str | Iterator[str]] = importlib.import_module(RECIPES[name].module).reproduce
    return reproduce


def report(*parts: str, figures: Sequence[Path]) -> str:
    """Join the parts of a report and the files written; a part of one line is prose and gets wrapped.

    >>> print(report("1 + 1 = 2", figures=[Path("sum.png"), Path("sum.svg")]))
    1 + 1 = 2
    <BLANKLINE>
    figure: sum.png
            sum.svg
    """
    files = "figure: " + "\n        ".join(str(path) for path in figures)
    return "\n\n".join([*(part if "\n" in part else textwrap.fill(part, 88) for part in parts), files])
