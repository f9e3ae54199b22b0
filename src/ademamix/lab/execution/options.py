"""How runs are carried out, and how far they are: nothing here changes their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SAVE_EVERY = 30.0  # seconds
SAVE_SHARE = 0.05
LOGITS_BYTES = 4 << 30


@dataclass(frozen=True)
class Options:
    """How to carry out a run; nothing here changes its numbers."""

    out: Path
    """Runs are kept in `out`/runs, prepared data in `out`/data."""
    device: str = "cpu"
    save_every: float = SAVE_EVERY
    """Seconds between checkpoints, at least."""
    save_share: float = SAVE_SHARE
    """At most this share of the time is spent on checkpoints: large ones are saved more rarely."""
    logits_bytes: int = LOGITS_BYTES
    """Memory for the logits of a batch, which is processed in as many parts as that takes."""
    wandb: str | None = None
    """A project of Weights & Biases to record to."""
    shard: bool = False
    """Whether a group of processes divides the model among them, in place of a copy for each."""

    def __post_init__(self) -> None:
        if not 0 < self.save_share <= 1:
            raise ValueError(f"save_share must be above 0 and at most 1, got {self.save_share}")
        if not self.logits_bytes > 0:
            raise ValueError(f"logits_bytes must be above 0, got {self.logits_bytes}")

    @property
    def runs(self) -> Path:
        """The folder of runs."""
        return self.out / "runs"

    @property
    def beginnings(self) -> Path:
        """The folder of first steps that runs have in common."""
        return self.out / "beginnings"

    @property
    def data(self) -> Path:
        """The folder of prepared data."""
        return self.out / "data"


def devices_of(device: str) -> list[str]:
    """Return the devices to spread runs over: every GPU for "cuda", else the one that is named.

    >>> devices_of("cpu"), devices_of("cuda:1")
    (['cpu'], ['cuda:1'])
    """
    if device != "cuda":
        return [device]
    import torch  # here, so that looking at results does not wait for it

    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] or [device]


def processes_on(device: str) -> int:
    """Return how many runs to carry out at a time: one on each GPU, whose memory it may need; two on a CPU.

    >>> processes_on("cpu"), processes_on("cuda:1")
    (2, 1)
    """
    return 2 if device == "cpu" else len(devices_of(device))


class Progress(NamedTuple):
    """How far a run is."""

    step: int
    loss: float | None
    validation_loss: float | None
    steps_a_second: float
    """Steps alone."""
    seconds_left: float
    """Including validations and checkpoints."""
