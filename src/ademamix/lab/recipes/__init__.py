"""One module for each result, and the one list of them, by which `ademamix reproduce` knows them.

Most are results of the paper; a row that names another source is of a later paper or of our own.

The module of the recipe `some-name` is `some_name`. Its function ``plan(at)`` yields the panels of the result at a
:class:`~ademamix.lab.reproduction.scale.Scale`; :mod:`ademamix.lab.reproduction.engine` does the rest. Recipes are
imported only when they are carried out, so that listing them needs neither torch nor matplotlib.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from ademamix.lab.reproduction.panel import Plan

ScaleName = Literal["smoke", "laptop", "paper"]
"""Seconds, for tests; minutes to hours on two cores; the paper's own sizes and step counts."""

SCALES: tuple[ScaleName, ...] = get_args(ScaleName)


PAPER = "the paper"
"""Pagliardini, Ablin and Grangier, arXiv 2409.03137: the source of a recipe unless its row names another."""


@dataclass(frozen=True)
class Recipe:
    """What `--help`, `--list` and reports say of a recipe."""

    summary: str
    labels: tuple[str, ...]
    """Those of its source, of the figures and tables that it reproduces; () if it looks into sentences."""
    laptop: str
    """How long it takes at laptop scale, on two cores."""
    trains: bool = False
    source: str = PAPER
    """Whose claims it decides: the paper, another one, or a study of ours."""

    @property
    def origin(self) -> str:
        """Where its result stands: its labels in the paper, or its other source.

        >>> RECIPES["lion"].origin, RECIPES["log-time"].origin
        ('lion, 110_hyper_lion', 'arXiv 2602.05298 and 2502.02431')
        """
        return origin(self.labels, self.source)


def origin(labels: Sequence[str], source: str) -> str:
    """Return where a result stands: its labels in the paper, or another source, with its labels if it has any.

    >>> origin(["lion"], PAPER), origin(["fig. 3"], "arXiv 2602.05298")
    ('lion', 'arXiv 2602.05298: fig. 3')
    """
    return ": ".join(filter(None, ["" if source == PAPER else source, ", ".join(labels)]))


