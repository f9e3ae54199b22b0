"""`ademamix bench`."""

from __future__ import annotations

import argparse
import importlib.util

from ademamix.cli.arguments import Commands, UsageError, add_choice, add_flag, add_value, file_to_write, small_count
from ademamix.lab.bench import rows

DESCRIPTION = """\
Time an optimizer step, and count the bytes of its state.

Times are ratios to torch's AdamW of the same kind: 1.30 is a step that takes 30% longer. The optimizers take turns in
one process, each counts with its fastest step, and the median over several fresh processes is reported.
Other AdEMAMix implementations and low-bit AdamWs are in the table if they are installed (`make bench` does that), and
so is DeepSpeed's CPUAdam (`make bench-deepspeed`). For optimizers that pass once over memory, the table has the bytes
that they move, their speed, and the speed of a loop over the same arrays that computes nothing.

scenarios:
  gpt2     the 148 parameters of GPT-2 124M; needs 12 GB of memory
  large    one tensor of 32M elements
  cache    one tensor of 1M elements on one thread, which stays in the cache: what the arithmetic costs
  small    200 tensors of 1k elements, where overhead counts most
  optax    a jitted step of ours in JAX, against optax.adamw and optax.contrib.ademamix; 36M parameters
  import   `import ademamix`, which must load no framework

Everything takes about an hour on two cores, ours and torch's alone ten minutes. Leave the machine idle meanwhile: a
step with several threads waits for the slowest. The exit code is 0 whether or not targets are met; it is 1 if
something of ours or torch's could not be measured.

examples:
  ademamix bench --only small --no-peers
  ademamix bench --threads 1 --json pytorch_steps.json
  ademamix bench --lab
"""


def add(commands: Commands) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "bench",
        help="step time and state memory of our paths and of others, as ratios",
        description=DESCRIPTION,
    )
    add_flag(parser, "--quick", "tiny tensors, one process: only to check that it works (default: off)")
    scenarios = f"one of {', '.join(rows.NAMES)} (default: all)"
    add_choice(parser, "--only", rows.NAMES, "SCENARIO", scenarios)
    add_flag(parser, "--lab", "only the time that the lab's training loop adds to a bare one (default: off)")
    add_flag(parser, "--no-peers", "measure only ours and torch's (default: others as well)")
    peers = f"only this one, with what it is compared with: {', '.join(rows.PEERS)} (default: all)"
    add_choice(parser, "--peer", rows.PEERS, "PACKAGE", peers)
    add_value(parser, "--processes", small_count, "N", "fresh processes per scenario (default: 5)")
    add_value(parser, "--threads", small_count, "N", "threads (default: torch's own choice)")
    explanation = "write all figures and the environment to this file (default: none)"
    add_value(parser, "--json", file_to_write, "FILE", explanation)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.lab:
        for name in ("only", "no_peers", "peer", "processes", "threads", "json"):
            if getattr(options, name):
                raise UsageError(
                    f"--lab measures the training loop alone: --{name.replace('_', '-')} does not go with it"
                )
        from ademamix.lab.bench import training_loop

        print("\n".join(training_loop.table(training_loop.run(quick=options.quick))))
        return 0
    if options.peer and options.no_peers:
        raise UsageError("--peer and --no-peers exclude each other")
    if options.peer and importlib.util.find_spec(options.peer) is None:
        raise UsageError(f"--peer: {options.peer} is not installed")
    from ademamix.lab.bench import pytorch_steps

    return pytorch_steps.run(
        quick=options.quick,
        processes=options.processes,
        threads=options.threads,
        only=options.only,
        peers=[options.peer] if options.peer else [] if options.no_peers else rows.PEERS,
        with_own=not options.peer,
        json_file=options.json,
    )
