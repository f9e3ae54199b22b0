"""The part of `ademamix plan` that recommends settings: its options, its text and its JSON."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ademamix.cli.arguments import UsageError, add_choice, add_value, horizon, positive
from ademamix.lab.report.tables import wrapped
from ademamix.recommendation import PHASES, SCHEDULES, SHORTEST_RUN, Recommendation, recommend
from ademamix.schedules import OPEN

ADAMW_SETTINGS = ("lr", "weight_decay", "clip")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what settings depend on."""
    steps = "recommend settings for so many optimizer steps, or for an open end (default: no settings)"
    add_value(parser, "--steps", horizon, "T", steps)
    add_value(parser, "--batch", positive, "TOKENS", "tokens in a step, for the tokens per parameter (default: none)")
    add_choice(parser, "--phase", PHASES, "KIND", _one_of(PHASES), default="pretrain")
    add_choice(parser, "--schedule", SCHEDULES, "KIND", _one_of(SCHEDULES), default="cosine")
    parser.add_argument(
        "--from",
        dest="adamw",
        type=_adamw,
        default={},
        metavar="SETTINGS",
        help="a tuned AdamW, such as lr=1e-3,weight_decay=0.1,clip=1 (default: unknown)",
    )


def recommended(options: argparse.Namespace) -> Recommendation:
    """Return the settings for what the options say."""
    return recommend(options.steps, parameters=options.params, phase=options.phase, schedule=options.schedule)


def as_json(plan: Recommendation, adamw: Mapping[str, float]) -> dict[str, Any]:
    """Return settings as data, with those of AdamW that they are relative to."""
    reasons = [asdict(reason) for reason in plan.reasons]
    return {
        **asdict(plan),
        "reasons": reasons,
        "adamw": dict(adamw),
        "lr": _lr(plan, adamw),
        "calls": _calls(plan, adamw),
    }


def as_text(plan: Recommendation, options: argparse.Namespace, width: int) -> str:
    """Return settings with their reasons, and the calls that have them."""
    length = "a run without a planned end" if plan.total_steps == OPEN else f"{plan.total_steps:,} steps"
    parts = [f"Settings for {length}"]
    if not plan.pays:
        parts.append(
            f"Stay with AdamW: we have no evidence that AdEMAMix pays in runs of fewer than {SHORTEST_RUN:,} steps."
        )
    if options.batch and options.params and plan.total_steps != OPEN:
        tokens = options.batch * plan.total_steps / options.params
        parts.append(f"{tokens:.3g} tokens per parameter. The gain grows with them, see docs/lab.md.")
    parts += ["\n".join(wrapped(str(reason), width, indent="  ") for reason in plan.reasons)]
    parts += [f"{name}:\n  {call}" for name, call in _calls(plan, options.adamw).items()]
    return "\n\n".join(wrapped(part, width) if "\n" not in part else part for part in parts)


def _lr(plan: Recommendation, adamw: Mapping[str, float]) -> float | None:
    return float(f"{plan.lr_factor * adamw['lr']:.3g}") if "lr" in adamw else None


def _calls(plan: Recommendation, adamw: Mapping[str, float]) -> dict[str, str]:
    """Return what to write in each framework. What follows from `total_steps` is left to it."""
    lr = _lr(plan, adamw)
    rate = f"{plan.lr_factor:g} * adamw_lr" if lr is None else f"{lr:g}"
    decay = f"{adamw['weight_decay']:g}" if "weight_decay" in adamw else "adamw_weight_decay"
    clip = f"{adamw['clip']:g}" if "clip" in adamw else "adamw_clip"
    if plan.clip is not None:
        clip = f"{plan.clip:g}"
    horizon = repr(plan.total_steps)
    warmups = {name: getattr(plan, name) for name in ("alpha_warmup", "beta3_warmup")}
    if plan.alpha_warmup == plan.total_steps or plan.total_steps == OPEN:
        warmups = {}
    more = "".join(f", {name}={steps}" for name, steps in warmups.items())
    settings = f"alpha={plan.alpha:g}, total_steps={horizon}{more}"
    return {
        "PyTorch": f"AdEMAMix(model.parameters(), lr={rate}, {settings}, weight_decay={decay})",
        "Optax": f"ademamix({rate}, {settings}, weight_decay={decay})",
        "Hugging Face": f"TrainingArguments(learning_rate={rate}, weight_decay={decay}, max_grad_norm={clip}, "
        f'optim_args="{settings.replace(repr(OPEN), OPEN)}"), with use_ademamix(trainer)',
    }


def _adamw(text: str) -> dict[str, float]:
    settings = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in ADAMW_SETTINGS or not 0 <= number < float("inf"):
            raise argparse.ArgumentTypeError(
                f"must be settings of AdamW such as lr=1e-3,weight_decay=0.1,clip=1, got {part.strip()!r}"
            )
        settings[name] = number
    return settings


def _one_of(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]} (default: {choices[0]})"


def check(options: argparse.Namespace) -> None:
    """Raise if options are given that have no effect without `--steps`, or without `--params`."""
    of_settings = options.batch or options.adamw or (options.phase, options.schedule) != (PHASES[0], SCHEDULES[0])
    if options.steps is None and of_settings:
        raise UsageError(
            "--batch, --from, --phase and --schedule are for settings, which need the length of the run: add --steps"
        )
    of_devices = (options.devices, options.shard, options.precision) != (1, "fsdp", "mixed") or options.batch
    if options.steps is not None and options.params is None and of_devices:
        raise UsageError("--devices, --shard, --precision and --batch need the size of the model: add --params")
