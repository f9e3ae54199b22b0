"""Runs in processes of this machine, each of which carries out one after another (`worker`)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ademamix.lab.config import Run
from ademamix.lab.execution import worker
from ademamix.lab.execution.carriers import Event, Events
from ademamix.lab.execution.interrupt import EXIT_CODE
from ademamix.lab.execution.options import Options, devices_of, processes_on


@dataclass(frozen=True)
class LocalProcesses:
    """Carries out runs in processes of this machine; the default."""

    folder: Path | None = None
    """The working directory of the processes, unless it is that of this one."""

    def at_once(self, device: str, threads: int) -> int:
        """Return one for each GPU, or two on a CPU."""
        return processes_on(device)

    def devices(self, device: str) -> list[str]:
        """Return every GPU for "cuda", else the one device that is named."""
        return devices_of(device)

    @contextlib.contextmanager
    def started(self, options: Options, threads: int, events: Events) -> Iterator[_Process]:
        """Start a process."""
        pipe = subprocess.PIPE
        with (
            tempfile.TemporaryFile("w+") as complaints,  # a pipe that nobody reads would fill up and block the process
            subprocess.Popen(
                worker.command(options, threads=threads),
                stdin=pipe,
                stdout=pipe,
                stderr=complaints,
                text=True,
                cwd=self.folder,
                start_new_session=True,  # so that Ctrl-C reaches it once, through its input
            ) as process,
        ):
            begun = _Process(process, complaints)
            reader = threading.Thread(target=begun.forward, args=(events,))
            reader.start()
            try:
                yield begun
            finally:
                begun.dismiss()
                try:
                    reader.join()  # before its output is closed, which would wait for the reader and ignore signals
                except KeyboardInterrupt:  # the second one: whoever asks twice does not want to wait
                    process.kill()
                    reader.join()
                    raise


@dataclass(eq=False)
class _Process:
    """A process, the file for its stderr, and the name of the run that it carries out."""

    process: subprocess.Popen[str]
    complaints: IO[str]
    run: str | None = None

    def begin(self, name: str, config: Run, keep_at: Sequence[int]) -> None:
        """Write the run to its input."""
        assert self.process.stdin is not None
        self.run = name
        with contextlib.suppress(BrokenPipeError):  # it has died: the end of its output says so
            task = {"run": config.model_dump(mode="json"), "keep_at": keep_at}
            self.process.stdin.write(json.dumps(task) + "\n")  # ASCII, for any locale
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """End its input: it saves its run, and ends."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def forward(self, events: Events) -> None:
        """Pass on what it writes, and at last how it ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # else it was killed while writing this
                events.put(Event(self, json.loads(line)))
        code = self.process.wait()
        end: dict[str, Any] = {"stopped": True} if code == EXIT_CODE else {"failed": self._explained(code)}
        events.put(Event(self, {**end, "gone": True}))

    def _explained(self, code: int) -> str:
        self.complaints.seek(0)
        said = self.complaints.read().strip()
        end = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        last = f" It said:\n{said}" if said else ""
        return f"its process {end}. The same command continues from its last checkpoint.{last}"
