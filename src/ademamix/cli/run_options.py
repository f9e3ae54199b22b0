"""The options that commands of the lab share, and how the lab's errors reach the user."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ademamix.cli.arguments import Complaint, few, name_and_settings, positive, rate, rate_or_zero, writable_folder

if TYPE_CHECKING:
    from ademamix.lab.config import Optimizer, Run
    from ademamix.lab.runs.execution import Options
    from ademamix.lab.runs.laboratory import Lab

DESCRIPTION = """\
models, each with settings of its own (NAME or NAME:SETTING=VALUE,...):
  gpt-nano, gpt-tiny, gpt-mini, gpt-110m, gpt-330m,
  gpt-1.3b                                             width, layers, heads, context, dropout
  mamba-tiny, mamba-168m                               width, layers, state, expansion, context
  vit-tiny, vit-24m, vit-86m                           width, layers, heads, patch, image, channels, dropout

optimizers, likewise; settings are the arguments of their constructors, and lr:
  adamw, ademamix, adamw-scheduled-beta1, convex-mix, ad3emamix, aggmo, admeta-s, lion
  e.g. ademamix:alpha=8,beta3=0.999,state_storage=compact    lion:lr=3e-4,weight_decay=0.25
  All start with weight_decay=0.1. adamw has lr=8e-3 and ademamix lr=4e-3,alpha=8, which a sweep at the default
  length found best; the others have the lr of their constructors, which is no more than a start. Lion wants a
  smaller lr and a larger weight_decay than AdamW: set both.

data: stdlib (the sources of Python's standard library), digits (scikit-learn's, for vit-tiny), a file or folder of
text, a folder of images, or hub:NAME on the Hugging Face hub (streamed: give --tokens)."""


RUN_OPTIONS = (
    *("model", "data", "tokenizer", "tokens", "steps", "batch", "accumulate", "lr", "schedule", "clip"),
    *("parameters", "autocast", "validate_every"),
)
"""What :func:`add_run_options` adds; each is None unless it is given."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to train and on what."""
    run = parser.add_argument_group("the run")
    run.add_argument("--model", type=name_and_settings, metavar="MODEL", help="see above (default: gpt-nano)")
    run.add_argument("--data", metavar="SOURCE", help="see above (default: stdlib, or digits for a vit)")
    run.add_argument("--tokenizer", metavar="T", help="bytes, sentencepiece:SIZE or hub:NAME (default: bytes)")
    run.add_argument(
        "--tokens", type=positive, metavar="N", help="take at most N tokens of the data (default: all there are)"
    )
    run.add_argument("--steps", type=positive, metavar="N", help="length of the run; 10k is 10000 (default: 20k)")
    run.add_argument("--batch", type=positive, metavar="N", help="sequences or images per step (default: 8)")
    run.add_argument(
        "--accumulate", type=positive, metavar="N", help="parts in which a batch is processed, at least (default: 1)"
    )
    run.add_argument(
        "--lr", type=rate, metavar="RATE", help="peak learning rate (default: that of the optimizer, see above)"
    )
    run.add_argument(
        "--schedule",
        type=name_and_settings,
        metavar="S",
        help="cosine:warmup=N,final=RATE or constant:warmup=N,decay=N,final=RATE; what is not stated is as in the "
        "default (default: cosine, warm-up over a hundredth of the steps, final=1e-5; constant: decay=0, final=0)",
    )
    run.add_argument(
        "--clip", type=rate_or_zero, metavar="NORM", help="largest norm of the gradient; 0: any (default: 1)"
    )
    run.add_argument("--parameters", choices=("fp32", "bf16"), help="dtype of the parameters (default: fp32)")
    run.add_argument("--autocast", action="store_true", default=None, help="forward pass in bf16 (default: off)")
    run.add_argument(
        "--validate-every",
        type=positive,
        metavar="N",
        help="steps between validations (default: a fiftieth of the run, or more where that took over a tenth of the "
        "time)",
    )


