"""The vision transformers of each scale, in three ratios of capacity to data."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from ademamix.lab.config import Cosine, Images, Model, Optimizer, Run, ViT
from ademamix.lab.models import PRESETS
from ademamix.lab.probes import TrainingLoss
from ademamix.lab.recipes import ScaleName
from ademamix.lab.reproduction.claims import Quantity, gap, last, lowest_ever, overall, ratio
from ademamix.lab.reproduction.scale import VALIDATE_EVERY, Setting

PAPER_STEPS, PAPER_WARMUP = 100_000, 10_000
WEIGHT_DECAYS = (0.03, 0.1, 0.3)
"""The paper's, from the most data for each parameter to the least."""
CIFAR10 = Images(kind="images", source="cifar10", augment=False)
IMAGES = {
    "digits": 1442,
    "cifar10": 50_000,
    "hub:timm/imagenet-w21-p": 11_000_000,
    "hub:ILSVRC/imagenet-1k": 1_300_000,
}
"""How many there are for training, by their source."""
TRAINING_LOSS, ACCURACY = "training_loss", "accuracy"
"""What is recorded beside the test loss."""
FEW = 1000
"""So few that all models overfit within the 32 epochs of the laptop runs: the test loss is lowest after 8 to 30."""
EVERY_SECOND_EPOCH = 2 * FEW // 16
"""How often the laptop runs on few images are validated, in steps: their verdicts go by the lowest test loss."""


def vits(scale: ScaleName) -> list[Setting]:
    """Return the small model on all images, the large one on all, and the large one on few.

    >>> [(vit.title, vit.adamw.lr) for vit in vits("paper")][0]
    ('24M parameters, 11M images', 0.003)
    """
    return {"smoke": _smoke, "laptop": _laptop, "paper": _paper}[scale]()


def epochs(vit: Setting) -> float:
    """Return how many times a run sees its training images.

    >>> [epochs(vit) for vit in vits("laptop")], [round(epochs(vit)) for vit in vits("paper")]
    ([0.64, 0.64, 32.0], [37, 37, 315])
    """
    run = vit.base
    images = run.data.examples if isinstance(run.data, Images) else None
    return run.steps * run.batch / (images or IMAGES[run.data.source])


def epochs_in_words(vit: Setting) -> str:
    """Say how many times a run sees its training images."""
    seen = epochs(vit)
    once = " (no image is seen twice, so that training and test loss can hardly differ)" if seen <= 1 else ""
    return f"{seen:.3g} epochs{once}"


def error(arm: str) -> Quantity:
    """Return the share of wrong answers at the end; infinite for a run that diverged."""
    return Quantity(f"{arm}, top-1 error", lambda found: [abs(1 - right) for right in found.arms[arm].values(ACCURACY)])


def median_gain(title: str, pairs: Sequence[str], *, early_stopping: bool) -> Quantity:
    """Return the share of AdamW's test loss that the median pair saves."""
    adamw, *losses = (lowest_ever(name) if early_stopping else last(name) for name in ["AdamW", *pairs])
    median = overall("the median pair", statistics.median, losses)
    return ratio(f"the gain with {title}", gap(adamw, median), adamw)


def _paper() -> list[Setting]:
    many, fewer = (
        Images(kind="images", source=f"hub:{name}") for name in ("timm/imagenet-w21-p", "ILSVRC/imagenet-1k")
    )
    sized = [
        ("24M parameters, 11M images", PRESETS["vit-24m"], many),
        ("86M parameters, 11M images", PRESETS["vit-86m"], many),
        ("86M parameters, 1.3M images", PRESETS["vit-86m"], fewer),
    ]
    starts = [
        {"lr": lr, "settings": {"betas": [0.9, 0.999], "weight_decay": decay}}
        for lr, decay in zip((3e-3, 1e-3, 5e-3), WEIGHT_DECAYS, strict=True)
    ]
    lengths = {"steps": PAPER_STEPS, "warmup": PAPER_WARMUP, "validate_every": VALIDATE_EVERY, "examples": 50_000}
    return _settings(sized, starts, **lengths, batch=4096, autocast=True)


def _laptop() -> list[Setting]:
    small, large = (
        ViT(kind="vit", width=width, layers=4, heads=4, patch=8, image=32, dropout=0.1) for width in (64, 128)
    )
    sized = [
        ("0.2M parameters, 50,000 images", small, CIFAR10),
        ("0.8M parameters, 50,000 images", large, CIFAR10),
        (f"0.8M parameters, {FEW:,} images", large, CIFAR10.model_copy(update={"examples": FEW})),
    ]
    rates = (1e-3, 1e-3, 1.25e-4)  # the lowest test loss on few images asks for rates far below 1e-3
    starts = [{"lr": lr, "settings": {"weight_decay": decay}} for lr, decay in zip(rates, WEIGHT_DECAYS, strict=True)]
    *many, few = _settings(sized, starts, steps=2000, warmup=200, validate_every=400, examples=5000, batch=16)
    return [*many, _validated(few, every=EVERY_SECOND_EPOCH)]


def _smoke() -> list[Setting]:
    digits = Images(kind="images")
    small, large = (
        ViT(kind="vit", width=width, layers=1, heads=1, patch=4, image=8, channels=1, dropout=0.1) for width in (8, 16)
    )
    few = digits.model_copy(update={"examples": 64})
    sized = [("small", small, digits), ("larger", large, digits), ("fewer images", large, few)]
    starts = [{"lr": 1e-3, "settings": {"weight_decay": decay}} for decay in WEIGHT_DECAYS]
    return _settings(sized, starts, steps=20, warmup=2, validate_every=10, examples=40, batch=4)


def _validated(vit: Setting, every: int) -> Setting:
    probes = tuple(probe.model_copy(update={"every": every}) for probe in vit.base.probes)
    return vit.with_base(vit.title, validate_every=every, probes=probes)


def _settings(
    sized: Iterable[tuple[str, Model, Images]],
    starts: Iterable[dict[str, Any]],
    *,
    warmup: int,
    validate_every: int,
    examples: int,
    **fields: Any,
) -> list[Setting]:
    """Return settings whose two optimizers start alike; the training loss is that on a quarter of the `examples`."""
    probe = TrainingLoss(kind="training-loss", every=validate_every, examples=examples // 4)
    settings = []
    for (title, model, data), start in zip(sized, starts, strict=True):
        adamw, ademamix = (Optimizer(name=name, **start) for name in ("adamw", "ademamix"))
        base = Run(
            model=model,
            data=data,
            optimizer=adamw,
            schedule=Cosine(kind="cosine", warmup=warmup),
            validate_every=validate_every,
            validation_examples=examples,
            probes=(probe,),
            **fields,
        )
        settings.append(Setting(title, base, adamw=adamw, ademamix=ademamix, paper_steps=PAPER_STEPS))
    return settings
