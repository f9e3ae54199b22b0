"""Vision transformers in three ratios of capacity to data: the paper's figures vit_results and acc_vit.

In each the learning rate and beta2 of AdamW, and of AdEMAMix with one pair of alpha and beta3, are searched alike on
seed 0 by the test loss. The other pairs take what was found for theirs; the paper gives all of them AdamW's. With few
images the test loss is the lowest of each run, in the search as in the claims, since the paper selects by it there;
else it is the last. The accuracy is the last. Both losses are measured without augmentation and dropout. That most
pairs improve is read as more than half of them, and how difficult it is to find one that does by what the median pair
gains.

At laptop scale the images are CIFAR-10's, all of them or 1,000, with which a model overfits. They are not augmented,
since runs as short as these would then not overfit. A run sees 32,000 images: of all of them none twice, where the
paper has 37 epochs, so that training and test loss can hardly differ. At paper scale the settings are those of appendix
B. It gives neither schedule nor clipping nor beta2: here a cosine, 1, 0.999, and the warm-up of the ViT paper, where
its search began.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

from ademamix.lab.report.kinds import Curves, Scatter
from ademamix.lab.reproduction.claims import (
    Check,
    Claim,
    Quantity,
    as_low_as,
    every,
    last,
    lower,
    lowest_ever,
    not_here,
    overall,
    within,
)
from ademamix.lab.reproduction.outcome import VALIDATION_LOSS
from ademamix.lab.reproduction.panel import Panel, Panels
from ademamix.lab.reproduction.scale import Scale, Setting, grid
from ademamix.lab.reproduction.vits import ACCURACY, TRAINING_LOSS, epochs, epochs_in_words, error, median_gain, vits

FIGURES = ("much-data", "larger-model", "little-data")
ALPHAS = {"smoke": (5, 20), "laptop": (5, 20), "paper": (1, 5, 10, 15, 20)}
BETA3S = (0.9999, 0.999)


def plan(at: Scale) -> Panels:
    """Yield the three ratios, from the most data for each parameter to the least."""
    gains: list[Quantity] = []
    for figure, vit in zip(FIGURES, vits(at.name), strict=True):
        beta3s, base = [vit.beta3(beta3) for beta3 in BETA3S], vit.run("ademamix")
        groups = {"AdamW": {"AdamW": vit.run("adamw")}}
        for beta3 in beta3s:
            groups[f"AdEMAMix, beta3={beta3:g}"] = grid(base, beta3=[beta3], alpha=ALPHAS[at.name])
        arms = {name: run for group in groups.values() for name, run in group.items()}
        pairs = [name for name in arms if name != "AdamW"]
        searched = f"beta3={beta3s[0]:g} alpha=5"
        early_stopping = figure == "little-data"
        gain = median_gain(vit.title, pairs, early_stopping=early_stopping)
        found = yield Panel(
            vit.title,
            arms,
            tune=["AdamW", searched],
            follow={name: searched for name in pairs if name != searched},
            early_stopping=early_stopping,
            show=[
                Scatter(TRAINING_LOSS, VALIDATION_LOSS, [(label, list(group)) for label, group in groups.items()]),
                *(Curves(metric) for metric in (TRAINING_LOSS, VALIDATION_LOSS, ACCURACY)),
            ],
            claims=[*_claims(figure, pairs, vit), *([_harder(gain, gains)] if len(gains) == 2 else [])],
            caption=f"{vit.base.steps:,} steps of {vit.base.batch:,} images, {epochs_in_words(vit)}; beta3 = "
            f"{beta3s[0]:g} and {beta3s[1]:g} for the paper's {BETA3S[0]:g} and {BETA3S[1]:g}.",
            figure=figure,
        )
        gains.append(gain.as_found(found))


def _claims(figure: str, pairs: Sequence[str], vit: Setting) -> Iterator[Claim]:
    yield Claim(
        "The training loss of AdEMAMix is lower than AdamW's for all alpha and beta3",
        every(*(lower(last(name, TRAINING_LOSS), last("AdamW", TRAINING_LOSS)) for name in pairs)),
        source="across all those settings, the training loss for AdEMAMix is always lower than that of the AdamW "
        "baseline (acc_vit)",
    )
    if figure == "much-data":
        similar = every(*(within(0.1, last(name, TRAINING_LOSS), name) for name in ["AdamW", *pairs]))
        if epochs(vit) <= 1:
            similar = not_here(similar, "No image is seen twice, so that the losses could hardly differ.")
        yield Claim("Training and test loss are very similar at the end of all runs, within 0.1", similar)
    if figure == "little-data":
        overfit = [lower(lowest_ever(name), name) for name in ["AdamW", *pairs]]
        yield Claim("All models overfit: the test loss ends above the lowest that it reached", every(*overfit))
    text = {
        "much-data": "AdEMAMix outperforms AdamW in test loss for all alpha and beta3",
        "larger-model": "Most alpha and beta3 of AdEMAMix improve upon AdamW's test loss",
        "little-data": "AdEMAMix brings no improvement: no pair has a test loss more than 0.01 below AdamW's",
    }
    yield Claim(text[figure], _as_in_the_paper(figure, pairs, lowest_ever if figure == "little-data" else last))
    yield Claim("Top-1 accuracy carries the same message", _as_in_the_paper(figure, pairs, error))


def _as_in_the_paper(figure: str, pairs: Iterable[str], measure: Callable[[str], Quantity]) -> Check:
    """Check that all pairs are below AdamW in a measure, or most, or none."""
    adamw, each = measure("AdamW"), [measure(name) for name in pairs]
    if figure == "much-data":
        return every(*(lower(one, adamw) for one in each))
    if figure == "larger-model":
        return lower(overall("the pair just above the median", statistics.median_high, each), adamw)
    return as_low_as(adamw, overall("the lowest of all pairs", min, each), margin=0.01)


def _harder(gain: Quantity, earlier: Sequence[Quantity]) -> Claim:
    return Claim(
        "The less data for the model, the more difficult it is to outperform AdamW: the median pair gains less",
        every(*(lower(later, before) for before, later in itertools.pairwise([*earlier, gain]))),
        source="As the ratio between data and model capacity worsen (...), it becomes more and more difficult to find "
        "hyperparameters outperforming the baseline (acc_vit)",
    )
