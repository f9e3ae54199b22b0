"""What the paper claims in a few sentences, and which recipes decide about each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ademamix.lab.recipes import RECIPES, SUBJECTS
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
        Finding(subject, recipes, Tally.of(claim for name in recipes for claim in by_name[name].counted))
        for subject in SUBJECTS
        for recipes in [[name for name, row in RECIPES.items() if row.subject == subject and name in by_name]]
    ]
