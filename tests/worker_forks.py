"""Processes that start at once: forks of one that has all modules loaded, in place of new interpreters.

A new interpreter takes five seconds to load torch and transformers. `serve` loads them once, and forks for each
`start`, which hands over its files and waits: what the lab starts, and what carries out the runs, stays what it is.
A fork carries out runs, or a command from its beginning to its end. Signals do not reach it through `start`; `command`
is for tests that send some: a command in a new interpreter, of whose runs forks take care.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys


def forked(path: str, work: str, arguments: str) -> list[str]:
    """Return a command line that has a fork work: on "runs", with the arguments of a worker, or on a "command"."""
    return [sys.executable, "-I", "-S", __file__, "start", path, work, arguments]


def serve(path: str) -> None:
    """Fork a process for each that connects, until the input ends."""
    for module in ("ademamix.lab.train", "transformers.models.gpt2.modeling_gpt2"):
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        selector.register(server, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        while all(key.fileobj is server for key, _ in selector.select()):
            connection, _ = server.accept()
            with connection:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, before)
                    server.close()
                    _carry_out(connection)


def _carry_out(connection: socket.socket) -> None:
    """Be the process that has connected, to its end."""
    from ademamix.cli import main
    from ademamix.lab.execution.worker import begin

    os.setsid()
    request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    told = json.loads(request)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    code = 1
    try:
        if told["work"] == "runs":
            begin(told["arguments"])
            code = 0
        else:
            code = main(json.loads(told["arguments"]))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.flush()
        connection.send(bytes([code]))
        os._exit(code)


def start(path: str, work: str, arguments: str) -> int:
    """Have a fork work with the files, folder and environment of this process; return its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        told = {"folder": os.getcwd(), "environment": dict(os.environ), "work": work, "arguments": arguments}
        socket.send_fds(connection, [json.dumps(told).encode()], [0, 1, 2])
        for number in (0, 1, 2):
            os.close(number)  # they are the fork's now: its input ends, and its output has ended, when they say so
        answer = connection.recv(1)
        return answer[0] if answer else 1


def command(path: str, *arguments: str) -> int:
    """Carry out a command here, and its runs in forks; return its exit code."""
    from ademamix.cli import main
    from ademamix.lab.execution import worker

    own = worker.command
    worker.command = lambda options, *, threads: forked(path, "runs", own(options, threads=threads)[-1])
    return main(arguments)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    elif sys.argv[1] == "start":
        os._exit(start(*sys.argv[2:]))
    else:
        sys.exit(command(*sys.argv[2:]))
