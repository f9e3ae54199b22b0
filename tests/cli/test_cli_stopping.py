"""Ctrl-C, and kills of every kind, of a command that trains."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import worker_forks
from lab_runs import SMALL, in_training
from lab_text import PATIENCE

AS_USERS_DO = [sys.executable, "-m", "ademamix"]


@pytest.fixture
def with_forks(fork_server: str) -> list[str]:
    """Return the beginning of a command whose runs are carried out by forks, which start at once."""
    return [sys.executable, worker_forks.__file__, "command", fork_server]


@contextlib.contextmanager
def _begun(out: Path, program: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Give a comparison of 100,000 steps that has just begun to load."""
    command = [*program, "compare", *SMALL, "--steps", "100k", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        process.kill()


@contextlib.contextmanager
def _in_training(out: Path, program: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Give a comparison with both of its first runs in training."""
    with _begun(out, program) as process:
        while len(in_training(out)) < 2:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.1)
        yield process


def _held(folder: Path) -> bool:
    """Say whether a process holds the folder."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / "lock", timeout=0):
            return False
    except Timeout:
        return True


def _saved_and_free(out: Path) -> bool:
    folders = list((out / "runs").iterdir())
    return len(folders) == 2 and all(list(folder.glob("checkpoints/*.pt")) and not _held(folder) for folder in folders)


def test_ctrl_c_saves_and_tells_how_to_go_on(tmp_path: Path, with_forks: list[str]) -> None:
    with _in_training(tmp_path, with_forks) as comparison:
        comparison.send_signal(signal.SIGINT)
        _, told = comparison.communicate(timeout=PATIENCE)
    assert comparison.returncode == 130
    assert "stopped, and saved. The same command continues from here." in told
    assert "Traceback" not in told
    assert _saved_and_free(tmp_path)


def test_ctrl_c_before_the_first_step(tmp_path: Path) -> None:
    with _begun(tmp_path, AS_USERS_DO) as comparison:
        assert comparison.stderr is not None
        assert comparison.stderr.readline().startswith("3 runs of 100,000 to 200,000 steps")
        comparison.send_signal(signal.SIGINT)
        _, told = comparison.communicate(timeout=PATIENCE)
    assert comparison.returncode == 130
    assert "saved" not in told
    assert "same command" in told
    assert "Traceback" not in told
    assert not list(tmp_path.glob("runs/*/checkpoints/*"))


def test_a_run_whose_process_is_killed_ends_the_others_saved(tmp_path: Path) -> None:
    with _in_training(tmp_path, AS_USERS_DO) as comparison:
        first, _ = Path(f"/proc/{comparison.pid}/task/{comparison.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGKILL)
        _, told = comparison.communicate(timeout=PATIENCE)
    assert comparison.returncode == 2
    assert "its process was killed by signal 9. The same command continues" in told
    assert not any(_held(folder) for folder in (tmp_path / "runs").iterdir())
    assert len(list(tmp_path.glob("runs/*/checkpoints/*.pt"))) >= 1


def test_runs_stop_when_what_started_them_is_killed(tmp_path: Path, with_forks: list[str]) -> None:
    with _in_training(tmp_path, with_forks) as comparison:
        comparison.kill()
        comparison.wait()
    end = time.monotonic() + PATIENCE
    while not _saved_and_free(tmp_path):
        assert time.monotonic() < end, "the runs go on without their parent"
        time.sleep(0.1)
