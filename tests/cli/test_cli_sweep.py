"""`ademamix sweep` as a user calls it, on one machine and with a database that workers share."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from ademamix.cli import main
from ademamix.lab.sweep.presets import PRESETS
from lab_runs import SMALL, in_training
from lab_text import PATIENCE

SWEEP = ["sweep", "ademamix", "lr=1e-3,1e-2", *SMALL]


def outcome(out: Path) -> dict[str, Any]:
    (file,) = out.glob("sweep/*/sweep.json")
    return dict(json.loads(file.read_text()))


@pytest.mark.usefixtures("fork_server", "quick_workers")
def test_a_sweep_is_shown_and_shown_again_without_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*SWEEP, "--steps", "20", "--out", str(tmp_path), "--study", "rates"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "2 trials of AdEMAMix, seed 0: 2 finished. Study: rates." in first
    assert "Best: trial " in first
    for name in ("report.txt", "sweep.json", "sweep.png", "sweep.svg"):
        assert str(tmp_path / "sweep" / "rates" / name) in first
    results = {file: file.stat().st_mtime_ns for file in tmp_path.glob("runs/*/result.json")}
    assert len(results) == 2
    assert main(command) == 0
    assert capsys.readouterr().out == first
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("runs/*/result.json")} == results


def test_a_dry_run_counts_and_estimates_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "alpha=2,4,8", "--steps", "100", "--out", str(tmp_path), "--dry-run", "--processes", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "6 trials of 100 steps, grid: lr=0.001,0.01 alpha=2,4,8." in said
    assert "A trial takes about 0:0" in said
    assert "all of them, 2 at a time, about 0:" in said
    assert not list((tmp_path / "runs").iterdir())
    assert not (tmp_path / "sweep").exists()


def test_a_dry_run_of_a_preset_is_the_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--preset", "paper-110m", "--dry-run", "--out", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "21 trials of 256,000 steps, grid: beta3=0.999,0.9999,0.99999 alpha=2,4,6,8,10,15,20." in said
    assert "ademamix lr=0.001 weight_decay=0.1" in said
    assert "How long a trial takes is not known: its data, hub:redpajama-v2, would have to be downloaded first." in said


def test_settings_and_options_replace_those_of_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = [*SMALL, "--steps", "50", "--dry-run", "--out", str(tmp_path)]
    assert main(["sweep", "adamw:weight_decay=0", "clip=none,1", "--preset", "paper-330m", *here]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "6 trials of 50 steps, grid: lr=0.001,0.0005,0.0001 clip=none,1." in said
    assert "adamw lr=0.0005 weight_decay=0 betas=[0.9, 0.999]" in said


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "--list-presets"])
    assert ended.value.code == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PRESETS)


@pytest.mark.parametrize("name", ["optuna", "sqlalchemy"])
def test_a_missing_package_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert main([*SWEEP, "--out", str(tmp_path)]) == 2
    assert f"sweep needs {name}, which is not installed: pip install 'ademamix[lab]'" in capsys.readouterr().err


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.1)


@contextlib.contextmanager
def worker(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ademamix", *SWEEP, "--processes", "1", *options]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_saves_and_queues_the_trial_again(tmp_path: Path) -> None:
    with worker("--steps", "100k", "--out", str(tmp_path)) as begun:
        wait_until(lambda: in_training(tmp_path), begun)
        begun.send_signal(signal.SIGINT)
        _, told = begun.communicate(timeout=PATIENCE)
    assert begun.returncode == 130
    assert "stopped, and saved. The same command continues from here." in told
    assert "Traceback" not in told
    assert len(list(tmp_path.glob("runs/*/checkpoints/*.pt"))) == 1
    (study,) = optuna.get_all_study_names(f"sqlite:///{tmp_path}/sweep/studies.db")
    trials = optuna.load_study(study_name=study, storage=f"sqlite:///{tmp_path}/sweep/studies.db").trials
    assert [trial.state.name for trial in trials] == ["FAIL", "WAITING", "WAITING"]
    assert trials[2].params == trials[0].params


@pytest.fixture
def postgresql() -> Iterator[str]:
    """A PostgreSQL of Debian's on a port of its own; the URL of an empty database."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
    as_owner = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # it refuses to run as root
    owner = "postgres" if as_owner else pwd.getpwuid(os.geteuid()).pw_name
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        if as_owner:
            os.chown(folder, pwd.getpwnam(owner).pw_uid, -1)
        files = f"{folder}/files"
        start = f"-h 127.0.0.1 -p {port} -k {folder} -c fsync=off"
        commands = [
            [f"{programs}/initdb", "-D", files, "-A", "trust", "-U", owner],
            [f"{programs}/pg_ctl", "-D", files, "-o", start, "-l", f"{folder}/log", "-w", "start"],
            [f"{programs}/createdb", "-h", "127.0.0.1", "-p", str(port), "-U", owner, "trials"],
        ]
        for command in commands:
            subprocess.run([*as_owner, *command], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            yield f"postgresql://{owner}@127.0.0.1:{port}/trials"
        finally:
            stop = [f"{programs}/pg_ctl", "-D", files, "-m", "immediate", "-w", "stop"]
            subprocess.run([*as_owner, *stop], check=True, cwd=folder, stdout=subprocess.DEVNULL)


@pytest.mark.programs
def test_workers_share_a_study_and_a_killed_one_loses_nothing(tmp_path: Path, postgresql: str) -> None:
    options = ["alpha=2,4", "--steps", "3k", "--out", str(tmp_path), "--save-every", "0.2", "--storage", postgresql]
    options += ["--patience", "5", "--study", "shared"]

    def of(process: subprocess.Popen[str], state: str = "") -> list[Path]:
        """The runs of a worker's trials, those in a state."""
        trials = optuna.load_study(study_name="shared", storage=postgresql.replace(":", "+psycopg2:", 1)).trials
        keys = [
            trial.user_attrs["run"]
            for trial in trials
            if trial.user_attrs.get("worker", "").endswith(f":{process.pid}") and state in trial.state.name
        ]
        return [tmp_path / "runs" / key for key in keys]

    with worker(*options) as first:
        wait_until(lambda: in_training(tmp_path), first)
        with worker(*options) as second:
            wait_until(lambda: of(second) and any(run.glob("checkpoints/*.pt") for run in of(first, "RUNNING")), first)
            first.kill()
            first.wait()
            (lost,) = of(first, "RUNNING")
            _, told = second.communicate(timeout=5 * PATIENCE)
            assert second.returncode == 0, told
    content = outcome(tmp_path)
    finished = content["trials"]["finished"]
    assert sorted(trial["trial"] for trial in finished) == [0, 1, 2, 3]
    assert [name for name, trials in content["trials"].items() if trials] == ["finished"]
    assert len({trial["run"] for trial in finished}) == 4
    assert all((tmp_path / "runs" / trial["run"] / "result.json").exists() for trial in finished)
    (again,) = (trial for trial in finished if trial["run"] == lost.name)
    assert again["attempts"] == 2
    assert again["worker"].endswith(f":{second.pid}")


@pytest.mark.programs
@pytest.mark.usefixtures("fork_server", "quick_workers")
def test_a_server_keeps_studies_of_several_sweeps_apart(
    tmp_path: Path, postgresql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "10", "--out", str(tmp_path), "--storage", postgresql, "--study", "rates"]
    assert main([*SWEEP, *options]) == 0
    capsys.readouterr()
    assert main([*SWEEP, "alpha=2,4", *options]) == 2
    assert "the study 'rates' is another sweep, with the space lr=0.001,0.01 and not" in capsys.readouterr().err
