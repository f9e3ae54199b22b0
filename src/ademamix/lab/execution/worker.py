"""A process that carries out runs for another one, which is `runner`.

It gets runs on its input, one per line: the config, and after which steps to keep the state for other runs. On its
output it reports, in JSON lines, how far it is and how each run ended. When its input ends, as it also does when the
other process is killed, it saves and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ademamix.lab.config import ConfigError, Run, read
from ademamix.lab.data import DataError
from ademamix.lab.execution import notices
from ademamix.lab.execution.interrupt import EXIT_CODE, Interrupted
from ademamix.lab.execution.options import Options
from ademamix.lab.runs.record import RunError

START = """\
import sys
sys.path = [folder for folder in sys.path if folder]
from ademamix.lab.execution.worker import begin
begin(sys.argv[1])
"""
"""Without the working directory, whose tokenize.py or random.py would be taken for Python's own. From version 3.11 on,
Python has an option for that, -P."""


def command(options: Options, *, threads: int) -> list[str]:
    """Return the command that starts the process."""
    arguments = {**asdict(options), "out": str(options.out), "threads": threads}
    return [sys.executable, "-c", START, json.dumps(arguments)]


def main(arguments: dict[str, Any]) -> None:
    """Carry out runs until the input ends."""
    import torch  # here, so that asking for the command does not wait for it

    from ademamix.lab.train import train

    torch.set_num_threads(arguments.pop("threads"))
    options = Options(**{**arguments, "out": Path(arguments["out"])})
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(lines,), daemon=True).start()
    with _messages() as tell:
        while (line := lines.get()) is not None:
            try:
                with notices.told(lambda text: tell({"notice": text})):
                    task = json.loads(line)
                    train(
                        read(Run, json.dumps(task["run"])),
                        options,
                        keep_at=task["keep_at"],
                        report=lambda progress: tell({"progress": progress._asdict()}),
                        on_wait=lambda: tell({"waits": True}),
                        on_read=lambda count, wanted: tell({"read": [count, wanted]}),
                    )
            except (ConfigError, DataError, RunError) as error:
                tell({"failed": str(error)})
            else:
                tell({"finished": True})


def _read_input(lines: queue.SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)  # enough between two runs; during one, a signal is needed
    os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def _messages() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Give a function that writes to the output; anything that others print goes to stderr meanwhile."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as output:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

        def tell(message: dict[str, Any]) -> None:
            with contextlib.suppress(BrokenPipeError):  # nobody listens: the end of the input will stop the run
                print(json.dumps(message), file=output, flush=True)

        yield tell


def begin(arguments: str) -> None:
    """Do the work of a process that :func:`command` starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # and Ray has it blocked
    try:
        main(json.loads(arguments))
    except (Interrupted, KeyboardInterrupt):
        sys.exit(EXIT_CODE)
