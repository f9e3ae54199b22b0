"""The grids that the paper tuned with, tables of its appendices B and C: a row each.

A grid belongs to an optimizer. Around it everything has the values that the tables print in bold, and the first of two
bold ones. AdEMAMix starts from the best AdamW, and only what the paper tuned again varies.

The ViT tables leave some things open; here beta2 is 0.999, the gradient is clipped at 1, and the learning rate rises
over 10,000 steps and follows a cosine. The paper speaks of 8 models of AdEMAMix for each ViT; its list has 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ademamix.lab.config import ConfigError, Cosine, Images, Optimizer, Run
from ademamix.lab.presets import PRESETS as MODELS
from ademamix.lab.reproduction.scale import PAPER_LMS


@dataclass(frozen=True)
class Grid:
    """What varies, as on the command line, and the run around it."""

    base: Run
    space: tuple[str, ...]


@dataclass(frozen=True)
class Preset:
    """A table of the paper."""

    summary: str
    grids: Mapping[str, Grid]
    """By optimizer; the first is the one that is meant if none is named."""

    def grid(self, name: str, optimizer: str | None) -> Grid:
        """Return the grid of an optimizer, which may be left open; `name` is that of the preset."""
        chosen = optimizer or next(iter(self.grids))
        if chosen not in self.grids:
            raise ConfigError(f"the preset {name!r} has no grid for {chosen!r}: it has one for {', '.join(self.grids)}")
        return self.grids[chosen]


BETA3 = "beta3=0.999,0.9999,0.99999"


def _lm(size: str, adamw: tuple[str, ...], ademamix: tuple[str, ...]) -> Preset:
    lm = PAPER_LMS[size]
    return Preset(
        f"the language model of {size.upper()} parameters, table {'1300' if size == '1.3b' else size[:-1]}_hyper",
        {"ademamix": Grid(lm.run("ademamix"), ademamix), "adamw": Grid(lm.run("adamw"), adamw)},
    )


def _vit(model: str, source: str, *, lr: float, weight_decay: float, adamw: tuple[str, ...]) -> Preset:
    images = {"timm/imagenet-w21-p": "11M images", "ILSVRC/imagenet-1k": "1.3M images"}[source]
    base = Run(
        model=MODELS[model],
        data=Images(kind="images", source=f"hub:{source}"),
        optimizer=Optimizer(name="adamw", lr=lr, settings={"weight_decay": weight_decay, "betas": [0.9, 0.999]}),
        schedule=Cosine(kind="cosine", warmup=10_000),
        steps=100_000,
        batch=4096,
        autocast=True,
        validate_every=2000,
        validation_examples=10_000,
    )
    settings = {"weight_decay": weight_decay, "betas": [0.9, 0.999, 0.9999], "alpha": 5}
    ademamix = base.changed(optimizer=Optimizer(name="ademamix", lr=lr, settings=settings))
    return Preset(
        f"the ViT of {model.removeprefix('vit-').upper()} parameters on {images}, table vit_hyperparams",
        {
            "ademamix": Grid(ademamix, ("alpha=1,5,10,15,20", "beta3=0.999,0.9999")),
            "adamw": Grid(base, (*adamw, "beta1=0.9,0.99,0.999")),
        },
    )


def _lion() -> Preset:
    settings = {"weight_decay": 0.25, "alpha": 0.9, "beta": 0.99}
    base = PAPER_LMS["110m"].base.changed(optimizer=Optimizer(name="lion", lr=4e-4, settings=settings))
    space = (
        "lr=5e-5,1e-4,2e-4,4e-4,6e-4,8e-4,1e-3",
        "weight_decay=0.01,0.125,0.166,0.25,0.5,1",
        "clip=1,0.5",
        "alpha=0.5,0.7,0.9",
        "beta=0.99,0.9999",
    )
    return Preset("Lion on the language model of 110M parameters, table 110_hyper_lion", {"lion": Grid(base, space)})


PRESETS: dict[str, Preset] = {
    "paper-110m": _lm(
        "110m",
        adamw=(
            "lr=5e-3,2e-3,1e-3,5e-4,1e-4",
            "warmup=2000,3000,4000,5000,6000",
            "weight_decay=0.1,0",
            "schedule=constant,cosine",
            "clip=none,5,1,0.5",
            "beta1=0.9,0.99,0.999,0.9999",
            "beta2=0.95,0.999",
        ),
        ademamix=(BETA3, "alpha=2,4,6,8,10,15,20"),
    ),
    "paper-330m": _lm("330m", adamw=("lr=1e-3,5e-4,1e-4", "clip=1,0.5,0.1"), ademamix=(BETA3, "alpha=5,8,10,15")),
    "paper-1.3b": _lm(
        "1.3b",
        adamw=("lr=1e-3,5e-4,3e-4,1e-4,5e-5", "clip=1,0.5,0.1"),
        ademamix=("lr=5e-4,3e-4", BETA3, "alpha=1,3,5,8,10,15"),
    ),
    "paper-vit-24m-11m": _vit(
        "vit-24m",
        "timm/imagenet-w21-p",
        lr=3e-3,
        weight_decay=0.03,
        adamw=("lr=1e-3,3e-3,5e-3", "weight_decay=0.03,0.1,0.3"),
    ),
    "paper-vit-86m-11m": _vit(
        "vit-86m",
        "timm/imagenet-w21-p",
        lr=1e-3,
        weight_decay=0.1,
        adamw=("lr=1e-3,3e-3", "weight_decay=0.03,0.1,0.3"),
    ),
    "paper-vit-86m-1.3m": _vit(
        "vit-86m",
        "ILSVRC/imagenet-1k",
        lr=5e-3,
        weight_decay=0.3,
        adamw=("lr=1e-3,3e-3,5e-3", "weight_decay=0.03,0.1,0.3,0.5,0.7"),
    ),
    "paper-lion": _lion(),
}
"""The paper's tuning grids by name."""


def preset(name: str) -> Preset:
    """Return a preset by name.

    >>> preset("paper-330m").grid("paper-330m", None).space
    ('beta3=0.999,0.9999,0.99999', 'alpha=5,8,10,15')
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
