"""Runs with AdEMAMix whose settings are published, as far as we know them: what recommendations are held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Phase = Literal["pretrain", "finetune", "switch"]
Schedule = Literal["cosine", "wsd", "linear"]


@dataclass(frozen=True)
class PublishedRun:
    """A run, or several with the same settings. A pair of steps or alphas is a range."""

    source: str
    parameters: int
    steps: tuple[int, int]
    lr: float
    beta3: tuple[float, float]
    alpha: tuple[float, float]
    warmup: int | None = None  # of alpha and beta3 in steps; None for the whole run
    clip: float | None = None  # None if not stated
    phase: Phase = "pretrain"
    schedule: Schedule = "cosine"
    weight_decay: float | None = 0.1  # None if not stated
    adamw_lr: float | None = None  # of the AdamW that it was compared with


PAPER = "the paper, arXiv 2409.03137"
AUTHORS = "the authors' code, apple/ml-ademamix"
EPFL = "EPFL, epfml/llm-optimizer-benchmark"
APERTUS = "Apertus, swiss-ai/pretrain-code"
APERTUS_SFT = "Apertus, swiss-ai/posttraining"
LOG_TIME = "arXiv 2602.05298"
OURS = "our study: docs/settings.md, ademamix reproduce horizon-rule"

Range = float | tuple[float, float]


def _run(
    source: str, parameters: float, steps: Range, lr: float, beta3: Range, alpha: Range, **others: Any
) -> PublishedRun:
    """Return a row; a number in place of a pair stands for both ends."""
    pairs = [value if isinstance(value, tuple) else (value, value) for value in (steps, beta3, alpha)]
    (first, last), beta3s, alphas = pairs
    return PublishedRun(source, int(parameters), (int(first), int(last)), lr, beta3s, alphas, **others)


RUNS = (
    _run(PAPER, 110e6, (256_000, 500_000), 1e-3, 0.9999, (8.0, 10.0), clip=0.5, adamw_lr=1e-3),
    _run(PAPER, 330e6, 256_000, 5e-4, 0.9999, 8.0, clip=0.1, adamw_lr=5e-4),
    _run(PAPER, 1.3e9, (770_000, 1_500_000), 3e-4, 0.9999, 5.0, clip=0.1, adamw_lr=5e-4),
    _run(PAPER, 168e6, (64_000, 128_000), 6e-4, 0.9999, 8.0, clip=1.0, adamw_lr=6e-4),
    _run(AUTHORS, 110e6, 256_000, 1e-3, 0.9999, 8.0),
    _run(PAPER, 110e6, 256_000, 1e-3, 0.9999, 2.0, warmup=0, clip=0.5, phase="switch"),
    _run(PAPER, 1.3e9, 770_000, 5e-4, 0.9999, 1.0, warmup=0, clip=0.1, phase="switch"),
    _run(EPFL, 124e6, 128_000, 1e-3, 0.999, 8.0, clip=0.5, adamw_lr=1e-3),
    _run(EPFL, 210e6, 128_000, 1e-3, 0.999, 8.0, clip=0.5, adamw_lr=1e-3),
    _run(EPFL, 720e6, 48_000, 1e-3, 0.999, 8.0, clip=0.1, adamw_lr=1e-3),
    _run(EPFL, 520e6, 336_000, 1e-3, 0.999, 8.0, clip=0.5, adamw_lr=1e-3),
    _run(APERTUS, 8e9, 2_600_000, 1.1e-4, 0.9999, 8.0, warmup=100_000, clip=0.1, schedule="wsd"),
    _run(APERTUS, 70e9, 1_100_000, 1e-5, 0.9999, 8.0, warmup=100_000, clip=0.1, schedule="wsd"),
    _run(
        APERTUS_SFT,
        70e9,
        4_462,
        2e-6,
        (0.99, 0.999),
        8.0,
        clip=1.0,
        phase="finetune",
        schedule="linear",
        weight_decay=None,
    ),
    _run(LOG_TIME, 45.7e6, 13_950, 1.6e-3, 0.99943, 4.18, clip=0.5, weight_decay=0.18, adamw_lr=3.8e-3),
    _run(LOG_TIME, 2.62e9, 798_600, 8.7e-5, 0.99999, 7.68, clip=0.5, weight_decay=0.058, adamw_lr=1.9e-4),
)
"""The paper does not state the length of its 330M runs; that of its shortest 110M runs stands in for it.

A "switch" is from AdamW in mid-run, with AdamW's other settings. The paper states no length there either: those of the
shortest runs of each size stand in for them, although it has a 110M switch at step 300,000. The authors' code is an
example for any model; here it has the size of their 110M runs. Fine-tuning of Apertus 8B, with a learning rate of 5e-6,
is left out: its length is not known. The rows of arXiv 2602.05298 are the ends of its ladder of models, as its code
computes them for batches of 65,536 tokens: beta3 = 1 - 8/T, alpha = T^0.15 and weight decay 4/(lr T). In its formula
for the learning rate, 4.51 (6,700 + P)^-0.503, P is the number of non-embedding parameters, about 7M and 2.4B; the
rows have the number of all.
"""
