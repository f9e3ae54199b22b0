"""`ademamix compare` and `ademamix train`, as a user calls them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab import compare, sweep, worker
from ademamix.lab.compare import Arm
from ademamix.lab.config import Optimizer, Run
from ademamix.lab.interrupt import EXIT_CODE
from ademamix.lab.record import Result, RunFolder, open_folder
from ademamix.lab.train import Options, train
from lab_runs import DOCS, TINY, changed

SMALL = ["--model", "gpt-tiny:width=16,layers=1,heads=1,context=16", "--data", DOCS, "--batch", "2"]


def _result(loss: float, *, diverged: bool = False) -> Result:
    return Result(
        steps=100,
        validation_loss=loss,
        accuracy=None,
        seconds=1.0,
        parameters=10,
        state_bytes=80,
        diverged=diverged,
    )


def _arm(name: str, curves: list[dict[int, float]]) -> Arm:
    results = [_result(curve[100]) for curve in curves]
    return Arm(name, Optimizer(name="adamw", lr=1e-3), results, curves)


ADAMW = _arm("AdamW", [{50: 2.0, 100: 1.0}, {50: 2.2, 100: 1.2}])
ADEMAMIX = _arm("AdEMAMix", [{50: 2.1, 75: 1.0, 100: 0.8}, {50: 2.1, 75: 1.1, 100: 0.9}])
BASE = changed(TINY, steps=100)


def test_the_comparison_counts_what_it_says() -> None:
    assert ADAMW.loss == pytest.approx(1.1)
    assert ADEMAMIX.curve == pytest.approx({50: 2.1, 75: 1.05, 100: 0.85})
    assert ADEMAMIX.first_step_at(ADAMW.loss) == 75
    assert ADAMW.first_step_at(0.1) is None
    table = compare.table(BASE, [ADAMW, ADEMAMIX])
    assert "1.1000" in table
    assert "75 (25% fewer)" in table
    assert "lower than AdamW, of 2 seeds" in table
    assert compare.conclusion(BASE, [ADAMW, ADEMAMIX]) == (
        "AdEMAMix ended 0.2500 below AdamW, and was as low at step 75: 25% fewer steps."
    )


def test_rates_that_look_alike_are_told_apart() -> None:
    rates = [1e-3, 1.0000001e-3]
    runs = compare.plan(BASE, [Optimizer(name="adamw", lr=rate) for rate in rates], [1])
    assert [of_seed[1].optimizer.lr for of_seed in runs.values()] == rates


def test_reasons_are_given_only_where_they_hold() -> None:
    ours = Arm("AdEMAMix", compare.OPTIMIZERS["ademamix"], ADEMAMIX.results, ADEMAMIX.curves)
    theirs = Arm("AdamW", compare.OPTIMIZERS["adamw"], ADAMW.results, ADAMW.curves)

    def reasons(base: Run, arms: list[Arm]) -> str:
        return compare.reasons(base, arms, tuned=False)

    assert "beta3 = 0.99 is the rule for 2,500 steps" in reasons(changed(TINY, steps=2500), [theirs, ours])
    assert "rule for" not in reasons(changed(TINY, steps=20), [theirs, ours])
    assert "best of a sweep" in reasons(compare.DEFAULT, [theirs, ours])
    assert "were not tuned" in reasons(compare.DEFAULT, [ADAMW, ours])
    elsewhere = Optimizer(name="ademamix", lr=1e-3, settings={"total_steps": 10**6})
    assert "rule for" not in reasons(changed(TINY, steps=2500), [Arm("AdEMAMix", elsewhere, ours.results, ours.curves)])
    assert "best of the sweep above" in compare.reasons(BASE, [ADAMW, ours], tuned=True)


def test_a_loss_is_called_a_loss(tmp_path: Path) -> None:
    assert compare.conclusion(BASE, [ADEMAMIX, ADAMW]) == "AdamW did not end below AdEMAMix (1.1000 against 0.8500)."
    diverged = Arm("Lion", Optimizer(name="lion", lr=1.0), 2 * [_result(math.nan, diverged=True)], 2 * [{}])
    assert "did not end below" in compare.conclusion(BASE, [ADAMW, diverged])
    assert "not reached" in compare.table(BASE, [ADAMW, diverged])
    assert "nothing to measure" in compare.conclusion(BASE, [diverged, ADAMW])
    assert "fewer" not in compare.table(BASE, [diverged, ADAMW])
    for arms in ([ADAMW, diverged], [diverged, ADAMW]):
        compare.draw(arms, BASE, tmp_path)


def test_a_sweep_grows_until_the_best_has_neighbours() -> None:
    best = {"AdamW": 4e-3, "AdEMAMix": 1e-3}
    calls = []

    def run(runs):
        calls.append(list(runs))
        distances = {label: abs(math.log(run.optimizer.lr / best[label.split()[0]])) for label, run in runs.items()}
        return {label: _result(1 + distance) for label, distance in distances.items()}

    runs = compare.plan(TINY, [Optimizer(name="adamw", lr=4e-3), Optimizer(name="ademamix", lr=4e-3)], [0])
    found = sweep.tune({name: of_seed[0] for name, of_seed in runs.items()}, 3, run)
    assert {name: swept.best for name, swept in found.items()} == best
    assert all(swept.settled for swept in found.values())
    assert [len(labels) for labels in calls] == [6, 1, 1]
    assert "best: 0.001" in sweep.table(found)


def test_compare_trains_shows_and_remembers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", *SMALL, "--steps", "20", "--out", str(tmp_path), "--tune", "1", "--seeds", "3"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    for part in ("best: 0.008", "AdamW", "AdEMAMix", "time of a step", "bytes a parameter", "compare.png"):
        assert part in shown
    assert (tmp_path / "compare" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert set(json.loads((tmp_path / "compare" / "sweep.json").read_text())) == {"AdamW", "AdEMAMix"}
    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out.splitlines()[-8:] == shown.splitlines()[-8:]
    assert "Trained before" in again.out


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
    assert open_folder(folder).config.optimizer == Optimizer(name="lion", lr=1e-3)
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
    assert b"20/20" in shown.splitlines()[-2]
    assert b"finished, validation" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gpt-huge"], "there is no model 'gpt-huge': choose one of gpt-tiny"),
        (["--model", "gpt-tiny:depth=3"], "depth: Extra inputs are not permitted, got 3"),
        (["--optimizer", "sgd"], "there is no optimizer 'sgd': choose one of adamw"),
        (["--optimizer", "adamw:alpha=3", *SMALL], "optimizer 'adamw' has no setting 'alpha': it takes"),
        (["--data", "/nowhere"], "there is no text at '/nowhere'"),
        (["--out", "/dev/null"], "cannot write to the folder"),
        (["--device", "gpu"], "--device gpu cannot be used here"),
        (["--device", "meta"], "--device must be cpu or cuda, got 'meta'"),
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
        (["compare", "--optimizers", "lion", "lion:lr=1e-4"], "lion lr=0.0001 is named twice"),
        (["compare", "--optimizers", "adamw", "ademamix:alpha=-1"], "alpha must be a finite number >= 0, got -1"),
        (["compare", "--parameters", "bf16", "--optimizers", "ademamix", "lion"], "optimizer 'lion': "),
        (["compare", "--optimizers", "lion", "lion:lr=1", "--tune"], "lion is named twice, with other learning rates"),
        (["compare", "--parameters", "bf16"], "optimizer 'adamw': AdamW takes fp32 and fp64 parameters, got "),
        (["reproduce", "lm-comparison", "--device", "gpu"], "--device gpu cannot be used here"),
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
    assert process.stderr.readline().startswith("2 runs of 100,000 steps")
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
    records = json.loads((Path(__file__).parents[1] / "benchmarks" / "results" / "compare_sweep.json").read_text())
    for name, optimizer in compare.OPTIMIZERS.items():
        record = records["AdamW" if name == "adamw" else "AdEMAMix"]
        losses = {float(rate): loss for rate, loss in record["losses"].items()}
        found = sweep.Sweep(losses)
        assert found.settled
        assert optimizer.lr == found.best
        run = compare.DEFAULT.model_copy(update={"optimizer": optimizer})
        assert record["run"] == run.model_dump(mode="json", exclude_defaults=True)


def test_a_finished_run_can_be_loaded_by_its_folder(tmp_path: Path) -> None:
    result = train(TINY, Options(tmp_path))
    assert open_folder(tmp_path / "runs" / TINY.key).result() == result
