"""How a batch is learnt and forgotten: the paper's figure forgetting.

A batch B is held out of the training data, and put in at one step t_B. The loss on B, with that and without, shows what
of B stays. Runs share their steps before t_B.

The paper does not say when the drop and the rise of the loss on B are measured: here 50 steps after t_B, as in its
figure app_forgetting, and 10k steps after t_B. The 50 are not shrunk, since the fast average, which they wait for, is
not either. Below paper scale t_B is 90k and 230k only, and each optimizer has the learning rate that was found for it:
AdamW's is four times AdEMAMix's, which alone makes its drop, and what it can lose again, larger. So forgetting is also
compared as a share of the drop. A claim holds if it does at every t_B.
"""

from __future__ import annotations

from collections.abc import Iterator

from ademamix.lab.reproduction.claims import Claim, every, lower, ordered
from ademamix.lab.reproduction.injections import SOON, Injections
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import BOTH, Scale


def plan(at: Scale) -> Panels:
    """Yield the runs without B and with B at several steps."""
    lm = at.lm("110m")
    injected = Injections(lm, (90_000, 170_000, 190_000, 230_000) if at.name == "paper" else (90_000, 230_000))
    yield Panel(
        "Loss on a held-out batch B",
        injected.arms(),
        show=injected.shown(),
        claims=list(_claims(injected)),
        caption="B is put into the training data at one step, or never.",
    )


def _claims(injected: Injections) -> Iterator[Claim]:
    effect, steps, later = injected.effect, injected.steps, injected.lm.steps(10_000)
    rise = {(label, step): injected.rise(label, step, later) for label in BOTH for step in steps}
    left = {(label, step): injected.left(label, step, later) for label in BOTH for step in steps}
    yield Claim(
        "For both optimizers the loss on B drops right after training on B",
        every(*(lower(0.0, effect(label, step, SOON)) for label in BOTH for step in steps)),
    )
    yield Claim(
        "The drop of the loss on B is more pronounced for AdamW",
        every(*(lower(effect("AdEMAMix", step, SOON), effect("AdamW", step, SOON)) for step in steps)),
    )
    yield Claim(
        "When using AdamW, the loss on B then increases faster",
        every(*(lower(rise["AdEMAMix", step], rise["AdamW", step]) for step in steps)),
    )
    yield Claim(
        "AdamW forgets B faster: a smaller share of the drop is left then",
        every(*(lower(left["AdamW", step], left["AdEMAMix", step]) for step in steps)),
        source="AdamW models forget much faster---the loss over B increases faster---than AdEMAMix models",
    )
    yield Claim(
        "The curves for AdEMAMix are smoother",
        lower(injected.roughness("AdEMAMix"), injected.roughness("AdamW")),
    )
    yield Claim(
        "Ultimately B has a bigger impact when using AdEMAMix",
        every(*(lower(effect("AdamW", step), effect("AdEMAMix", step)) for step in steps)),
        source="ultimately B had a bigger impact on the training when using AdEMAMix---as can be seen by looking at "
        "the larger gap between the orange and blue curves for the last iteration",
    )
    yield Claim(
        "Later training batches are remembered better",
        every(*(ordered(*(effect(label, step) for step in steps)) for label in BOTH)),
    )
    yield Claim(
        "At the end of training AdEMAMix improves its loss on B over many thousands of iterations",
        lower(effect("AdEMAMix", steps[-1], SOON), effect("AdEMAMix", steps[-1])),
        source="at the end of training, batches processed by AdEMAMix see their loss being improved over many "
        "thousands of iterations",
    )