RECIPES: dict[str, Recipe] = {
    "toy-rosenbrock": Recipe(
        "Adam's beta1 against AdEMAMix's beta3 on the Rosenbrock function", ("toy_rosenbrock",), "10 s"
    ),
    "toy-two-emas": Recipe("Adam and AdEMAMix from a momentum that leads astray", ("convergence-toy",), "5 s"),
    "ema-weights": Recipe(
        "the weight of each past gradient in an average, for several beta", ("limitation-EMA",), "1 s"
    ),
    "beta3-schedule": Recipe("the schedule of beta3 against a linear one", ("beta_scheduler",), "1 s"),
    "mix-weights": Recipe(
        "the weights of m1 and m2 as a sum and as a convex mix", ("weights-m1-m2", "schedulers-convex"), "1 s"
    ),
    "nested-emas": Recipe("the weights of nested averages, DEMA and AdMeta against AdEMAMix's", ("dema",), "1 s"),
    "lm-comparison": Recipe(
        "AdEMAMix for T steps against AdamW for T and 2T, on language models",
        ("llm_results", "adamw_197b"),
        "3 h",
        trains=True,
    ),
    "constant-lr": Recipe(
        "AdamW and AdEMAMix at a constant learning rate, with two lengths of decay",
        ("constant_lr", "200k_lin_decay"),
        "10 min",
        trains=True,
    ),
    "forgetting": Recipe(
        "how a batch is learnt and forgotten by AdamW and by AdEMAMix", ("forgetting",), "12 min", trains=True
    ),
    "forgetting-evolution": Recipe(
        "how fast training batches are forgotten as training progresses", ("app_forgetting",), "7 min", trains=True
    ),
    "forgetting-constant-lr": Recipe(
        "how a batch is forgotten before and during a linear decay", ("forgetting_const_lr",), "8 min", trains=True
    ),
    "step-time": Recipe(
        "the time of a step, and the steps of AdamW that it would buy", ("time_resume_time",), "3 min", trains=True
    ),
    "switch-from-adamw": Recipe(
        "from AdamW to AdEMAMix at several steps", ("from_adamw_110", "from_adamw_1300"), "12 min", trains=True
    ),
    "switch-schedules": Recipe(
        "schedules of alpha and beta3 after a switch from AdamW", ("from_adamw_warmup",), "6 min", trains=True
    ),
    "switch-to-adamw": Recipe("from AdEMAMix to AdamW in mid-run", ("adema_to_adamw",), "8 min", trains=True),
    "single-ema": Recipe(
        "a larger beta1 in AdamW in place of a second average", ("single-ema",), "20 min", trains=True
    ),
    "single-ema-resume": Recipe(
        "a larger beta1 from the middle of an AdamW run on", ("single-ema-resume",), "10 min", trains=True
    ),
    "no-schedules": Recipe(
        "the norm of the updates without schedules for alpha and beta3", ("exploding-norm",), "12 min", trains=True
    ),
    "sensitivity-alpha-beta3": Recipe("how much alpha and beta3 matter", ("alpha_beta_hyp",), "20 min", trains=True),
    "sensitivity-warmup": Recipe(
        "how long alpha and beta3 have to warm up", ("a_b3_warmup_hyp",), "20 min", trains=True
    ),
    "no-alpha-schedule": Recipe(
        "AdEMAMix with and without the schedule of alpha", ("small_alpha_no_sc",), "15 min", trains=True
    ),
    "sensitivity-clip-beta1": Recipe(
        "how much gradient clipping and beta1 matter", ("clip_b1_hyp",), "12 min", trains=True
    ),
    "fewer-iterations": Recipe(
        "the same tokens in fewer, larger steps, with two beta3",
        ("fewer_iters", "fewer_iters_0999"),
        "20 min",
        trains=True,
    ),
    "convex-mix": Recipe(
        "the sum m1 + alpha m2 against a convex mix of the two", ("convex-vs-nconvex",), "30 min", trains=True
    ),
    "lion": Recipe("Lion against AdamW", ("lion", "110_hyper_lion"), "20 min", trains=True),
    "third-ema": Recipe("AdEMAMix with a third average", ("aggmo",), "10 min", trains=True),
    "beta1-zero": Recipe(
        "AdEMAMix without its fast average, for several batches", ("b1_0_bs", "b1_0_1300"), "20 min", trains=True
    ),
    "in-context": Recipe(
        "right answers in tasks of lm-eval, during training and after it", ("icl_results",), "15 min", trains=True
    ),
    "mamba": Recipe("AdamW and AdEMAMix on Mamba language models", ("mamba",), "20 min", trains=True),
    "vit": Recipe(
        "train against test loss of ViTs in three ratios of capacity to data",
        ("vit_results", "acc_vit"),
        "35 min",
        trains=True,
    ),
    "horizon-rule": Recipe(
        "which beta3 suits the length of a run, and what AdEMAMix gains at each",
        (),
        "4 h",
        trains=True,
        source="a study of ours",
    ),
    "log-time": Recipe(
        "log-time schedules for AdEMAMix, and Simplified-AdEMAMix",
        (),
        "35 min",
        trains=True,
        source="arXiv 2602.05298 and 2502.02431",
    ),
}

OF_THE_PAPER = tuple(name for name, recipe in RECIPES.items() if recipe.source == PAPER)
"""What `all` stands for: reproducing the paper must not grow with what later papers and studies of ours add."""


def load(name: str) -> Plan:
    """Import a recipe and return its plan; a package that it needs may be missing.

    >>> load("rosenbrock")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: there is no recipe 'rosenbrock'; there are toy-rosenbrock, ...
    """
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    plan: Plan = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").plan
    return plan
