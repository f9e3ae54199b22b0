"""The three scales, and the one rule by which the paper's numbers become theirs.

A recipe states numbers of the paper. At a smaller scale a run of the paper's T steps has fewer, and

- a number of steps keeps its share of T (a warm-up, a switch, a length), rounded to two digits;
- beta3 keeps (1 - beta3) T, the number of memories that fit into a run, and stays at or above beta1;
- alpha, betas and everything else stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ademamix.hyperparameters import BETAS
from ademamix.lab import tuning
from ademamix.lab.comparison import defaults
from ademamix.lab.comparison.defaults import WEIGHT_DECAY
from ademamix.lab.config import GPT, Cosine, Optimizer, Run, Text, validation_interval
from ademamix.lab.models import PRESETS
from ademamix.lab.recipes import ScaleName
from ademamix.lab.settings import changed as changed

PAPER_STEPS = 256_000
"""T of the 110M and 330M models."""
WARMUP = 3000
VALIDATE_EVERY = 2000
"""At paper scale."""
BOTH = {"AdamW": "adamw", "AdEMAMix": "ademamix"}
"""The two optimizers of most results, by the names of their arms."""


@dataclass(frozen=True)
class Setting:
    """A model, its data and its length T, with the settings of AdamW and AdEMAMix that were found best for it."""

    title: str
    base: Run
    """Its `steps` are T."""
    adamw: Optimizer
    ademamix: Optimizer
    paper_steps: int = PAPER_STEPS
    """The T of the paper's model that this stands for."""

    def run(self, optimizer: str, **changes: Any) -> Run:
        """Return a run of an optimizer by name, with changes: fields of the run, `lr`, and settings of the optimizer.

        AdamW and AdEMAMix start from the settings that were found for them, any other from AdamW's learning rate and
        weight decay. Another number of `steps` changes neither the warm-up, as in the paper, nor how often the run is
        validated.

        >>> lm = SCALES["laptop"].lm("110m")
        >>> run = lm.run("ademamix", steps=1000, clip=None, alpha=2.0)
        >>> run.steps, run.clip, run.optimizer.described
        (1000, None, 'ademamix lr=0.004 weight_decay=0.1 alpha=2')
        """
        start = {"adamw": self.adamw, "ademamix": self.ademamix}.get(optimizer)
        start = start or Optimizer(name=optimizer, lr=self.adamw.lr, settings=WEIGHT_DECAY)
        return changed(self.base.model_copy(update={"optimizer": start}), **changes)

    def with_base(self, title: str, **fields: Any) -> Setting:
        """Return a setting of another title whose runs differ in these fields."""
        return replace(self, title=title, base=changed(self.base, **fields))

    def of_steps(self, title: str, steps: int, **fields: Any) -> Setting:
        """Return a setting whose T at this scale is another, and which may differ in more.

        The warm-up follows from T, and so does how often a run is validated.

        >>> shorter = SCALES["laptop"].lm("110m").of_steps("Shorter", 1000)
        >>> shorter.base.steps, shorter.base.schedule.warmup, shorter.base.validate_every
        (1000, 10, 200)
        """
        interval = validation_interval(steps, self.base.batch)
        return self.with_base(title, steps=steps, warmup=defaults.warmup(steps), validate_every=interval, **fields)

    def lengths(self, steps: int) -> dict[str, int]:
        """Return the fields of a run of one length in a study of several, of which T is only one.

        A short run is validated more often, and its warm-up is a hundredth of it, but at least 20 steps; neither the
        warm-up nor the time between validations is longer than that of T.

        >>> SCALES["laptop"].lm("110m").lengths(1000)
        {'steps': 1000, 'warmup': 20, 'validate_every': 200}
        """
        warmup = min(self.base.schedule.warmup, max(20, steps // 100))
        interval = min(self.base.validate_every, validation_interval(steps, self.base.batch))
        return {"steps": steps, "warmup": warmup, "validate_every": interval}

    def of_length(self, paper_steps: int) -> Setting:
        """Return the setting for a result whose runs have another length in the paper.

        At paper scale T is that length. Below it a run stays as long as it is, and stands for one of that length.

        >>> SCALES["paper"].lm("110m").of_length(500_000).base.steps
        500000
        >>> longer = SCALES["laptop"].lm("110m").of_length(500_000)
        >>> longer.base.steps, longer.steps(300_000)
        (20000, 12000)
        """
        steps = paper_steps if self.base.steps == self.paper_steps else self.base.steps
        return replace(self, base=changed(self.base, steps=steps), paper_steps=paper_steps)

    def steps(self, steps: int) -> int:
        """Return what a number of steps of the paper is here.

        >>> lm = SCALES["laptop"].lm("110m")
        >>> lm.steps(128_000), lm.steps(3000), lm.steps(1)
        (10000, 230, 1)
        """
        if self.base.steps == self.paper_steps:
            return steps
        return max(1, int(float(f"{steps * self.base.steps / self.paper_steps:.2g}")))

    def beta3(self, beta3: float) -> float:
        """Return what a beta3 of the paper is here.

        >>> SCALES["laptop"].lm("110m").beta3(0.9999), SCALES["paper"].lm("110m").beta3(0.9999)
        (0.99872, 0.9999)
        """
        if self.base.steps == self.paper_steps:
            return beta3
        forgotten = (1 - beta3) * self.paper_steps / self.base.steps
        return max(BETAS[0], round(1 - float(f"{forgotten:.3g}"), 12))


def grid(run: Run, **values: Iterable[Any]) -> dict[str, Run]:
    """Return a run for each combination of values of what :func:`changed` takes, by what differs.

    >>> list(grid(defaults.DEFAULT, lr=[1e-3, 2e-3], clip=[None]))
    ['lr=0.001 clip=None', 'lr=0.002 clip=None']
    """
    runs = {"": run}
    for name, choices in values.items():
        choices = list(choices)
        runs = {
            f"{label} {name}={_short(value)}".strip(): changed(each, **{name: value})
            for label, each in runs.items()
            for value in choices
        }
    return runs


def named(setting: str, here: float, paper: float) -> str:
    """Return the name of an arm by the value of a setting here and, where it is another, in the paper.

    >>> named("beta3", 0.99872, 0.9999), named("beta3", 0.9999, 0.9999)
    ('beta3=0.99872 (paper: 0.9999)', 'beta3=0.9999')
    """
    return f"{setting}={here:,}" + (f" (paper: {paper:,})" if here != paper else "")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Scale:
    """How large a recipe is carried out: its settings, its seeds and how long it searches."""

    name: ScaleName
    seeds: tuple[int, ...]
    """Of the runs that are reported; searches have seed 0."""
    rounds: int
    """Of a search for learning rates; 0: there is none, since the paper has done it."""

    def lm(self, size: str) -> Setting:
        """Return the language model of a size of the paper, "110m", "330m" or "1.3b"; below paper scale all are one.

        >>> SCALES["paper"].lm("1.3b").ademamix.described
        'ademamix lr=0.0003 weight_decay=0.1 betas=[0.9, 0.999, 0.9999] alpha=5'
        """
        paper = PAPER_LMS[size]
        if self.name == "paper":
            return paper
        small = LAPTOP if self.name == "laptop" else SMOKE
        return replace(small, paper_steps=paper.paper_steps)

    def too_short(self, steps: int) -> str:
        """Return a warning that so many steps show nothing, at smoke scale; at the others nothing."""
        return f"Only {steps} steps, to see that it works: they show nothing." if self.name == "smoke" else ""


def _paper_lm(size: str, batch: int, clip: float, steps: int, tokens: int, lr: float) -> Setting:
    """The settings of appendix B; those that differ between the sizes are arguments."""
    alpha, ademamix_lr = (5.0, 3e-4) if size == "1.3b" else (8.0, lr)
    betas = {"betas": [0.9, 0.999, 0.9999], "alpha": alpha}
    return Setting(
        title=f"{size.upper()} parameters",
        base=Run(
            model=PRESETS[f"gpt-{size}"],
            data=Text(kind="text", source="hub:redpajama-v2", tokenizer="sentencepiece:32000", tokens=tokens),
            optimizer=Optimizer(name="adamw", lr=lr),
            schedule=Cosine(kind="cosine", warmup=WARMUP),
            steps=steps,
            batch=batch,
            clip=clip,
            autocast=True,
            validate_every=VALIDATE_EVERY,
        ),
        adamw=Optimizer(name="adamw", lr=lr, settings={**WEIGHT_DECAY, "betas": [0.9, 0.999]}),
        ademamix=Optimizer(name="ademamix", lr=ademamix_lr, settings={**WEIGHT_DECAY, **betas}),
        paper_steps=steps,
    )


PAPER_LMS = {
    "110m": _paper_lm("110m", batch=64, clip=0.5, steps=PAPER_STEPS, tokens=34_000_000_000, lr=1e-3),
    "330m": _paper_lm("330m", batch=96, clip=0.1, steps=PAPER_STEPS, tokens=50_000_000_000, lr=5e-4),
    "1.3b": _paper_lm("1.3b", batch=128, clip=0.1, steps=770_000, tokens=200_000_000_000, lr=5e-4),
}
"""The paper does not give the lengths of its 330M runs; here they are those of the 110M ones.

The text has more tokens than any run of a recipe reads, so that none of it is read twice.
"""

LAPTOP = Setting(
    "0.03M parameters, 290 tokens for each",
    defaults.DEFAULT,
    adamw=defaults.OPTIMIZERS["adamw"],
    ademamix=defaults.OPTIMIZERS["ademamix"],
)
LARGER = LAPTOP.of_steps(
    "0.17M parameters, 30 tokens for each",
    10_000,
    model=GPT(kind="gpt", width=64, layers=3, heads=2, context=64),
)
"""A model that is far from saturated at laptop scale. Recipes that need one share its runs."""
SMOKE = LAPTOP.with_base(
    "smoke",
    model=GPT(kind="gpt", width=16, layers=1, heads=1, context=16),
    schedule=Cosine(kind="cosine", warmup=2),
    steps=20,
    batch=2,
    validate_every=10,
    validation_examples=4,
)

SCALES: dict[ScaleName, Scale] = {
    "smoke": Scale("smoke", seeds=(1,), rounds=1),
    "laptop": Scale("laptop", seeds=(1, 2, 3), rounds=tuning.ROUNDS),
    "paper": Scale("paper", seeds=(1,), rounds=0),
}
"""The scales by name."""
