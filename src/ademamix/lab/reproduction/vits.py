"""The vision transformers of each scale, in three ratios of capacity to data, with the settings found best for them."""

from __future__ import annotations

from typing import Any

from ademamix.lab.config import Cosine, Images, Optimizer, Run, ViT
from ademamix.lab.presets import PRESETS
from ademamix.lab.probes import TrainingLoss
from ademamix.lab.recipes import ScaleName
from ademamix.lab.reproduction.scale import Setting

PAPER_STEPS, PAPER_WARMUP = 100_000, 10_000
WEIGHT_DECAYS = (0.03, 0.1, 0.3)
"""The paper's, from the most data for each parameter to the least."""


def vits(scale: ScaleName) -> list[Setting]:
    """Return the small model on all images, the large one on all, and the large one on few.

    >>> [(vit.title, vit.adamw.lr) for vit in vits("paper")][0]
    ('24M parameters, 11M images', 0.003)
    """
    return {"smoke": _smoke, "laptop": _laptop, "paper": _paper}[scale]()


def _paper() -> list[Setting]:
    small, large = PRESETS["vit-24m"], PRESETS["vit-86m"]
    many, fewer = "hub:timm/imagenet-w21-p", "hub:ILSVRC/imagenet-1k"
    parts = [
        ("24M parameters, 11M images", 3e-3, {"model": small, "data": Images(kind="images", source=many)}),
        ("86M parameters, 11M images", 1e-3, {"model": large, "data": Images(kind="images", source=many)}),
        ("86M parameters, 1.3M images", 5e-3, {"model": large, "data": Images(kind="images", source=fewer)}),
    ]
    settings = {"betas": [0.9, 0.999]}
    common = {"steps": PAPER_STEPS, "batch": 4096, "warmup": PAPER_WARMUP, "autocast": True, "examples": 50_000}
    return [
        _setting(title, lr, {**settings, "weight_decay": decay}, **common, **fields)
        for (title, lr, fields), decay in zip(parts, WEIGHT_DECAYS, strict=True)
    ]


def _laptop() -> list[Setting]:
    small, large = (
        ViT(kind="vit", width=width, layers=4, heads=4, patch=8, image=32, dropout=0.1) for width in (64, 128)
    )
    whole = Images(kind="images", source="cifar10", augment=False)
    part = whole.model_copy(update={"examples": 2500})
    parts = [
        ("0.2M parameters, 50,000 images", {"model": small, "data": whole}),
        ("0.8M parameters, 50,000 images", {"model": large, "data": whole}),
        ("0.8M parameters, 2,500 images", {"model": large, "data": part}),
    ]
    common = {"steps": 2500, "batch": 16, "warmup": 250, "examples": 5000}
    return [
        _setting(title, 1e-3, {"weight_decay": decay}, **common, **fields)
        for (title, fields), decay in zip(parts, WEIGHT_DECAYS, strict=True)
    ]


def _smoke() -> list[Setting]:
    small, large = (
        ViT(kind="vit", width=width, layers=1, heads=1, patch=4, image=8, channels=1, dropout=0.1) for width in (8, 16)
    )
    whole = Images(kind="images")
    part = whole.model_copy(update={"examples": 64})
    parts = [("small", small, whole), ("larger", large, whole), ("fewer images", large, part)]
    common = {"steps": 20, "batch": 4, "warmup": 2, "examples": 40}
    return [
        _setting(title, 1e-3, {"weight_decay": 0.1}, model=model, data=data, **common) for title, model, data in parts
    ]


def _setting(
    title: str, lr: float, settings: dict[str, Any], *, warmup: int, examples: int, steps: int, **fields: Any
) -> Setting:
    """Return a setting whose both optimizers start alike; the training loss is measured on half as many `examples`."""
    every = steps // 10
    adamw, ademamix = (Optimizer(name=name, lr=lr, settings=settings) for name in ("adamw", "ademamix"))
    base = Run(
        optimizer=adamw,
        schedule=Cosine(kind="cosine", warmup=warmup),
        steps=steps,
        validate_every=every,
        validation_examples=examples,
        probes=(TrainingLoss(kind="training-loss", every=2 * every, examples=examples // 2),),
        **fields,
    )
    return Setting(title, base, adamw=adamw, ademamix=ademamix, paper_steps=PAPER_STEPS)
