"""How runs are carried out, and how far they are: what does not change their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SAVE_EVERY = 30.0  # seconds


@dataclass(frozen=True)
class Options:
    """How to carry out a run: what does not change its numbers."""

    out: Path
    """Runs are kept in `out`/runs, prepared data in `out`/data."""
    device: str = "cpu"
    save_every: float = SAVE_EVERY
    """Seconds between checkpoints."""
    wandb: str | None = None
    """A project of Weights & Biases to record to."""

    @property
    def runs(self) -> Path:
        """The folder of runs."""
        return self.out / "runs"

    @property
    def data(self) -> Path:
        """The folder of prepared data."""
        return self.out / "data"


class Progress(NamedTuple):
    """How far a run is."""

    step: int
    loss: float | None
    validation_loss: float | None
    steps_a_second: float