def add_execution_options(parser: argparse.ArgumentParser, *, threads: int) -> None:
    """Add the options that say how to carry a run out."""
    how = parser.add_argument_group("how to carry it out (changes a run's numbers by rounding at most)")
    how.add_argument("--out", type=Path, default="out", metavar="DIR", help="where results are kept (default: out)")
    how.add_argument("--threads", type=few, default=threads, metavar="N", help=f"threads per run (default: {threads})")
    how.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    how.add_argument(
        "--save-every",
        type=rate,
        default=30.0,
        metavar="SECONDS",
        help="between checkpoints; more where they took over 5%% of the time (default: 30)",
    )
    how.add_argument(
        "--logits-memory",
        type=rate,
        default=4.0,
        metavar="GIB",
        help="memory for the logits of a batch, which is processed in as many parts as that takes (default: 4)",
    )
    how.add_argument("--wandb", metavar="PROJECT", help="record to Weights & Biases as well (default: do not)")


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the number of runs at a time."""
    parser.add_argument("--processes", type=few, metavar="N", help="runs at a time (default: 2, or one for each GPU)")


def execution(options: argparse.Namespace) -> Options:
    """Return how to carry runs out."""
    from ademamix.lab.runs.execution import Options

    writable_folder(options.out)
    if options.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise Complaint("--wandb needs the package wandb, which is not installed: pip install wandb")
    _check_device(options.device)
    return Options(
        options.out,
        device=options.device,
        save_every=options.save_every,
        logits_bytes=max(1, int(options.logits_memory * (1 << 30))),
        wandb=options.wandb,
    )


def laboratory(options: argparse.Namespace) -> Lab:
    """Return where and how several runs are carried out."""
    from ademamix.lab.runs.laboratory import Lab

    return Lab(execution(options), options.processes, options.threads)


def _check_device(device: str) -> None:
    """Complain of a device that this machine has not; a CPU it has, and torch takes a second to load."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise Complaint(f"--device must be cpu, cuda or cuda:N, got {device!r}")
    if device != "cpu":
        import torch

        try:
            torch.empty(0, device=device)
        except (AssertionError, RuntimeError) as error:
            raise Complaint(f"--device {device} cannot be used here: {str(error).splitlines()[0]}") from None


def changed(base: Run, options: argparse.Namespace) -> Run:
    """Return `base` with what the user chose."""
    from ademamix.lab.comparison.defaults import warmup
    from ademamix.lab.config import Run, validation_interval
    from ademamix.lab.presets import PRESETS

    fields: dict[str, Any] = base.model_dump()
    if options.model is not None:
        name, settings = options.model
        if name not in PRESETS:
            raise Complaint(f"there is no model {name!r}: choose one of {', '.join(PRESETS)}")
        fields["model"] = PRESETS[name].model_dump() | settings
        if (fields["model"]["kind"] == "vit") != (base.data.kind == "images"):
            fields["data"] = {"kind": "images" if fields["model"]["kind"] == "vit" else "text"}
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


def optimizer(spec: tuple[str, dict[str, Any]], options: argparse.Namespace) -> Optimizer:
    """Return the optimizer that the user named: its settings, then --lr, then where the lab starts with it."""
    from ademamix.lab.comparison.defaults import STARTING_POINTS
    from ademamix.lab.config import Optimizer

    name, settings = spec
    if name not in STARTING_POINTS:
        raise Complaint(f"there is no optimizer {name!r}: choose one of {', '.join(STARTING_POINTS)}")
    start = STARTING_POINTS[name]
    fields = {"lr": options.lr or start.lr, **start.settings, **settings}
    return Optimizer(name=start.name, lr=fields.pop("lr"), settings=fields)


@contextlib.contextmanager
def complaints_of_the_lab() -> Iterator[None]:
    """Turn the errors that a user can do something about into complaints."""
    from pydantic import ValidationError

    from ademamix.lab.config import ConfigError
    from ademamix.lab.data import DataError
    from ademamix.lab.runs.interrupt import EXIT_CODE, Interrupted
    from ademamix.lab.runs.record import RunError

    try:
        yield
    except ValidationError as error:
        from ademamix.lab.config_mistakes import explain

        raise Complaint(explain(error)) from None
    except (ConfigError, DataError, RunError) as error:
        raise Complaint(str(error)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Complaint(
            f"cannot read or write {error.filename or 'a file'}: {error.strerror or error}. Runs are intact: mend "
            "that, then give the same command again, and it continues"
        ) from None
    except Interrupted as stopped:
        with contextlib.suppress(OSError):  # who reads stderr may have been stopped by the same Ctrl-C
            print(f"\nademamix: {stopped}", file=sys.stderr)
        sys.exit(EXIT_CODE)
