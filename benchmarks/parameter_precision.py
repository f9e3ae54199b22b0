"""Train a small transformer with its parameters kept in several precisions; compare validation losses.

fp32               what the others are compared with, 4 bytes per parameter
bf16, nearest      2 bytes; most changes are less than half of the last place, and are lost
bf16, stochastic   2 bytes; what AdEMAMix does with bf16 parameters
bf16, Kahan        4 bytes: beside each parameter, the sum in bf16 of what it has lost so far, all rounded to nearest
24-bit master      3 bytes: `master="24bit"`
the same, compact  3 bytes, and the moments in 4 bytes per parameter instead of 12: the least that AdEMAMix trains with

The optimizer, AdEMAMix with fp32 moments but for the last arm, the first parameters and the batches are the same in all
arms of a seed. The model computes in fp32 with the values that the parameters have, so that how these are kept is all
that differs. The learning rate falls to 0: changes become smaller than any format resolves.

Runs from scratch are chaotic: any difference grows, and losses differ by some thousandths. With --continued, a model is
trained by AdamW first, in fp32, and all arms continue from there at a small learning rate, where they stay together.

    python benchmarks/parameter_precision.py              # 5 seeds; each run is saved when it has ended
    python benchmarks/parameter_precision.py --continued
    python benchmarks/parameter_precision.py --quick      # seconds
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ademamix import AdEMAMix
from small_lm import Shape, SmallTransformer, learning_rate_schedule, training_batches, validation_loss
from storage_quality import CONTINUED as OTHER_BATCHES
from storage_quality import T_QUANTILES, first_parameters, mean_and_half_width, verdict_of
from study import Progress, Results, markdown, parse


@dataclass(frozen=True)
class Settings:
    """What all runs have in common."""

    shape: Shape = field(default_factory=Shape)
    first_steps: int = 0  # of AdamW
    first_lr: float = 1e-3
    steps: int = 3000
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)  # beta3 and the warm-ups follow from the steps
    alpha: float = 5.0
    weight_decay: float = 0.01
    validation_windows: int = 8192


CONTINUED: dict[str, Any] = {"first_steps": 3000, "steps": 2000, "lr": 1e-4}
QUICK: dict[str, Any] = {"shape": Shape(width=64, layers=1, batch=2), "steps": 10, "validation_windows": 64}


class Descent:
    """Parameters as an arm keeps them, their optimizer, and those of the model, which computes with them in fp32."""

    def __init__(self, model: SmallTransformer, settings: Settings, dtype: torch.dtype, **more: Any) -> None:
        self.of_model = list(model.parameters())
        self.kept = [param.detach().to(dtype, copy=True) for param in self.of_model]
        for param in self.kept:
            param.grad_dtype = None  # gradients are fp32 in all arms
        self.optimizer = AdEMAMix(
            self.kept,
            settings.lr,
            settings.betas,
            alpha=settings.alpha,
            total_steps=settings.steps,
            weight_decay=settings.weight_decay,
            **more,
        )
        if "master" in more:
            self.optimizer.load_master_parameters(self.of_model)
        self.show()

    def step(self) -> None:
        """Take a step with the gradients of the model."""
        for kept, param in zip(self.kept, self.of_model, strict=True):
            kept.grad, param.grad = param.grad, None
        self.optimizer.step()
        self.show()

    @torch.no_grad()
    def show(self) -> None:
        """Give the model the values of the parameters."""
        for param, kept in zip(self.of_model, self.kept, strict=True):
            param.copy_(kept)


class KahanDescent(Descent):
    """Parameters in bf16, with a compensation in bf16 for what each sum has lost."""

    def __init__(self, model: SmallTransformer, settings: Settings) -> None:
        super().__init__(model, settings, torch.float32)
        self.rounded = [param.bfloat16() for param in self.kept]
        self.lost = [torch.zeros_like(param) for param in self.rounded]
        self.take_up()

    def step(self) -> None:
        """Take a step in fp32, and add its change in bf16."""
        super().step()
        for param, lost, after in zip(self.rounded, self.lost, self.kept, strict=True):
            lost.add_((after - param.float()).bfloat16())
            before = param.clone()
            param.add_(lost)
            lost.add_(before - param)
        self.take_up()

    def take_up(self) -> None:
        """Let the optimizer and the model go on from the rounded values."""
        for kept, param in zip(self.kept, self.rounded, strict=True):
            kept.copy_(param)
        self.show()


BASELINE = "fp32"
ARMS: dict[str, Callable[[SmallTransformer, Settings], Descent]] = {
    BASELINE: lambda model, settings: Descent(model, settings, torch.float32),
    "bf16, nearest": lambda model, settings: Descent(model, settings, torch.bfloat16, stochastic_rounding=False),
    "bf16, stochastic": lambda model, settings: Descent(model, settings, torch.bfloat16),
    "bf16, Kahan": KahanDescent,
    "24-bit master": lambda model, settings: Descent(model, settings, torch.bfloat16, master="24bit"),
    "24-bit master, compact": lambda model, settings: Descent(
        model, settings, torch.bfloat16, master="24bit", state_storage="compact"
    ),
}


def train(arm: str, seed: int, start: dict[str, Any], settings: Settings, progress: Progress) -> dict[str, float]:
    """Train from the parameters `start`, and return the validation loss."""
    model = SmallTransformer(settings.shape)
    model.load_state_dict(start)
    descent = ARMS[arm](model, settings)
    schedule = learning_rate_schedule(descent.optimizer, settings.steps)
    batches = training_batches(settings.shape, OTHER_BATCHES + seed if settings.first_steps else seed)
    started = time.monotonic()
    for _ in range(settings.steps):
        model.loss(next(batches)).backward()
        descent.step()
        schedule.step()
        progress.advance(f"{arm}, seed {seed}")
    seconds = time.monotonic() - started
    return {
        "validation": validation_loss(model, settings.shape, settings.validation_windows),
        "seconds": round(seconds, 1),
    }


def report(results: Results, seeds: range, settings: Settings) -> str:
    losses = {arm: [results[f"{arm} {seed}"]["validation"] for seed in seeds] for arm in ARMS}
    rows = [[BASELINE, f"{statistics.fmean(losses[BASELINE]):.4f}", "", "", ""]]
    for arm in list(ARMS)[1:]:
        differences = [loss - base for loss, base in zip(losses[arm], losses[BASELINE], strict=True)]
        mean, half_width = mean_and_half_width(differences)
        by_seed = " ".join(f"{value:+.4f}" for value in differences)
        interval = f"{mean:+.4f} ± {half_width:.4f}"
        rows.append([arm, f"{statistics.fmean(losses[arm]):.4f}", interval, by_seed, verdict_of(mean, half_width)])
    before = f"{settings.first_steps:,} steps of AdamW and " if settings.first_steps else ""
    steps = f"{before}{settings.steps:,} steps at lr {settings.lr:g}"
    title = f"validation loss (nats a byte) after {steps}, {len(seeds)} seeds"
    header = ["parameters", "mean loss", "difference to fp32, 95% interval", "by seed", "verdict"]
    return f"{title}\n\n{markdown(header, rows)}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=None, help="2 to 10 (default: 5)")
    parser.add_argument("--continued", action="store_true", help="from a model that AdamW has trained (default: off)")


def main() -> None:
    options = parse(__doc__ or "", add_options)
    chosen = CONTINUED if options.continued else {}
    if options.quick:
        chosen = {**QUICK, "first_steps": 5 if options.continued else 0}
    settings = Settings(**chosen)
    seeds = range(options.seeds or (2 if options.quick else 5))
    if not 2 <= len(seeds) <= len(T_QUANTILES) + 1:
        raise SystemExit(f"--seeds must be 2 to {len(T_QUANTILES) + 1}, got {len(seeds)}")
    name = "parameter_precision_continued" if options.continued else "parameter_precision"
    results = Results(options.results, name, asdict(settings), quick=options.quick)
    progress = Progress(len(seeds) * (settings.first_steps + len(ARMS) * settings.steps), "steps")
    for seed in seeds:
        missing = [arm for arm in ARMS if f"{arm} {seed}" not in results]
        progress.skip((len(ARMS) - len(missing)) * settings.steps + (0 if missing else settings.first_steps))
        if missing:
            start = first_parameters(seed, settings, progress)
        for arm in missing:
            results[f"{arm} {seed}"] = train(arm, seed, start, settings, progress)
    print(report(results, seeds, settings))


if __name__ == "__main__":
    main()
