"""A process that carries out runs for another one, which is `runner`.

It gets the configs of runs on its input, a line each, and tells on its output, in JSON lines, how far it is and how
each run ended. When its input ends, which happens also when the other process is killed, it saves and stops.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from ademamix.lab.config import ConfigError, Run, read
from ademamix.lab.data import DataError
from ademamix.lab.interrupt import EXIT_CODE, Interrupted
from ademamix.lab.record import RunError
from ademamix.lab.train import Options, train


def command(options: Options, *, threads: int) -> list[str]:
    """Return the command that starts the process."""
    arguments = {
        "out": str(options.out),
        "device": options.device,
        "save_every": options.save_every,
        "wandb": options.wandb,
        "threads": threads,
    }
    return [sys.executable, "-m", "ademamix.lab.worker", json.dumps(arguments)]


def main(arguments: dict[str, Any]) -> None:
    """Carry out runs until the input ends."""
    torch.set_num_threads(arguments.pop("threads"))
    options = Options(**{**arguments, "out": Path(arguments["out"])})
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_input, args=(lines,), daemon=True).start()
    while True:
        config = read(Run, lines.get())
        try:
            train(
                config,
                options,
                report=lambda progress: _tell({"progress": progress._asdict()}),
                on_wait=lambda: _tell({"waits": True}),
            )
        except (ConfigError, DataError, RunError) as error:
            _tell({"failed": str(error)})
        else:
            _tell({"finished": True})


def _read_input(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os.kill(os.getpid(), signal.SIGINT)


def _tell(message: dict[str, Any]) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:  # nobody listens any more; the end of the input will stop the run
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except (Interrupted, KeyboardInterrupt):
        sys.exit(EXIT_CODE)
