"""`ademamix plan`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from ademamix import memory_plan
from ademamix.cli import plan_settings
from ademamix.cli.arguments import Commands, count, whole
from ademamix.hyperparameters import LAST_STEP
from ademamix.memory_plan import PRECISIONS, SHARDINGS, STATE_FORMATS, DevicePlan
from ademamix.output.tables import in_rows, width_of_output, wrapped


def _listed(choices: dict[str, str]) -> str:
    return "\n".join(f"  {name:<7} {title}" for name, title in choices.items())


DESCRIPTION = f"""\
Plan a run on paper: settings for its length, and what a model of a given size takes on each device.

With --steps, settings are recommended, each with its reason and source, and with the calls to make.
With --params, memory and traffic are computed for AdamW and AdEMAMix. Memory is that of parameters, gradients, masters
and optimizer state, on the device that has most. Activations, gathered layers and buffers of the communication
come on top. Traffic is what a device sends in each step. A GB is 10^9 bytes.

Nothing is trained or allocated, and no framework is loaded.

shardings:
{_listed({name: row.title for name, row in SHARDINGS.items()})}

precisions:
{_listed({name: row.title for name, row in PRECISIONS.items()})}

examples:
  ademamix plan --steps 10000
  ademamix plan --steps 1.5M --params 1.3B --batch 131072 --schedule linear
  ademamix plan --steps 250000 --params 1.3B --devices 64 --from lr=5e-4,weight_decay=0.1
  ademamix plan --steps open --schedule wsd
  ademamix plan --params 70B --devices 1024
  ademamix plan --params 1.3B --devices 8 --shard zero1 --precision bf16
  ademamix plan --params 124M --json
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "plan", help="settings for a run, and its memory and traffic per device, on paper", description=DESCRIPTION
    )
    parser.add_argument(
        "--params",
        type=parameters,
        metavar="N",
        help="parameters of the model, such as 124M or 70B (default: 1.3B, or none with --steps)",
    )
    parser.add_argument("--devices", type=count, default=1, metavar="N", help="devices in all (default: 1)")
    parser.add_argument(
        "--shard", choices=SHARDINGS, default="fsdp", metavar="KIND", help="what devices share (default: fsdp)"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="mixed", metavar="KIND", help="of the weights (default: mixed)"
    )
    plan_settings.add_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes (default: off)")
    parser.set_defaults(run=_run)


def parameters(text: str) -> int:
    """Read a number of parameters.

    >>> parameters("70B"), parameters("1.3B"), parameters("124M"), parameters("5000")
    (70000000000, 1300000000, 124000000, 5000)
    """
    number = whole(text)
    if not 1 <= number <= LAST_STEP:
        raise argparse.ArgumentTypeError(f"must be a number of parameters such as 124M, 1.3B or 70B, got {text!r}")
    return number


def _run(options: argparse.Namespace) -> int:
    plan_settings.check(options)
    if options.steps is None and options.params is None:
        options.params = parameters("1.3B")
    text: list[str] = []
    data: dict[str, Any] = {}
    if options.steps is not None:
        recommended = plan_settings.recommended(options)
        data["settings"] = plan_settings.as_json(recommended, options.adamw) | plan_settings.tokens(options)
        text.append(plan_settings.as_text(recommended, options, width_of_output()))
    if options.params is not None:
        _add_devices(options, text, data)
    print(json.dumps(data, indent=2) if options.json else "\n\n".join(text))
    return 0


def _add_devices(options: argparse.Namespace, text: list[str], data: dict[str, Any]) -> None:
    """Add what each device takes and sends."""
    shapes = memory_plan.weights_of(options.params)
    settings = {"devices": options.devices, "shard": options.shard, "precision": options.precision}
    plans = {state: memory_plan.plan(shapes, state, **settings) for state in STATE_FORMATS}
    memory = {state: {**asdict(found), "memory": found.memory} for state, found in plans.items()}
    data |= {"params": options.params, **settings, "per_device": memory}
    width = width_of_output()
    text += [wrapped(_title(options), width), _memory(plans, width), _traffic(plans["fp32"], width)]


def _title(options: argparse.Namespace) -> str:
    devices = "1 device" if options.devices == 1 else f"{options.devices:,} devices"
    return (
        f"{options.params:,} parameters on {devices}\n"
        f"{options.shard}: {SHARDINGS[options.shard].title}\n"
        f"{options.precision}: {PRECISIONS[options.precision].title}"
    )


def _memory(plans: dict[str, DevicePlan], width: int) -> str:
    parts = ("parameters", "gradients", "master", "state", "memory")
    rows = [
        [STATE_FORMATS[state].title, *(_gigabytes(getattr(found, part)) for part in parts)]
        for state, found in plans.items()
    ]
    return in_rows(["GB per device", "parameters", "gradients", "master", "state", "in all"], rows, width)


def _traffic(sent: DevicePlan, width: int) -> str:
    kinds = {"all-gather": sent.all_gather, "reduce-scatter": sent.reduce_scatter, "all-reduce": sent.all_reduce}
    parts = [f"{kind} {_gigabytes(number)} GB" for kind, number in kinds.items() if number]
    if not parts:
        return wrapped("One device sends nothing.", width)
    return wrapped(f"Sent per device and step, by AdamW and AdEMAMix alike: {', '.join(parts)}.", width)


def _gigabytes(number: int) -> str:
    """Write bytes as GB, with three digits.

    >>> [_gigabytes(number) for number in (0, 275_039_870, 12_000_000_000, 1_234_567_890_123)]
    ['0', '0.275', '12', '1,235']
    """
    size = number / 1e9
    return f"{size:.3g}" if size < 1000 else f"{size:,.0f}"
