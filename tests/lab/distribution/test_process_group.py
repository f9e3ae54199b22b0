"""Processes of a group end with what they have written, and before their interpreter does."""

from __future__ import annotations

import subprocess
import sys


def test_leaving_flushes_and_does_not_end_the_interpreter() -> None:
    code = """
        import atexit
        from ademamix.lab.distribution import process_group

        atexit.register(print, "the end of the interpreter")
        print("written", end="")
        process_group.leave(3)
    """
    command = [sys.executable, "-c", "\n".join(map(str.strip, code.splitlines()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "written", "")
