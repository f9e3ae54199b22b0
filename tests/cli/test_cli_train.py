"""`ademamix train`, as a user calls it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import worker_forks
from ademamix.cli import main
from ademamix.lab.config import Optimizer
from ademamix.lab.runs.record import open_folder
from lab_runs import SMALL


@pytest.fixture
def train_20_steps(tmp_path: Path, fork_server: str) -> Callable[..., list[str]]:
    """Return what makes a command line of options: the command is carried out by a fork, which starts at once."""

    def command(*options: str) -> list[str]:
        arguments = ["train", *SMALL, "--steps", "20", "--out", str(tmp_path), *options]
        return worker_forks.forked(fork_server, "command", json.dumps(arguments))

    return command


def test_train_tells_where_it_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "train",
        *SMALL,
        "--steps",
        "20",
        "--optimizer",
        "lion:lr=1e-3",
        "--out",
        str(tmp_path),
        "--threads",
        "1",
    ]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "validation loss" in shown.out
    (folder,) = (tmp_path / "runs").iterdir()
    assert str(folder) in shown.out
    assert open_folder(folder).config.optimizer == Optimizer(name="lion", lr=1e-3, settings={"weight_decay": 0.1})
    assert main(["train", "--config", str(folder / "config.json"), "--out", str(tmp_path)]) == 0
    assert "trained before" in capsys.readouterr().out


def test_no_clipping(tmp_path: Path) -> None:
    assert main(["train", *SMALL, "--steps", "2", "--clip", "0", "--threads", "1", "--out", str(tmp_path)]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert open_folder(folder).config.clip is None


def test_results_may_not_be_written_into_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("one two three " * 200)
    assert main(["train", *SMALL, "--data", ".", "--steps", "2"]) == 2
    assert "'.' holds the folder out/data, to which results are written" in capsys.readouterr().err


def test_reading_is_shown_and_advice_is_a_plain_line(tmp_path: Path) -> None:
    optimizer = "ademamix:beta3=0.9999"
    command = [sys.executable, "-m", "ademamix", "train", *SMALL, "--steps", "20", "--optimizer", optimizer]
    ended = subprocess.run([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, check=True)
    assert re.search(r"\nademamix: step 0 of 20, reads its text: [0-9,]+ tokens\n", ended.stderr)
    assert ended.stderr.count("ademamix: beta3 = 0.9999 ") == 1
    assert "Warning" not in ended.stderr


def test_a_terminal_gets_a_bar(train_20_steps: Callable[..., list[str]]) -> None:
    here, there = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(train_20_steps(), stderr=there, stdout=subprocess.DEVNULL, env=environment) as process:
        os.close(there)
        shown = b""
        with contextlib.suppress(OSError):  # how reading a terminal that nobody writes to any more ends
            while part := os.read(here, 4096):
                shown += part
    os.close(here)
    assert process.returncode == 0
    assert any(b"20/20" in line and b"finished, validation" in line for line in shown.splitlines())


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_who_watches_may_leave(closed: str, tmp_path: Path, train_20_steps: Callable[..., list[str]]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    streams: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writing}
    ended = subprocess.run(train_20_steps(), stdout=streams["stdout"], stderr=streams["stderr"], text=True)
    os.close(writing)
    assert ended.returncode == {"stdout": 128 + signal.SIGPIPE, "stderr": 0}[closed]
    assert "Traceback" not in (ended.stderr or "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert open_folder(folder).result() is not None


def test_weights_and_biases_gets_all_rows(tmp_path: Path, train_20_steps: Callable[..., list[str]]) -> None:
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    subprocess.run(train_20_steps("--wandb", "of-a-test"), env=environment, check=True)
    (folder,) = (tmp_path / "runs").iterdir()
    (kept,) = folder.glob(f"wandb/offline-run-*/run-{folder.name}.wandb")
    rows = [row for row in open_folder(folder).metrics() if "validation_loss" in row]
    content = kept.read_bytes()
    assert all(str(row["validation_loss"]).encode() in content for row in rows)
