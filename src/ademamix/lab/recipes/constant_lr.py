"""AdamW and AdEMAMix at a constant learning rate: the paper's figures constant_lr and 200k_lin_decay.

After a warm-up the learning rate stays, then falls to 0 over 100k or 200k steps, beginning at step 1M or 1.3M. Runs
that differ only in their decay share the steps before it.

Below paper scale the longest run is as long as all others of that scale, and the decay begins at 1.3M only. Each
optimizer has the peak learning rate that was found for it with a cosine; the paper has 1e-4 for both. It does not say
when the gap between the two is compared: here at 100k, 1M and 1.3M steps, for both beta3, with curves that are averaged
over the tenth of the run before, since at a constant learning rate single validations are noisy.
"""

from __future__ import annotations

from collections.abc import Iterator

from ademamix.lab.config import ConstantThenLinear, Run
from ademamix.lab.report.kinds import Curves, Gap
from ademamix.lab.reproduction.claims import SIMILAR, Claim, Quantity, every, gap, lower, smoothed, within
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting

LONGEST = 1_500_000
STARTS, DECAYS = (1_300_000, 1_000_000), (100_000, 200_000)
"""At smaller scales the decay begins at the first alone."""
METHODS = ("AdamW", "beta3=0.9999", "beta3=0.99999")


def plan(at: Scale) -> Panels:
    """Yield all runs in one panel: its claims compare the two lengths of the decay."""
    lm = at.lm("1.3b").of_length(LONGEST)
    starts = STARTS if at.name == "paper" else STARTS[:1]
    ends = [(start, decay) for decay in DECAYS for start in starts]
    arms = {_name(method, *end): run for end in ends for method, run in _runs(at, lm, *end).items()}
    first, *others = (_name(method, STARTS[0], DECAYS[0]) for method in METHODS)
    yield Panel(
        "Constant learning rate",
        arms,
        show=[
            *(
                Curves(
                    arms=[_name(method, *end) for end in ends if end[1] == decay for method in METHODS],
                    about=f"{decay // 1000}k steps of decay",
                )
                for decay in DECAYS
            ),
            Gap([(first, other) for other in others], about="AdamW over AdEMAMix"),
        ],
        claims=list(_claims(lm, ends)),
        caption=f"Warm-up, constant learning rate, linear decay to 0. alpha and beta3 rise over {lm.steps(500_000):,} "
        f"steps. 1.3M+100k: the learning rate decays from step 1.3M on for 100k steps; 1M steps of the paper are "
        f"{lm.steps(1_000_000):,} here.",
    )


def _name(method: str, start: int, decay: int) -> str:
    return f"{method} {start / 1e6:g}M+{decay // 1000}k"


def _runs(at: Scale, lm: Setting, start: int, decay: int) -> dict[str, Run]:
    schedule = ConstantThenLinear(kind="constant", warmup=lm.base.schedule.warmup, decay=lm.steps(decay))
    fields = {"steps": lm.steps(start) + lm.steps(decay), "schedule": schedule}
    if at.name == "paper":
        fields["lr"] = 1e-4
    slow = {**fields, "total_steps": lm.steps(500_000)}
    ademamix = [lm.run("ademamix", beta3=lm.beta3(beta3), **slow) for beta3 in (0.9999, 0.99999)]
    return dict(zip(METHODS, [lm.run("adamw", **fields), *ademamix], strict=True))


def _claims(lm: Setting, ends: list[tuple[int, int]]) -> Iterator[Claim]:
    adamw, slow, slower = METHODS
    gain = every(
        *(lower(_name(each, *end), _name(adamw, *end)) for end in ends if end[1] == DECAYS[0] for each in METHODS[1:])
    )
    yield Claim("AdEMAMix still outperforms AdamW after decaying the learning rate", gain)

    def lead(method: str, step: int) -> Quantity:
        ours, theirs = (_name(each, STARTS[0], DECAYS[0]) for each in (method, adamw))
        losses = (smoothed(arm, lm.steps(step), lm.base.steps // 10) for arm in (theirs, ours))
        return gap(*losses, label=f"the gap of {method} up to step {lm.steps(step):,}")

    yield Claim(
        "The gap between AdamW and AdEMAMix increases at first",
        every(*(lower(lead(each, 100_000), lead(each, 1_000_000)) for each in METHODS[1:])),
    )
    yield Claim(
        f"The gap between AdamW and AdEMAMix then remains constant, to within {SIMILAR:g}",
        every(*(within(SIMILAR, lead(each, 1_000_000), lead(each, 1_300_000)) for each in METHODS[1:])),
    )
    short, long = ((STARTS[0], decay) for decay in DECAYS)
    yield Claim(
        "Increasing the length of the decay improves the results for each method",
        every(*(lower(_name(method, *long), _name(method, *short)) for method in METHODS)),
    )
    apart = {end: _distance(_name(slow, *end), _name(slower, *end)) for end in (short, long)}
    yield Claim(
        "With the longer decay the gap between beta3 = 0.99999 and 0.9999 shrinks", lower(apart[long], apart[short])
    )
    yield Claim(
        "With the longer decay the gap between AdEMAMix and AdamW remains",
        every(*(lower(_name(method, *long), _name(adamw, *long)) for method in (slow, slower))),
    )


def _distance(one: str, other: str) -> Quantity:
    signed = gap(one, other)
    return Quantity(f"distance of {one} to {other}", lambda found: [abs(value) for value in signed.values(found)])
