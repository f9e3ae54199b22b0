"""`ademamix train`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ademamix.cli.arguments import Commands, UsageError, name_and_settings, seed
from ademamix.cli.run_options import (
    RUN_OPTIONS,
    add_execution_options,
    add_run_options,
    chosen_optimizer,
    execution_options,
    lab_errors_explained,
    lists,
    with_options,
)
from ademamix.cli.together import EXPLAINED, add_shard
from ademamix.lab.distribution import process_group

if TYPE_CHECKING:
    from ademamix.lab.config import Run

INTRODUCTION = (
    """\
Train one model.

A run is kept in DIR/runs/KEY, where KEY is the hash of everything that decides its numbers. The folder has config.json,
metrics.jsonl, environment.json and tensorboard/; checkpoints/ while the run lasts; and at its end result.json and
model/, a Hugging Face checkpoint. If it is stopped at any moment, by Ctrl-C or kill -9, the same command continues from
the last checkpoint and ends with the same bits.

"""
    + EXPLAINED
)

EPILOG = """\
examples:
  ademamix train --optimizer ademamix:alpha=8 --steps 5k
  ademamix train --model vit-tiny --optimizer adamw:lr=1e-3 --steps 2k --batch 64
  ademamix train --config out/runs/0123456789abcdef/config.json
  torchrun --nproc-per-node 2 -m ademamix train --steps 5k
  torchrun --nproc-per-node 8 --max-restarts 3 -m ademamix train --model gpt-1.3b --batch 128 --device cuda --shard
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "train", help="one training run: resumable, recorded", description=INTRODUCTION, epilog=EPILOG
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a run's config.json, in place of --optimizer, --seed and the options of the run (default: those)",
    )
    parser.add_argument(
        "--optimizer",
        type=name_and_settings,
        metavar="OPTIMIZER",
        help="see above (default: ademamix)",
    )
    parser.add_argument("--seed", type=seed, help="of parameters, order of the data and dropout (default: 0)")
    add_run_options(parser)
    add_execution_options(parser, threads=max(1, (os.cpu_count() or 1) // process_group.processes_here()))
    add_shard(parser)
    parser.lists = lists
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import torch

    from ademamix.lab.execution import in_turn
    from ademamix.lab.execution.display import Display
    from ademamix.lab.execution.runner import Status, kept_results
    from ademamix.lab.optimizers import transitions

    torch.set_num_threads(options.threads)
    with lab_errors_explained():
        config = _config(options)
        how = execution_options(options)
        transitions.check(config)
        status, name = Status(config), config.optimizer.name
        before = " (trained before)" if kept_results({name: config}, how) else ""
        with Display(f"Run {config.key} in {how.runs}: {config.steps:,} steps") as display:
            status.result = in_turn.carried_out(status, how, lambda: display({name: status}))
            display({name: status})
    result = status.result
    end = "diverged" if result.diverged else f"validation loss {result.validation_loss:.4f}"
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.1%}"
    print(f"{end}{accuracy} after {result.steps:,} steps; kept in {how.runs / config.key}{before}")
    return 0


def _config(options: argparse.Namespace) -> Run:
    from ademamix.lab.comparison.defaults import DEFAULT
    from ademamix.lab.config import Run, read

    if options.config is None:
        chosen = chosen_optimizer(options.optimizer or ("ademamix", {}), options)
        return with_options(DEFAULT, options).model_copy(update={"optimizer": chosen, "seed": options.seed or 0})
    if given := [name for name in ("optimizer", "seed", *RUN_OPTIONS) if getattr(options, name) is not None]:
        spelled = ", ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(
            f"--config states the whole run, so {spelled} cannot be given beside it: change a copy of the file"
        )
    try:
        return read(Run, Path(options.config).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read {options.config!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {options.config!r}: it is not UTF-8, as a run's config.json is") from None
