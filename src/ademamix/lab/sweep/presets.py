"""The grids that the paper tuned with, tables of its appendices B and C: a row each.

A grid belongs to an optimizer. Around it everything has the values that the tables print in bold, and the first of two
bold ones. AdEMAMix starts from the best AdamW, and only what the paper tuned again varies.

The ViT tables leave some things open: the recipe `vit` says what is chosen here. The paper speaks of 8 models of
AdEMAMix for each ViT; its list has 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ademamix.lab.config import ConfigError, Optimizer, Run
from ademamix.lab.reproduction.scale import PAPER_LMS, Setting
from ademamix.lab.reproduction.vits import vits


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


SMALL_VIT, LARGE_VIT, STARVED_VIT = vits("paper")
BETA3 = "beta3=0.999,0.9999,0.99999"


def _lm(size: str, adamw: tuple[str, ...], ademamix: tuple[str, ...]) -> Preset:
    lm = PAPER_LMS[size]
    return Preset(
        f"the language model of {size.upper()} parameters, table {'1300' if size == '1.3b' else size[:-1]}_hyper",
        {"ademamix": Grid(lm.run("ademamix"), ademamix), "adamw": Grid(lm.run("adamw"), adamw)},
    )


def _vit(vit: Setting, adamw: tuple[str, ...]) -> Preset:
    return Preset(
        f"the ViT of {vit.title}, table vit_hyperparams",
        {
            "ademamix": Grid(vit.run("ademamix", alpha=5, beta3=0.9999), ("alpha=1,5,10,15,20", "beta3=0.999,0.9999")),
            "adamw": Grid(vit.run("adamw"), (*adamw, "beta1=0.9,0.99,0.999")),
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
    "paper-vit-24m-11m": _vit(SMALL_VIT, ("lr=1e-3,3e-3,5e-3", "weight_decay=0.03,0.1,0.3")),
    "paper-vit-86m-11m": _vit(LARGE_VIT, ("lr=1e-3,3e-3", "weight_decay=0.03,0.1,0.3")),
    "paper-vit-86m-1.3m": _vit(STARVED_VIT, ("lr=1e-3,3e-3,5e-3", "weight_decay=0.03,0.1,0.3,0.5,0.7")),
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
