"""The part of `ademamix plan` that recommends settings: its options, its text and its JSON."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ademamix.cli.arguments import UsageError, add_choice, add_value, beta, count, horizon, rate, rate_or_zero
from ademamix.hyperparameters import BETAS
from ademamix.output.tables import wrapped
from ademamix.recommendation import DECAYING, PHASES, SCHEDULES, SHORTEST_RUN, Reason, Recommendation, recommend
from ademamix.schedules import OPEN

ADAMW_SETTINGS = {
    "lr": rate,
    "beta1": beta,
    "beta2": beta,
    "eps": rate_or_zero,
    "weight_decay": rate_or_zero,
    "clip": rate_or_zero,
}
TRAINER_SCHEDULES = {
    "cosine": 'lr_scheduler_type="cosine"',
    "linear": 'lr_scheduler_type="linear"',
    "wsd": 'lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs={"num_decay_steps": decay_steps}',
    "constant": 'lr_scheduler_type="constant_with_warmup"',
}
"""Arguments of Hugging Face's trainer, which decays linearly without them."""
STAY = f"Stay with AdamW: we have not tried AdEMAMix in runs of fewer than {SHORTEST_RUN:,} steps."
ANYWAY = "If you try it anyway:"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what settings depend on."""
    steps = "recommend settings for a run of T optimizer steps, or with an open end (default: no settings)"
    add_value(parser, "--steps", horizon, "T", steps)
    add_value(parser, "--batch", count, "TOKENS", "tokens in a step, for those of the run (default: none)")
    add_choice(parser, "--phase", PHASES, "KIND", f"{' or '.join(PHASES)} (default: pretrain)", default="pretrain")
    schedules = f"{', '.join(SCHEDULES[:-1])} or {SCHEDULES[-1]} (default: cosine, or wsd with --steps open)"
    add_choice(parser, "--schedule", SCHEDULES, "KIND", schedules)
    parser.add_argument(
        "--from",
        dest="adamw",
        type=_adamw,
        default={},
        metavar="SETTINGS",
        help="a tuned AdamW, such as lr=1e-3,beta2=0.95,weight_decay=0.1,clip=1 (default: unknown)",
    )


def recommended(options: argparse.Namespace) -> Recommendation:
    """Return the settings for what the options say."""
    betas = (options.adamw.get("beta1", BETAS[0]), options.adamw.get("beta2", BETAS[1]))
    plan = recommend(
        options.steps, parameters=options.params, phase=options.phase, schedule=options.schedule, betas=betas
    )
    return _clipped_as_stated(plan, options.adamw["clip"]) if "clip" in options.adamw else plan


def _clipped_as_stated(plan: Recommendation, clip: float) -> Recommendation:
    """Return the settings with AdamW's clip, which is the user's choice; its reason has ours."""
    if clip == plan.clip:
        return plan

    def stated(reason: Reason) -> Reason:
        ours = "" if plan.clip is None else f"; {plan.clip:g} is recommended"
        return replace(reason, value=f"{clip:g}", why=f"AdamW's, as stated{ours}: {reason.why}")

    reasons = tuple(stated(reason) if reason.setting == "clip" else reason for reason in plan.reasons)
    return replace(plan, clip=clip, reasons=reasons)


def tokens(options: argparse.Namespace) -> dict[str, float]:
    """Return the tokens of a run, and those per parameter, as far as the options tell."""
    if not options.batch:
        return {}
    found = {"tokens": options.batch * options.steps}
    return found | ({"tokens_per_parameter": found["tokens"] / options.params} if options.params else {})


def as_json(plan: Recommendation, adamw: Mapping[str, float]) -> dict[str, Any]:
    """Return settings as data, with those of AdamW that they are relative to."""
    reasons = [asdict(reason) for reason in plan.reasons]
    return {
        **asdict(plan),
        "reasons": reasons,
        "advice": None if plan.pays else STAY,
        "adamw": dict(adamw),
        "lr": _lr(plan, adamw),
        "calls": _calls(plan, adamw),
    }


def as_text(plan: Recommendation, options: argparse.Namespace, width: int) -> str:
    """Return settings with their reasons, and the calls that have them."""
    length = "a run without a planned end" if plan.total_steps == OPEN else _steps(plan.total_steps)
    parts = [f"Settings for {length}"]
    if not plan.pays:
        parts.append(f"{STAY} {ANYWAY}")
    counted = tokens(options)
    if "tokens_per_parameter" in counted:
        each = f"{counted['tokens_per_parameter']:.3g} per parameter"
        parts.append(f"{counted['tokens']:,} tokens, {each}. docs/lab.md has the gain at 30 and at 290.")
    elif counted:
        parts.append(f"{counted['tokens']:,} tokens.")
    parts += ["\n".join(wrapped(str(reason), width, indent="  ") for reason in plan.reasons)]
    parts += [f"{name}:\n  {call}" for name, call in _calls(plan, options.adamw).items()]
    return "\n\n".join(wrapped(part, width) if "\n" not in part else part for part in parts)


def _steps(number: int) -> str:
    return f"{number:,} step{'s' if number != 1 else ''}"


def _lr(plan: Recommendation, adamw: Mapping[str, float]) -> float | None:
    return float(f"{plan.lr_factor * adamw['lr']:.3g}") if "lr" in adamw else None


def _calls(plan: Recommendation, adamw: Mapping[str, float]) -> dict[str, str]:
    """Return what to write in each framework. What follows from `total_steps` is left to it."""
    lr = _lr(plan, adamw)
    rate = f"{plan.lr_factor:g} * adamw_lr" if lr is None else f"{lr:g}"
    decay = f"{adamw['weight_decay']:g}" if "weight_decay" in adamw else "adamw_weight_decay"
    clip = "adamw_clip" if plan.clip is None else f"{plan.clip:g}"
    torch_betas = optax_betas = trainer_betas = ""
    if "beta1" in adamw or "beta2" in adamw:
        beta1, beta2, _ = plan.betas
        torch_betas, optax_betas = f", betas=({beta1}, {beta2})", f", b1={beta1}, b2={beta2}"
        trainer_betas = f"adam_beta1={beta1}, adam_beta2={beta2}, "
    eps = f", eps={adamw['eps']:g}" if "eps" in adamw else ""
    trainer_eps = f"adam_epsilon={adamw['eps']:g}, " if eps else ""
    warmups = {name: getattr(plan, name) for name in ("alpha_warmup", "beta3_warmup")}
    if plan.alpha_warmup == plan.total_steps or plan.total_steps == OPEN:
        warmups = {}
    alpha, more = f"alpha={plan.alpha:g}", "".join(f", {name}={steps}" for name, steps in warmups.items())
    settings = f"{alpha}, total_steps={plan.total_steps!r}{more}"
    if plan.total_steps == OPEN:
        length, trainer_settings = TRAINER_SCHEDULES["constant"], f"{alpha}, total_steps={OPEN}"  # until it is ended
    else:  # use_ademamix works out total_steps
        length = f"max_steps={plan.total_steps}, {TRAINER_SCHEDULES[plan.schedule]}"
        trainer_settings = f"{alpha}{more}"
    return {
        "PyTorch": f"AdEMAMix(model.parameters(), lr={rate}{torch_betas}, {settings}{eps}, weight_decay={decay})",
        "Optax": f"ademamix({rate}{optax_betas}, {settings}{eps}, weight_decay={decay})",
        "Hugging Face": f"TrainingArguments(learning_rate={rate}, {length}, {trainer_betas}{trainer_eps}"
        f'weight_decay={decay}, max_grad_norm={clip}, optim_args="{trainer_settings}"), with use_ademamix(trainer)',
    }


def _adamw(text: str) -> dict[str, float]:
    settings: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in ADAMW_SETTINGS or not equals:
            known = ", ".join(ADAMW_SETTINGS)
            raise argparse.ArgumentTypeError(
                f"must be settings of AdamW such as lr=1e-3,clip=1, by the names {known}, got {part.strip()!r}"
            )
        if name in settings:
            raise argparse.ArgumentTypeError(f"{name} is given twice in {text!r}")
        try:
            settings[name] = ADAMW_SETTINGS[name](value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{name} {error}") from None
    return settings


def check(options: argparse.Namespace) -> None:
    """Raise if options are given that have no effect without `--steps`, or without `--params`."""
    of_settings = options.batch or options.adamw or options.schedule or options.phase != "pretrain"
    if options.steps is None and of_settings:
        raise UsageError(
            "--batch, --from, --phase and --schedule are for settings, which need the length of the run: add --steps"
        )
    of_devices = (options.devices, options.shard, options.precision) != (1, "fsdp", "mixed")
    if options.steps is not None and options.params is None and of_devices:
        raise UsageError("--devices, --shard and --precision need the size of the model: add --params")
    if options.steps == OPEN and options.schedule in DECAYING:
        raise UsageError(
            f"--schedule {options.schedule} decays to the end of a run, which --steps open does not have: leave "
            "it out, or use wsd or constant"
        )
    if options.steps == OPEN and options.batch:
        raise UsageError(
            "--batch is for the tokens of the run, which --steps open does not tell: leave one of them out"
        )
