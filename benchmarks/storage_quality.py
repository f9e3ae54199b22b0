"""Continue the training of a small transformer with each storage of AdEMAMix's state; compare validation losses.

A model is trained with AdamW, and then continued with AdEMAMix at a small learning rate, beta3 = 0.9999, alpha and
beta3 rising over the whole of that run. This is where m2 matters: gradients that point the same way for thousands of
steps, under noise. (From scratch, a run of this length is over before an average of 10,000 steps is of use, and an m2
that is damaged does no harm.) More than 90% of the parameters are coded. The arms:

fp32       the state as it is computed: what the others are compared with
compact    the state in 4 bytes per parameter
bf16       the state in 6 bytes per parameter
8-bit m2   a control that shows that the test can tell: m2 is rounded to nearest in the 8-bit dynamic code after each
           step, everything else is fp32
no m2      alpha = 0, which shows what there is to lose

The runs of a seed share their first parameters and their batches, so the difference of two arms is taken within a
seed, and its mean over the seeds is given with a 95% t-interval.

    python benchmarks/storage_quality.py                          # 5 seeds; each run is saved when it has ended
    python benchmarks/storage_quality.py --seeds 8 --arms compact # more seeds for the same file
    python benchmarks/storage_quality.py --quick                  # seconds
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ademamix import AdEMAMix
from other_codes import dynamic
from small_lm import (
    Shape,
    SmallTransformer,
    coded_parameters,
    learning_rate_schedule,
    training_batches,
    validation_loss,
)
from study import Progress, Results, markdown, parse

BASELINE, CONTROL, WITHOUT = "fp32", "8-bit m2", "no m2"
ARMS = (BASELINE, "compact", "bf16", CONTROL, WITHOUT)
CONTINUED = 1000  # added to the seed, so that the batches of the continued run are others
LEAST_CODED_SHARE = 0.9
ALLOWED_DIFFERENCE = 0.01
# The 97.5% quantile of Student's t for 1, 2, ... degrees of freedom.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Settings:
    """What all runs have in common."""

    shape: Shape = field(default_factory=Shape)
    first_steps: int = 3000  # of AdamW
    first_lr: float = 1e-3
    steps: int = 5000
    lr: float = 1e-4
    betas: tuple[float, float, float] = (0.9, 0.999, 0.9999)
    alpha: float = 8.0
    weight_decay: float = 0.01
    validation_windows: int = 8192
    curve_points: int = 10


QUICK = Settings(
    shape=Shape(width=64, layers=1, batch=2), first_steps=5, steps=10, validation_windows=64, curve_points=2
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=None, help="pairs of runs to compare, 2 to 10 (default: 5)")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, help="what to train (default: all)")


def build_optimizer(arm: str, model: SmallTransformer, settings: Settings) -> AdEMAMix:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the advice that this beta3 is long for the run: it is, on purpose
        optimizer = AdEMAMix(
            model.parameters(),
            lr=settings.lr,
            betas=settings.betas,
            alpha=0.0 if arm == WITHOUT else settings.alpha,
            total_steps=settings.steps,
            weight_decay=settings.weight_decay,
            state_storage=arm if arm in ("compact", "bf16") else "fp32",
        )
    if arm == CONTROL:
        _round_slow_average(optimizer, model)
    return optimizer


def _round_slow_average(optimizer: AdEMAMix, model: SmallTransformer) -> None:
    """Let m2 of the coded parameters go through the 8-bit code after each step, as if it were stored in it."""
    coded = list(coded_parameters(model).values())
    round_trip = dynamic()

    def hook(*_: Any) -> None:
        for parameter in coded:
            slow = optimizer.state[parameter]["exp_avg_slow"]
            slow.copy_(round_trip(slow))

    optimizer.register_step_post_hook(hook)


def check_coded_share(model: SmallTransformer) -> float:
    """Return the share of the parameters whose state is coded; raise if it is too small to say anything."""
    coded = sum(parameter.numel() for parameter in coded_parameters(model).values())
    share = coded / sum(parameter.numel() for parameter in model.parameters())
    if share < LEAST_CODED_SHARE:
        raise ValueError(f"only {share:.1%} of the parameters are coded, choose another shape")
    return share


def first_parameters(seed: int, settings: Settings, progress: Progress) -> dict[str, Any]:
    """Train a model with AdamW, and return its parameters for the arms to start from."""
    torch.manual_seed(seed)
    model = SmallTransformer(settings.shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.first_lr, weight_decay=settings.weight_decay)
    batches = training_batches(settings.shape, seed)
    for _ in range(settings.first_steps):
        model.loss(next(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
        progress.advance(f"AdamW, seed {seed}")
    return model.state_dict()


def train(arm: str, seed: int, start: dict[str, Any], settings: Settings, progress: Progress) -> dict[str, Any]:
    """Continue from the parameters `start`, and return the validation loss and how it came there."""
    model = SmallTransformer(settings.shape)
    model.load_state_dict(start)
    coded_share = check_coded_share(model)
    optimizer = build_optimizer(arm, model, settings)
    schedule = learning_rate_schedule(optimizer, settings.steps)
    batches = training_batches(settings.shape, CONTINUED + seed)
    losses: list[float] = []
    started = time.monotonic()
    for _ in range(settings.steps):
        loss = model.loss(next(batches))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        progress.advance(f"{arm}, seed {seed}")
    seconds = time.monotonic() - started
    return {
        "validation": validation_loss(model, settings.shape, settings.validation_windows),
        "training": _means(losses, settings.curve_points),
        "coded_share": coded_share,
        "seconds": round(seconds, 1),
    }


def _means(losses: list[float], points: int) -> list[float]:
    size = len(losses) // points
    return [round(statistics.fmean(losses[i * size : (i + 1) * size]), 4) for i in range(points)]


def main() -> None:
    options = parse(__doc__, add_options)
    settings = QUICK if options.quick else Settings()
    seeds = range(options.seeds or (2 if options.quick else 5))
    if not 2 <= len(seeds) <= len(T_QUANTILES) + 1:
        raise SystemExit(f"--seeds must be 2 to {len(T_QUANTILES) + 1}, got {len(seeds)}")
    arms = list(dict.fromkeys((BASELINE, *options.arms)))
    results = Results(options.results, "storage_quality", asdict(settings), quick=options.quick)
    progress = Progress(len(seeds) * (settings.first_steps + len(arms) * settings.steps), "steps")
    for seed in seeds:
        missing = [arm for arm in arms if f"{arm} {seed}" not in results]
        progress.skip((len(arms) - len(missing)) * settings.steps + (0 if missing else settings.first_steps))
        if missing:
            start = first_parameters(seed, settings, progress)
        for arm in missing:
            results[f"{arm} {seed}"] = train(arm, seed, start, settings, progress)
    print(report(results, arms, seeds, settings))


def report(results: Results, arms: list[str], seeds: range, settings: Settings) -> str:
    losses = {arm: [results[f"{arm} {seed}"]["validation"] for seed in seeds] for arm in arms}
    rows = []
    for arm in arms:
        differences = [loss - base for loss, base in zip(losses[arm], losses[BASELINE], strict=True)]
        mean, half_width = mean_and_half_width(differences)
        verdict = "" if arm == BASELINE else verdict_of(mean, half_width)
        difference = "" if arm == BASELINE else f"{mean:+.4f} ± {half_width:.4f}"
        spread = " ".join(f"{value:+.4f}" for value in differences) if arm != BASELINE else ""
        rows.append([arm, f"{statistics.fmean(losses[arm]):.4f}", difference, spread, verdict])
    share = results[f"{BASELINE} {seeds[0]}"]["coded_share"]
    title = (
        f"validation loss (nats a byte) after {settings.steps:,} steps, {len(seeds)} seeds; "
        f"alpha = {settings.alpha:g}, beta3 = {settings.betas[2]:g}, lr = {settings.lr:g}, "
        f"{share:.1%} of the parameters coded"
    )
    header = ["arm", "mean loss", "difference to fp32, 95% interval", "by seed", "verdict"]
    return f"{title}\n\n{markdown(header, rows)}"


def mean_and_half_width(values: list[float]) -> tuple[float, float]:
    """Return the mean, and half the width of its 95% t-interval."""
    quantile = T_QUANTILES[len(values) - 2]
    return statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(len(values))


def verdict_of(mean: float, half_width: float) -> str:
    if abs(mean) + half_width <= ALLOWED_DIFFERENCE:
        return f"within {ALLOWED_DIFFERENCE}"
    if mean - half_width > 0:
        return "worse"
    if mean + half_width < 0:
        return "better"
    return "cannot tell"


if __name__ == "__main__":
    main()
