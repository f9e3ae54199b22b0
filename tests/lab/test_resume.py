"""A run that was killed goes on and ends with the same bits."""

from __future__ import annotations

import os
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from ademamix.lab.config import Optimizer, Run
from ademamix.lab.runs.interrupt import Interrupted
from ademamix.lab.runs.record import RunFolder
from ademamix.lab.train import Options, Progress, train
from lab_runs import DELICATE, TINY, changed, kill, outcome, process

KILLS = 20
WHILE_SAVING = 8  # of these, so many while a checkpoint is being written
WHILE_FINISHING = 2  # and so many while the model is, after the last step


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, dict[str, object]]:
    out = tmp_path_factory.mktemp("whole")
    run = process(DELICATE, out, save_every=float("inf"))
    run.join()
    assert run.exitcode == 0
    return outcome(DELICATE, out)


def _wait_for_steps(run: ForkServerProcess, out: Path, steps: int) -> None:
    folder = RunFolder(out / "runs", DELICATE)
    while not any(row["step"] >= steps for row in folder.metrics()):
        assert run.is_alive()
        time.sleep(0.001)


def _freeze_while_there_is(part: str, run: ForkServerProcess, out: Path) -> None:
    """Halt the process at a moment at which a file, or the folder of a model, is being written."""
    path = RunFolder(out / "runs", DELICATE).path / part
    assert run.pid is not None
    while True:
        assert run.is_alive()
        if path.exists():
            os.kill(run.pid, signal.SIGSTOP)
            time.sleep(0.02)
            if path.exists():
                return
            os.kill(run.pid, signal.SIGCONT)


@pytest.mark.parametrize("trial", range(KILLS))
def test_killed_at_a_random_moment(
    trial: int, tmp_path: Path, uninterrupted: tuple[bytes, bytes, dict[str, object]]
) -> None:
    moment = random.Random(trial)
    save_every = 0.0 if trial < WHILE_SAVING else 0.02
    run = process(DELICATE, tmp_path, save_every)
    _wait_for_steps(run, tmp_path, moment.randrange(1, 180))
    if trial < WHILE_SAVING:
        _freeze_while_there_is("checkpoints/.checkpoint.part", run, tmp_path)
    elif trial < WHILE_SAVING + WHILE_FINISHING:
        _freeze_while_there_is(".model.part", run, tmp_path)
    else:
        time.sleep(moment.random() * 0.05)
    kill(run)
    assert RunFolder(tmp_path / "runs", DELICATE).result() is None, "it was killed too late"
    resumed = process(DELICATE, tmp_path, save_every)
    resumed.join()
    assert resumed.exitcode == 0
    assert outcome(DELICATE, tmp_path) == uninterrupted


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    train(TINY, Options(whole))
    _stop_at(TINY, torn, 16, save_every=0.0)
    newest = max((torn / "runs" / TINY.key / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="is damaged"):
        train(TINY, Options(torn))
    assert outcome(TINY, torn) == outcome(TINY, whole)


@pytest.mark.parametrize("stop_at", [8, 12, 16])
@pytest.mark.parametrize(("old", "new"), [("adamw", "ademamix"), ("ademamix", "adamw")])
def test_a_switch_survives_a_stop_before_at_and_after_it(tmp_path: Path, stop_at: int, old: Any, new: Any) -> None:
    run = changed(TINY, optimizer=Optimizer(name=old, lr=1e-2)).then(12, Optimizer(name=new, lr=5e-3))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(run, Options(whole))
    _stop_at(run, stopped, stop_at)
    train(run, Options(stopped))
    assert outcome(run, stopped) == outcome(run, whole)


@pytest.mark.parametrize("stop_at", [8, 12, 16])
def test_a_probe_that_remembers_survives_a_stop(tmp_path: Path, stop_at: int) -> None:
    run = changed(TINY, probes=[{"kind": "update-norms", "span": 6}])
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(run, Options(whole))
    _stop_at(run, stopped, stop_at)
    train(run, Options(stopped))
    assert outcome(run, stopped) == outcome(run, whole)


def _stop_at(run: Run, out: Path, step: int, save_every: float = float("inf")) -> None:
    """Ask the run to stop after a step, as Ctrl-C does."""

    def report(progress: Progress) -> None:
        if progress.step == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped, and saved"):
        train(run, Options(out, save_every=save_every, save_share=1.0), report=report)
