"""The same tokens in fewer, larger steps: the paper's figures fewer_iters and fewer_iters_0999.

The table of the paper has both 8 and 10 as its best alpha; here it is 10, that of the sensitivity studies. Everything
but the batch and the number of steps stays as it is, also the learning rate and its warm-up. At laptop scale only the
shortest runs are compared with the longest.
"""

from __future__ import annotations

from ademamix.lab.config import Run
from ademamix.lab.report.kinds import Curves, EndAgainst
from ademamix.lab.reproduction.claims import Check, Claim, Quantity, every, gap, lower, ordered, part
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting, changed

STEPS = {"smoke": (256_000, 64_000), "laptop": (256_000, 32_000), "paper": (256_000, 128_000, 64_000, 32_000)}
"""The paper's; half the steps have batches of twice the size."""
FEW = 64_000
"""From which on beta3 = 0.999 is better than 0.9999."""

Arms = dict[int, str]
"""The names of arms, by the number of steps in the paper, the longest first."""


def plan(at: Scale) -> Panels:
    """Yield AdamW against AdEMAMix, and AdEMAMix with two beta3."""
    lm = at.lm("110m")
    ademamix = lm.run("ademamix", alpha=10)
    bases = {
        "AdamW": lm.run("adamw"),
        "AdEMAMix": changed(ademamix, beta3=lm.beta3(0.9999)),
        "Smaller beta3": changed(ademamix, beta3=lm.beta3(0.999)),
    }
    names = {label: {steps: f"{label}, {lm.steps(steps):,}" for steps in STEPS[at.name]} for label in bases}
    arms = {
        name: _shortened(bases[label], lm, steps)
        for label, by_steps in names.items()
        for steps, name in by_steps.items()
    }
    adamw, slow, fast = names.values()
    groups = {label: [*by_steps.values()] for label, by_steps in names.items()}
    caption = (
        f"AdEMAMix: alpha = 10, beta3 = {lm.beta3(0.9999):g}; smaller beta3: {lm.beta3(0.999):g}. After a name: steps."
    )
    both = [*groups["AdamW"], *groups["AdEMAMix"]]
    yield Panel(
        "Fewer iterations",
        {name: arms[name] for name in both},
        show=[*(Curves(arms=groups[label]) for label in ("AdamW", "AdEMAMix")), _ends(groups, "AdamW", "AdEMAMix")],
        claims=_against_adamw(adamw, slow),
        caption=caption,
    )
    yield Panel(
        "A smaller beta3",
        arms,
        show=[*(Curves(arms=groups[label]) for label in ("AdEMAMix", "Smaller beta3")), _ends(groups, *groups)],
        claims=_of_a_smaller_beta3(adamw, slow, fast),
        caption=caption,
        figure="smaller-beta3",
    )


def _shortened(base: Run, lm: Setting, steps: int) -> Run:
    return changed(base, steps=lm.steps(steps), batch=base.batch * STEPS["paper"][0] // steps)


def _ends(groups: dict[str, list[str]], *labels: str) -> EndAgainst:
    return EndAgainst("steps", [(label, groups[label]) for label in labels], logarithmic=True)


def _harm(arms: Arms) -> Quantity:
    """Return how much higher the loss is after the fewest steps than after the most."""
    longest, *_, fewest = arms.values()
    return gap(fewest, longest)


def _against_adamw(adamw: Arms, slow: Arms) -> list[Claim]:
    return [
        Claim("AdamW ends higher after the fewest steps than after more", _fewest_is_highest(adamw)),
        Claim("AdEMAMix ends higher after the fewest steps than after more", _fewest_is_highest(slow)),
        Claim("This effect is more pronounced for AdEMAMix", lower(_harm(adamw), _harm(slow))),
        Claim(
            "AdEMAMix still outperforms AdamW at few iterations",
            every(*(lower(slow[steps], adamw[steps]) for steps in slow if steps <= FEW)),
        ),
    ]


def _of_a_smaller_beta3(adamw: Arms, slow: Arms, fast: Arms) -> list[Claim]:
    return [
        Claim(
            "A smaller beta3 mostly alleviates the harm of few iterations: less than half of it is left",
            lower(_harm(fast), part(0.5, _harm(slow))),
        ),
        Claim(
            "The smaller beta3 is better at few iterations",
            every(*(lower(fast[steps], slow[steps]) for steps in slow if steps <= FEW)),
        ),
        Claim(
            "The larger beta3 is better at many iterations",
            every(*(lower(slow[steps], fast[steps]) for steps in slow if steps > FEW)),
        ),
        Claim(
            "With the smaller beta3, the gap between AdEMAMix and AdamW increases as iterations decrease",
            ordered(*(gap(adamw[steps], fast[steps]) for steps in fast)),
        ),
    ]


def _fewest_is_highest(arms: Arms) -> Check:
    *more, fewest = arms.values()
    return every(*(lower(name, fewest) for name in more))
