"""The command line: `ademamix --help`.

Each command is a module: `add(commands)` describes it, and only running it loads a framework.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

import ademamix
from ademamix.cli import bench, compare, convert, inspect, plan, report, reproduce, runs, sweep, together, train
from ademamix.cli.arguments import Parser, UsageError
from ademamix.lab.distribution import process_group
from ademamix.lab.execution.interrupt import EXIT_CODE

MODULES_OF_EXTRAS = {
    "lab": {
        "datasets", "filelock", "jinja2", "kornia", "matplotlib", "numpy", "optuna", "PIL", "pydantic", "rich",
        "sentencepiece", "sklearn", "sqlalchemy", "tensorboard", "torch", "transformers",
    },
    "cluster": {"ray"},
}  # fmt: skip


def parser() -> Parser:
    """Return the parser of the command line."""
    reader = Parser(
        prog="ademamix",
        description="AdEMAMix: AdamW with a second, slow average of the gradients.",
        epilog="`ademamix COMMAND --help` explains a command, with examples.\nTo begin: ademamix compare",
    )
    reader.add_argument("--version", action="version", version=f"ademamix {ademamix.__version__}")
    commands = reader.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (compare, train, sweep, reproduce, report, runs, plan, convert, inspect, bench):
        command.add(commands)
    return reader


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if process_group.of_torchrun().count > 1:
        together.carry_out(lambda: _run(arguments))
    return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    try:
        together.check(options)
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except UsageError as error:
        _flush_or_drop()
        return _fail(str(error))
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print(
                "\nademamix: stopped. The same command continues from the last checkpoints, if any.",
                file=sys.stderr,
            )
        return EXIT_CODE
    except BrokenPipeError:  # whoever read the output has had enough of it
        _flush_or_drop()
        return 128 + signal.SIGPIPE
    except OSError as error:
        what = error.filename or "a file" if _flush_or_drop() else "the output"
        return _fail(f"cannot read or write {what}: {error.strerror or error}")
    except ModuleNotFoundError as error:
        for extra, modules in MODULES_OF_EXTRAS.items():
            if error.name is not None and error.name.split(".")[0] in modules:
                return _fail(
                    f"{options.command} needs {error.name}, which is not installed: pip install 'ademamix[{extra}]'"
                )
        raise


def _flush_or_drop() -> bool:
    """Write the rest of the output, and say whether that was possible; if not, drop it, or Python complains at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _fail(message: str) -> int:
    print(f"ademamix: error: {message}", file=sys.stderr)
    return 2
