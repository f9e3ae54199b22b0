"""Ctrl-C, and the polite kill of a cluster: save and stop after this step."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_CODE = 130  # of a process that was asked to stop and has saved; a shell's for Ctrl-C


class Interrupted(Exception):
    """Runs were asked to stop; the message says whether there was anything to save."""

    def __init__(self, *, saved: bool) -> None:
        super().__init__(
            "stopped, and saved. The same command continues from here."
            if saved
            else "stopped. Nothing had been trained yet, so there is nothing to save: the same command starts again."
        )


@contextlib.contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C, and the first polite kill, into an event; the second one acts as usual.

    A signal that is ignored stays ignored: a shell ignores SIGINT for a job in the background, which should survive a
    Ctrl-C that is meant for another. SIGTERM stops such a job.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[number])  # only this one: a cluster's signal and Ctrl-C may come together
        with contextlib.suppress(OSError):  # the reader of stderr may have been stopped by the same Ctrl-C
            print("\nademamix: stopping", file=sys.stderr)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
