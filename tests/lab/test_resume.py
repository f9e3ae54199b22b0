"""A run that was killed continues and ends with the same bits."""

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
from ademamix.lab.execution.interrupt import Interrupted
from ademamix.lab.runs.record import RunFolder
from ademamix.lab.train import Options, Progress, train
from lab_runs import DELICATE, TINY, changed, kill, outcome, process

KILLS = 20
WHILE_SAVING = 8  # of these, so many while a checkpoint is being written
WHILE_FINISHING = 2  # and so many while the model is, after the last step
ATTEMPTS = 20  # to kill at such a moment


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, dict[str, object]]:
    out = tmp_path_factory.mktemp("whole")
    run = process(DELICATE, out, save_every=float("inf"))
    run.join()
    assert run.exitcode == 0
    return outcome(DELICATE, out)


def _reached(steps: int, run: ForkServerProcess, out: Path) -> bool:
    """Wait until a step is recorded, or until the process has ended."""
    folder = RunFolder(out / "runs", DELICATE)
    while run.is_alive():
        if any(row["step"] >= steps for row in folder.metrics()):
            return True
        time.sleep(0.001)
    return False


def _frozen_with(part: str, run: ForkServerProcess, out: Path) -> bool:
    """Halt the process at a moment at which a file, or the folder of a model, is being written."""
    path = RunFolder(out / "runs", DELICATE).path / part
    assert run.pid is not None
    while run.is_alive():
        if path.exists():
            os.kill(run.pid, signal.SIGSTOP)
            time.sleep(0.02)
            if path.exists():
                return True
            os.kill(run.pid, signal.SIGCONT)
    return False


def _killed(trial: int, out: Path, save_every: float) -> bool:
    """Kill a run at the moment that the trial is for; on a busy machine that may be missed."""
    moment = random.Random(trial)
    run = process(DELICATE, out, save_every)
    if not _reached(moment.randrange(1, 80), run, out):
        return False
    if trial < WHILE_SAVING:
        caught = _frozen_with("checkpoints/.checkpoint.part", run, out)
    elif trial < WHILE_SAVING + WHILE_FINISHING:
        caught = _frozen_with(".model.part", run, out)
    else:
        time.sleep(moment.random() * 0.05)
        caught = True
    kill(run)
    return caught and RunFolder(out / "runs", DELICATE).result() is None


@pytest.mark.parametrize("trial", range(KILLS))
def test_killed_at_a_random_moment(
    trial: int, tmp_path: Path, uninterrupted: tuple[bytes, bytes, dict[str, object]]
) -> None:
    save_every = 0.0 if trial < WHILE_SAVING else 0.02
    out = next(out for out in map(tmp_path.joinpath, map(str, range(ATTEMPTS))) if _killed(trial, out, save_every))
    resumed = process(DELICATE, out, save_every)
    resumed.join()
    assert resumed.exitcode == 0
    assert outcome(DELICATE, out) == uninterrupted


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
