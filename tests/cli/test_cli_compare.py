"""`ademamix compare` and `ademamix train`, as a user calls them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab import tuning
from ademamix.lab.comparison import defaults
from ademamix.lab.config import Optimizer
from ademamix.lab.runs import worker
from ademamix.lab.runs.interrupt import EXIT_CODE
from ademamix.lab.runs.record import RunFolder, open_folder
from ademamix.lab.train import Options, train
from lab_runs import DOCS, TINY

SMALL = ["--model", "gpt-tiny:width=16,layers=1,heads=1,context=16", "--data", DOCS, "--batch", "2"]


def test_compare_trains_shows_and_remembers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "ROUNDS", 2)
    command = ["compare", *SMALL, "--steps", "4", "--out", str(tmp_path), "--tune", "3", "--seeds", "3"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    names = ["AdamW in 4 steps", "AdamW in 8 steps", "AdEMAMix in 4 steps"]
    for part in (*(f"{name}, best: lr=" for name in names), "ms per step", "bytes per parameter", "one seed"):
        assert part in shown
    (folder,) = (tmp_path / "compare").iterdir()
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((folder / "sweep.json").read_text())
    assert {name: {row["beta2"] for row in record["losses"]} for name, record in found.items()} == {
        name: {0.999} for name in names
    }
    report = (folder / "report.txt").read_text()
    assert re.match(r"AdEMAMix in 4 steps ended \d\.\d{4} (below|above) AdamW in 8 steps ", report)
    assert "AdamW in 8 steps, best: lr=" in report
    assert "ms per step" in report
    assert str(folder / "report.txt") in shown
    assert main(command) == 0
    again = capsys.readouterr()
    assert "Trained before" not in shown
    note = again.out[again.out.index("Trained before") : again.out.index("picture: ")]
    assert again.out.replace(note, "") == shown
    assert main(["compare", *SMALL, "--steps", "4", "--out", str(tmp_path), "--optimizers", "adamw"]) == 0
    assert len(list((tmp_path / "compare").iterdir())) == 2


def test_kept_results_are_shown_without_a_framework(tmp_path: Path) -> None:
    command = ["compare", *SMALL, "--steps", "4", "--out", str(tmp_path)]
    assert main(command) == 0
    code = """
        import sys
        from ademamix.cli import main

        assert main(sys.argv[1:]) == 0
        heavy = {"torch", "transformers", "datasets", "matplotlib", "rich"} & set(sys.modules)
        assert not heavy, heavy
    """
    arguments = [sys.executable, "-c", textwrap.dedent(code), *command]
    shown = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "Trained before" in shown
    assert "compare.png" in shown


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


def test_results_of_other_data_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three " * 200)
    run = [*SMALL, "--data", str(text), "--steps", "2", "--out", str(tmp_path / "out")]
    commands = [["train", "--threads", "1", *run], ["compare", *run]]
    for command in commands:
        assert main(command) == 0
    text.write_text("four five six " * 200)
    for command in commands:
        capsys.readouterr()
        assert main(command) == 2
        assert "has changed since the run in" in capsys.readouterr().err
    text.unlink()
    for command in commands:
        assert main(command) == 0
        assert "rained before" in capsys.readouterr().out


def test_results_may_not_be_written_into_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("one two three " * 200)
    assert main(["train", *SMALL, "--data", ".", "--steps", "2"]) == 2
    assert "'.' holds the folder out/data, to which results are written" in capsys.readouterr().err


def test_no_clipping(tmp_path: Path) -> None:
    assert main(["train", *SMALL, "--steps", "2", "--clip", "0", "--threads", "1", "--out", str(tmp_path)]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert open_folder(folder).config.clip is None


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_who_watches_may_leave(closed: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ademamix", "train", *SMALL, "--steps", "20", "--out", str(tmp_path)]
    reading, writing = os.pipe()
    os.close(reading)
    streams: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writing}
    ended = subprocess.run(command, stdout=streams["stdout"], stderr=streams["stderr"], text=True)
    os.close(writing)
    assert ended.returncode == {"stdout": 128 + signal.SIGPIPE, "stderr": 0}[closed]
    assert "Traceback" not in (ended.stderr or "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert open_folder(folder).result() is not None


def test_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ademamix", "reproduce", "beta3-schedule", "--out", str(tmp_path)]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("ademamix: error: cannot read or write ")
    assert "No space left on device" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_weights_and_biases_gets_all_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ademamix", "train", *SMALL, "--steps", "20", "--wandb", "of-a-test"]
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(tmp_path)}
    subprocess.run([*command, "--out", str(tmp_path)], env=environment, check=True)
    (folder,) = (tmp_path / "runs").iterdir()
    (kept,) = folder.glob(f"wandb/offline-run-*/run-{folder.name}.wandb")
    rows = [row for row in open_folder(folder).metrics() if "validation_loss" in row]
    content = kept.read_bytes()
    assert all(str(row["validation_loss"]).encode() in content for row in rows)


def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    here, there = pty.openpty()
    command = [sys.executable, "-m", "ademamix", "train", *SMALL, "--steps", "20", "--out", str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stderr=there, stdout=subprocess.DEVNULL, env=environment) as process:
        os.close(there)
        shown = b""
        with contextlib.suppress(OSError):  # how reading a terminal that nobody writes to any more ends
            while part := os.read(here, 4096):
                shown += part
    os.close(here)
    assert process.returncode == 0
    assert any(b"20/20" in line and b"finished, validation" in line for line in shown.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gpt-huge"], "there is no model 'gpt-huge': choose one of gpt-nano"),
        (
            ["--model", "gpt-tiny:depth=3"],
            "model has no setting 'depth': it takes width, ",
        ),
        (["--optimizer", "sgd"], "there is no optimizer 'sgd': choose one of adamw"),
        (["--optimizer", "adamw:alpha=3", *SMALL], "optimizer 'adamw' has no setting 'alpha': it takes"),
        (["--data", "/nowhere"], "there is no text at '/nowhere'"),
        (["--out", "/dev/null"], "cannot write to the folder"),
        (["--device", "gpu"], "--device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["--device", "cuda:99"], "--device cuda:99 cannot be used here"),
        (["--data", ""], "there is no text at ''"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--steps", "20", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--config", "/nowhere.json"], "cannot read '/nowhere.json'"),
        (
            ["train", "--config", "/nowhere.json", "--seed", "0", "--validate-every", "9"],
            "so --seed, --validate-every ",
        ),
        (["compare", "--optimizers", "lion", "lion:lr=1e-4"], "lion lr=0.0001 weight_decay=0.1 is named twice"),
        (["compare", "--optimizers", "adamw", "ademamix:alpha=-1"], "alpha must be a finite number >= 0, got -1"),
        (["compare", "--parameters", "bf16", "--optimizers", "ademamix", "lion"], "optimizer 'lion': "),
        (["compare", "--optimizers", "lion", "lion:lr=1", "--tune"], "lion is named twice, with other learning rates"),
        (["compare", "--optimizers", "adamw", "adamw:steps=long"], "steps must be a whole number of at least 1, or a "),
        (["compare", "--optimizers", "adamw:steps=2"], "warm-up and decay must fit into the 2 steps of a run"),
        (["compare", "--parameters", "bf16"], "optimizer 'adamw': AdamW takes fp32 and fp64 parameters, got "),
        (["reproduce", "lm-comparison", "--device", "gpu"], "--device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["bench", "--lab", "--threads", "2"], "--threads does not go with it"),
    ],
)
def test_what_does_not_fit_together_is_said_before_anything_is_trained(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()


@pytest.fixture
def comparison(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ademamix", "compare", *SMALL, "--steps", "100k", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while len(list(tmp_path.glob("runs/*/metrics.jsonl"))) < 2:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


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


def test_ctrl_c_saves_and_tells_how_to_go_on(tmp_path: Path, comparison: subprocess.Popen[str]) -> None:
    comparison.send_signal(signal.SIGINT)
    _, told = comparison.communicate(timeout=300)
    assert comparison.returncode == 130
    assert "stopped, and saved. The same command continues from here." in told
    assert "Traceback" not in told
    assert _saved_and_free(tmp_path)


def test_a_run_whose_process_is_killed_ends_the_others_saved(tmp_path: Path, comparison: subprocess.Popen[str]) -> None:
    first, _ = Path(f"/proc/{comparison.pid}/task/{comparison.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGKILL)
    _, told = comparison.communicate(timeout=300)
    assert comparison.returncode == 2
    assert "its process was killed by signal 9. The same command goes on" in told
    assert not any(_held(folder) for folder in (tmp_path / "runs").iterdir())
    assert len(list(tmp_path.glob("runs/*/checkpoints/*.pt"))) >= 1


def test_ctrl_c_before_the_first_step(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ademamix", "compare", *SMALL, "--steps", "100k", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("3 runs of 100,000 to 200,000 steps")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "saved" not in told
    assert "same command" in told
    assert "Traceback" not in told
    assert not list(tmp_path.glob("runs/*/checkpoints/*"))


def test_a_process_for_runs_tells_how_far_it_is(tmp_path: Path) -> None:
    command = worker.command(Options(tmp_path), threads=1)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(TINY.model_dump_json() + "\n")
        process.stdin.flush()
        told = [json.loads(process.stdout.readline())]
        while told[-1] != {"finished": True}:
            told.append(json.loads(process.stdout.readline()))
    kinds = [kind for message in told for kind in message]
    assert sorted(set(kinds), key=kinds.index) == ["read", "progress", "finished"]
    count, wanted = told[0]["read"]
    assert count > 1000
    assert wanted is None


def test_train_shows_advice_as_a_plain_line(tmp_path: Path) -> None:
    optimizer = "ademamix:beta3=0.9999"
    command = [sys.executable, "-m", "ademamix", "train", *SMALL, "--steps", "20", "--optimizer", optimizer]
    ended = subprocess.run([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True, check=True)
    assert ended.stderr.count("ademamix: beta3 = 0.9999 ") == 1
    assert "Warning" not in ended.stderr


def test_reading_is_shown_until_training_begins(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ademamix", "train", *SMALL, "--steps", "20", "--out", str(tmp_path)]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True)
    assert re.search(r"\nademamix: step 0 of 20, reads its text: [0-9,]+ tokens\n", ended.stderr)


def test_a_process_for_runs_ends_with_its_input_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    ignoring = (
        "import signal, subprocess, sys; signal.signal(2, signal.SIG_IGN); sys.exit(subprocess.call(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", ignoring, *worker.command(Options(tmp_path), threads=1)]
    with (
        RunFolder(tmp_path / "runs", TINY).locked(),  # so that the process is waiting when its input ends
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(TINY.model_dump_json() + "\n")
        process.stdin.flush()
        assert "waits" in process.stdout.readline()
        process.stdin.close()
        assert process.wait(300) == EXIT_CODE


def test_runs_stop_when_what_started_them_is_killed(tmp_path: Path, comparison: subprocess.Popen[str]) -> None:
    comparison.kill()
    comparison.wait()
    end = time.monotonic() + 300
    while not _saved_and_free(tmp_path):
        assert time.monotonic() < end, "the runs go on without their parent"
        time.sleep(0.1)


def test_the_default_is_the_best_of_the_committed_sweep() -> None:
    records = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "compare_sweep.json").read_text())
    for name, optimizer in defaults.OPTIMIZERS.items():
        record = records["AdamW" if name == "adamw" else "AdEMAMix"]
        found = tuning.Sweep({tuning.Choice(float(rate)): loss for rate, loss in record["losses"].items()})
        assert found.settled
        assert optimizer.lr == found.best.lr
        run = defaults.DEFAULT.model_copy(update={"optimizer": optimizer})
        assert record["run"] == run.model_dump(mode="json", exclude_defaults=True)


def test_a_finished_run_can_be_loaded_by_its_folder(tmp_path: Path) -> None:
    result = train(TINY, Options(tmp_path))
    assert open_folder(tmp_path / "runs" / TINY.key).result() == result
