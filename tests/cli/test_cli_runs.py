"""`ademamix runs`: what is kept, in words, and how it is removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab.execution.options import Options
from ademamix.lab.runs import kept
from ademamix.lab.runs.record import Result, RunFolder
from ademamix.lab.train import train
from lab_runs import TINY, changed

STOPPED = changed(TINY, seed=7)
DIVERGED = changed(TINY, seed=8)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished run, one that was stopped, one that diverged, and the folder of another version."""
    train(TINY, Options(tmp_path))
    for run in (STOPPED, DIVERGED):
        folder = RunFolder(tmp_path / "runs", run)
        with folder.locked(), folder.open_metrics() as append:
            append({"step": 8, "loss": 2.0})
    result = {"steps": 9, "validation_loss": 2.0, "accuracy": None, "seconds": 1.0, "parameters": 1, "state_bytes": 1}
    (tmp_path / "runs" / DIVERGED.key / "result.json").write_text(json.dumps({**result, "diverged": True}))
    assert RunFolder(tmp_path / "runs", DIVERGED).result() == Result(**{**result, "diverged": True})  # type: ignore[arg-type]
    old = tmp_path / "runs" / "0123456789abcdef"
    old.mkdir()
    (old / "config.json").write_text('{"batches": 3}')
    return tmp_path


def test_runs_are_listed_in_words(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["runs", "--out", str(out)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "AdEMAMix lr=0.01 weight_decay=0.1, gpt of width 16 and 1 layer" in lines[TINY.key]
    assert "24 steps, batch 2, seed 0" in lines[TINY.key]
    assert "finished, validation " in lines[TINY.key]
    assert "stopped at step 8 of 24" in lines[STOPPED.key]
    assert "seed 7" in lines[STOPPED.key]
    assert "diverged at step 9" in lines[DIVERGED.key]
    assert "another version may have written it" in lines["0123456789abcdef"]
    assert lines["4"].startswith("4 runs in ")


@pytest.mark.parametrize("width", [40, 80])
def test_a_list_fits_its_terminal(width: int, out: Path) -> None:
    lines = kept.table(kept.kept_runs(out / "runs"), width).splitlines()
    path = max(len(word) for line in lines for word in line.split())  # a path is not broken
    assert max(map(len, lines)) <= max(width, path + 4)


def test_a_run_whose_key_has_changed_is_listed_and_removed(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    old = out / "runs" / "fedcba9876543210"
    shutil.copytree(out / "runs" / TINY.key, old)
    assert main(["runs", "--out", str(out)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "of another version" in lines[old.name]
    assert "finished, validation " in lines[TINY.key]
    assert main(["runs", "--json", "--out", str(out)]) == 0
    assert {run["key"]: run for run in json.loads(capsys.readouterr().out)}[old.name]["config"] is None
    assert main(["report", "--out", str(out)]) == 0
    assert f"another version may have written them: 0123456789abcdef, {old.name}" in (out / "report.html").read_text()
    assert main(["runs", "--remove", old.name, "--yes", "--out", str(out)]) == 0
    assert not old.exists()


def test_runs_are_listed_as_json(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json", "--out", str(out)]) == 0
    found = {run["key"]: run for run in json.loads(capsys.readouterr().out)}
    assert found[TINY.key]["config"]["steps"] == 24
    assert found[TINY.key]["bytes"] == sum(file.stat().st_size for file in (out / "runs" / TINY.key).rglob("*"))
    assert found["0123456789abcdef"]["config"] is None


def test_no_runs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--out", str(tmp_path)]) == 0
    assert "There are no runs in " in capsys.readouterr().out


def test_a_run_is_removed_by_how_its_key_begins(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--remove", STOPPED.key[:6], "--yes", "--out", str(out)]) == 0
    assert f"Removed {STOPPED.key}" in capsys.readouterr().out
    assert not (out / "runs" / STOPPED.key).exists()
    assert (out / "runs" / TINY.key).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--remove", "zz", "--yes"], "there is no run in "),
        (["--remove", "", "--yes"], "there are 4 runs in "),
        (["--remove", STOPPED.key], "give --yes"),
    ],
)
def test_nothing_is_removed_by_mistake(
    arguments: list[str], message: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", *arguments, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert len(list((out / "runs").iterdir())) == 4


@pytest.mark.parametrize(("answer", "left"), [("y", 3), ("n", 4), ("", 4), (None, 4)])
def test_removing_asks(
    answer: str | None,
    left: int,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def reply(question: str) -> str:
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", reply)
    assert main(["runs", "--remove", STOPPED.key, "--out", str(out)]) == 0
    assert len(list((out / "runs").iterdir())) == left


def test_a_run_in_use_is_not_removed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunFolder(out / "runs", STOPPED).locked():
        assert main(["runs", "--remove", STOPPED.key, TINY.key, "--yes", "--out", str(out)]) == 2
        assert f"in use, so nothing is removed: {STOPPED.key}" in capsys.readouterr().err
        assert "in use at step 8" in kept.table(kept.kept_runs(out / "runs"), 300)
    assert (out / "runs" / STOPPED.key).exists()
    assert (out / "runs" / TINY.key).exists()


def test_looking_changes_no_age(out: Path) -> None:
    before = {run.key: run.changed for run in kept.kept_runs(out / "runs")}
    assert {run.key: run.changed for run in kept.kept_runs(out / "runs")} == before
