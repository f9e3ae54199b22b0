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


FASTER = "AdEMAMix reaches the loss of AdamW in about half the steps, and does so on several kinds of model."
MIX = "A single average cannot weigh recent and old gradients at once; a mix of a fast and a slow one can."
FORGETS = "A model trained with AdEMAMix forgets its training data more slowly."
SWITCH = "A run of AdamW can switch to AdEMAMix on the way, and still gains."
SETTINGS = "The new settings, alpha and beta3, are not delicate, if both rise slowly from the start."
FORMS = "Other forms are not better: a convex mix, a third average, or the slow average alone."
SUBJECTS = (FASTER, MIX, FORGETS, SWITCH, SETTINGS, FORMS)
"""The main statements of the paper in plain words, in the order of the page."""


@dataclass(frozen=True)
class Recipe:
    """What `--help`, `--list` and reports say of a recipe."""

    summary: str
    labels: tuple[str, ...]
    """Those of its source, of the figures and tables that it reproduces; () if it looks into sentences."""
    laptop: str
    """How long it takes at laptop scale, on two cores."""
    subject: str = ""
    """Which of `SUBJECTS` it looks into; "" if its source is not the paper."""
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
        "Adam's beta1 against AdEMAMix's beta3 on the Rosenbrock function", ("toy_rosenbrock",), "10 s", MIX
    ),
    "toy-two-emas": Recipe("Adam and AdEMAMix from a momentum that leads astray", ("convergence-toy",), "5 s", MIX),
    "ema-weights": Recipe(
        "the weight of each past gradient in an average, for several beta", ("limitation-EMA",), "1 s", MIX
    ),
    "beta3-schedule": Recipe("the schedule of beta3 against a linear one", ("beta_scheduler",), "1 s", SETTINGS),
    "mix-weights": Recipe(
        "the weights of m1 and m2 as a sum and as a convex mix", ("weights-m1-m2", "schedulers-convex"), "1 s", FORMS
    ),
    "nested-emas": Recipe("the weights of nested averages, DEMA and AdMeta against AdEMAMix's", ("dema",), "1 s", MIX),
    "lm-comparison": Recipe(
        "AdEMAMix for T steps against AdamW for T and 2T, on language models",
        ("llm_results", "adamw_197b"),
        "3 h",
        FASTER,
    ),
    "constant-lr": Recipe(
        "AdamW and AdEMAMix at a constant learning rate, with two lengths of decay",
        ("constant_lr", "200k_lin_decay"),
        "10 min",
        FASTER,
    ),
    "forgetting": Recipe(
        "how a batch is learnt and forgotten by AdamW and by AdEMAMix", ("forgetting",), "12 min", FORGETS
    ),
    "forgetting-evolution": Recipe(
        "how fast training batches are forgotten as training progresses", ("app_forgetting",), "7 min", FORGETS
    ),
    "forgetting-constant-lr": Recipe(
        "how a batch is forgotten before and during a linear decay", ("forgetting_const_lr",), "8 min", FORGETS
    ),
    "step-time": Recipe(
        "the time of a step, and the steps of AdamW that it would buy", ("time_resume_time",), "3 min", FASTER
    ),
    "switch-from-adamw": Recipe(
        "from AdamW to AdEMAMix at several steps", ("from_adamw_110", "from_adamw_1300"), "12 min", SWITCH
    ),
    "switch-schedules": Recipe(
        "schedules of alpha and beta3 after a switch from AdamW", ("from_adamw_warmup",), "6 min", SWITCH
    ),
    "switch-to-adamw": Recipe("from AdEMAMix to AdamW in mid-run", ("adema_to_adamw",), "8 min", SWITCH),
    "single-ema": Recipe("a larger beta1 in AdamW in place of a second average", ("single-ema",), "20 min", MIX),
    "single-ema-resume": Recipe(
        "a larger beta1 from the middle of an AdamW run on", ("single-ema-resume",), "10 min", MIX
    ),
    "no-schedules": Recipe(
        "the norm of the updates without schedules for alpha and beta3", ("exploding-norm",), "12 min", SETTINGS
    ),
    "sensitivity-alpha-beta3": Recipe("how much alpha and beta3 matter", ("alpha_beta_hyp",), "20 min", SETTINGS),
    "sensitivity-warmup": Recipe("how long alpha and beta3 have to warm up", ("a_b3_warmup_hyp",), "20 min", SETTINGS),
    "no-alpha-schedule": Recipe(
        "AdEMAMix with and without the schedule of alpha", ("small_alpha_no_sc",), "15 min", SETTINGS
    ),
    "sensitivity-clip-beta1": Recipe(
        "how much gradient clipping and beta1 matter", ("clip_b1_hyp",), "12 min", SETTINGS
    ),
    "fewer-iterations": Recipe(
        "the same tokens in fewer, larger steps, with two beta3",
        ("fewer_iters", "fewer_iters_0999"),
        "20 min",
        SETTINGS,
    ),
    "convex-mix": Recipe(
        "the sum m1 + alpha m2 against a convex mix of the two", ("convex-vs-nconvex",), "30 min", FORMS
    ),
    "lion": Recipe("Lion against AdamW", ("lion", "110_hyper_lion"), "20 min", FASTER),
    "third-ema": Recipe("AdEMAMix with a third average", ("aggmo",), "10 min", FORMS),
    "beta1-zero": Recipe(
        "AdEMAMix without its fast average, for several batches", ("b1_0_bs", "b1_0_1300"), "20 min", FORMS
    ),
    "in-context": Recipe(
        "right answers in tasks of lm-eval, during training and after it", ("icl_results",), "15 min", FASTER
    ),
    "mamba": Recipe("AdamW and AdEMAMix on Mamba language models", ("mamba",), "20 min", FASTER),
    "vit": Recipe(
        "train against test loss of ViTs in three ratios of capacity to data",
        ("vit_results", "acc_vit"),
        "35 min",
        FASTER,
    ),
    "horizon-rule": Recipe(
        "which beta3 suits the length of a run, and what AdEMAMix gains at each", (), "4 h", source="a study of ours"
    ),
    "log-time": Recipe(
        "log-time schedules for AdEMAMix, and Simplified-AdEMAMix",
        (),
        "35 min",
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
