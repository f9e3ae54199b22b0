"""What the paper claims in a few sentences, and which recipes decide about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ademamix.lab.report.page.content import Claim, Section
from ademamix.lab.reproduction.claims import FAILS, HOLDS, OPEN, Verdict

VERDICTS: dict[Verdict, str] = {HOLDS: "holds", FAILS: "fails", OPEN: "open"}
"""The verdicts in the order of the page, and the short names that its style has for them."""

COUNTED: dict[Verdict, tuple[str, str]] = {
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold here", "do not hold here"),
    OPEN: ("is not conclusive", "are not conclusive"),
}
"""How the page counts them: one, and several."""


MAIN = "lm-comparison"
"""The recipe of the paper's main claim: the first one that quotes the paper."""


@dataclass(frozen=True)
class Subject:
    """A main statement of the paper in plain words, and the recipes that look into it."""

    statement: str
    recipes: tuple[str, ...]


SUBJECTS = (
    Subject(
        "AdEMAMix reaches the loss of AdamW in about half the steps, and does so on several kinds of model.",
        ("lm-comparison", "constant-lr", "mamba", "vit", "in-context", "step-time", "lion"),
    ),
    Subject(
        "A single average cannot weigh recent and old gradients at once; a mix of a fast and a slow one can.",
        ("toy-rosenbrock", "toy-two-emas", "ema-weights", "nested-emas", "single-ema", "single-ema-resume"),
    ),
    Subject(
        "A model trained with AdEMAMix forgets its training data more slowly.",
        ("forgetting", "forgetting-evolution", "forgetting-constant-lr"),
    ),
    Subject(
        "A run of AdamW can switch to AdEMAMix on the way, and still gains.",
        ("switch-from-adamw", "switch-schedules", "switch-to-adamw"),
    ),
    Subject(
        "The new settings, alpha and beta3, are not delicate, if both rise slowly from the start.",
        (
            *("sensitivity-alpha-beta3", "sensitivity-warmup", "sensitivity-clip-beta1", "fewer-iterations"),
            *("beta3-schedule", "no-alpha-schedule", "no-schedules"),
        ),
    ),
    Subject(
        "Other forms are not better: a convex mix, a third average, or the slow average alone.",
        ("mix-weights", "convex-mix", "third-ema", "beta1-zero"),
    ),
)
"""Each recipe belongs to one of them."""


@dataclass(frozen=True)
class Tally:
    """How many claims have each verdict."""

    counts: dict[Verdict, int]

    @classmethod
    def of(cls, claims: Iterable[Claim]) -> Tally:
        """Count."""
        found = Counter(claim.verdict for claim in claims)
        return cls({verdict: found[verdict] for verdict in VERDICTS})

    @property
    def total(self) -> int:
        """How many claims there are."""
        return sum(self.counts.values())

    @property
    def words(self) -> str:
        """The counts in words, without the verdicts that do not occur.

        >>> Tally({HOLDS: 2, FAILS: 1, OPEN: 0}).words
        '2 of 3 claims hold, 1 does not hold here'
        """
        if not self.total:
            return "no claims decided yet"
        parts = [f"{count} {COUNTED[verdict][count > 1]}" for verdict, count in self.counts.items() if count]
        number, _, rest = parts[0].partition(" ")
        return ", ".join([f"{number} of {self.total} claim{'s' if self.total > 1 else ''} {rest}", *parts[1:]])


@dataclass(frozen=True)
class Finding:
    """A subject, the recipes of the page that belong to it, and what came of their claims."""

    statement: str
    recipes: Sequence[str]
    tally: Tally


def findings(sections: Sequence[Section]) -> list[Finding]:
    """Return what was found of each subject; one whose recipes were not run has no recipes."""
    by_name = {section.name: section for section in sections}
    return [
        Finding(subject.statement, recipes, Tally.of(claim for name in recipes for claim in by_name[name].claims))
        for subject in SUBJECTS
        for recipes in [[name for name in subject.recipes if name in by_name]]
    ]
