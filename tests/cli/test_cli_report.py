"""`ademamix report` as a user calls it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ademamix.cli import main
from lab_runs import TINY
from lab_text import PATIENCE
from page_samples import write_panels


def report(out: Path, *arguments: str) -> int:
    return main(["report", "--out", str(out), *arguments])


def test_the_page_is_beside_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_panels(tmp_path)
    assert report(tmp_path) == 0
    assert capsys.readouterr().out == f"page: {tmp_path / 'report.html'}\n"
    assert "what its paper claims" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_scale_and_file_are_chosen(tmp_path: Path) -> None:
    write_panels(tmp_path, scale="smoke")
    assert report(tmp_path, "--scale", "smoke", "--file", str(tmp_path / "other.html")) == 0
    assert "smoke scale" in (tmp_path / "other.html").read_text(encoding="utf-8")
    assert not (tmp_path / "report.html").exists()


def test_a_run_that_cannot_be_read_makes_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert report(tmp_path, "--runs", "0123") == 2
    message = capsys.readouterr().err
    assert message.startswith("ademamix: error: none of these runs can be read, ")
    assert message.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_without_results_the_page_has_the_runs(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / TINY.key
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(TINY.model_dump_json())
    assert report(tmp_path) == 0
    assert TINY.key in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there are no results at laptop scale in "),
        (["--runs"], "there is nothing to show in "),
        (["--runs", "0123"], "no run has a key that begins with '0123'"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_is_said(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path / "nowhere") == 2
    assert "there is no folder " in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_result_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_panels(tmp_path)
    path.write_text(path.read_text()[:1000])
    assert report(tmp_path) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert f"{str(path)!r} is damaged" in said.err


def test_ctrl_c_ends_watching(tmp_path: Path) -> None:
    write_panels(tmp_path)
    command = [sys.executable, "-m", "ademamix", "report", "--watch", "--out", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Watching {tmp_path}; Ctrl-C ends this. page: {tmp_path}/report.html\n"
        assert process.stdout.readline() == "The page is up to date.\n"
        assert 'data-seconds="5"' in (tmp_path / "report.html").read_text(encoding="utf-8")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "\nademamix: stopping\n")
    assert 'data-seconds="0"' in (tmp_path / "report.html").read_text(encoding="utf-8")
