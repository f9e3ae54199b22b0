"""How runs are carried out: options, devices, and the messages of their processes."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ademamix.lab.config import Optimizer
from ademamix.lab.execution import runner, worker
from ademamix.lab.execution.interrupt import Interrupted
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.execution.options import Options, devices_of, processes_on
from ademamix.lab.execution.runner import run_all
from ademamix.lab.runs.record import RunError, RunFolder
from lab_runs import TINY, changed
from lab_text import finish, in_process


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"save_share": 0.0}, "save_share must be above 0 and at most 1, got 0.0"),
        ({"save_share": float("nan")}, "got nan"),
        ({"logits_bytes": 0}, "logits_bytes must be above 0, got 0"),
    ],
)
def test_options_that_cannot_be_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(Path("out"), **fields)  # type: ignore[arg-type]


def test_a_process_is_told_all_options() -> None:
    options = Options(Path("out"), device="cuda:1", save_every=1.0, save_share=0.5, logits_bytes=7, wandb="project")
    arguments = json.loads(worker.command(options, threads=3)[-1])
    assert arguments.pop("threads") == 3
    assert Options(**{**arguments, "out": Path(arguments["out"])}) == options


def test_there_is_one_process_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices_of("cuda") == ["cuda:0", "cuda:1", "cuda:2"]
    assert [processes_on(device) for device in ("cuda", "cuda:1", "cpu")] == [3, 1, 2]


@pytest.mark.usefixtures("quick_workers")
def test_runs_are_spread_over_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices, command = [], worker.command

    def on_cpu(options: Options, *, threads: int) -> list[str]:
        devices.append(options.device)
        return command(replace(options, device="cpu"), threads=threads)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(worker, "command", on_cpu)
    run_all({"one": TINY, "two": changed(TINY, seed=1)}, Options(tmp_path, device="cuda"))
    assert devices == ["cuda:0", "cuda:1"]


def test_a_notice_is_shown_even_if_the_run_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"notice": "it is damaged"}) + "\n" + json.dumps({"failed": "the data has changed"}) + "\n"
    code = f"import sys; sys.stdin.readline(); sys.stdout.write({said!r})"
    monkeypatch.setattr(worker, "command", lambda options, threads: [sys.executable, "-c", code])
    shown: list[str] = []
    with pytest.raises(RunError, match="tiny: the data has changed"):
        run_all({"tiny": TINY}, Options(tmp_path), watch=lambda statuses: shown.extend(statuses["tiny"].notices))
    assert "it is damaged" in shown


def test_a_process_that_is_killed_while_it_writes_is_called_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = "import os, sys; sys.stdin.readline(); os.write(1, b'{\"progr'); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(worker, "command", lambda options, threads: [sys.executable, "-c", torn])
    with pytest.raises(RunError, match="tiny: its process was killed by signal 9"):
        run_all({"tiny": TINY}, Options(tmp_path))


def test_ctrl_c_while_torch_is_loaded_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_check_optimizers", lambda configs: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted, match="Nothing had been trained yet"):
        run_all({"tiny": TINY}, Options(tmp_path))
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("quick_workers")
def test_nothing_is_called_saved_before_the_first_step(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "runs", TINY).locked(),  # so that the run cannot begin
        pytest.raises(Interrupted, match="Nothing had been trained yet, so there is nothing to save"),
    ):
        run_all({"tiny": TINY}, Options(tmp_path), watch=lambda statuses: signal.raise_signal(signal.SIGINT))


def test_files_of_the_working_directory_are_not_taken_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tokenize", "random", "torch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a file of the user was imported')")
    monkeypatch.chdir(tmp_path)
    assert run_all({"tiny": TINY}, Options(Path("out")))["tiny"].steps == TINY.steps


@pytest.mark.usefixtures("quick_workers")
def test_what_a_process_warns_of_is_shown_once_with_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    advised = Optimizer(name="ademamix", lr=1e-2, settings={"betas": [0.9, 0.999, 0.9999]})
    runs = {"advised": changed(TINY, optimizer=advised), "torn": TINY}
    checkpoints = RunFolder(tmp_path / "runs", TINY).path / "checkpoints"
    checkpoints.mkdir(parents=True)
    for step in (8, 16):
        (checkpoints / f"{step:09d}-0123456789abcdef.pt").write_bytes(b"torn")
    Lab(Options(tmp_path), processes=1).carry_out(runs, "two runs")
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("advised: beta3 = 0.9999 ") for line in lines) == 1, lines
    assert sum(line.startswith("torn: ") and "is damaged" in line for line in lines) == 2
    assert "torn: no checkpoint is whole: training starts again from step 0" in lines
    assert not any("Warning" in line for line in lines)


def test_names_in_any_script_do_not_depend_on_the_locale(tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path
        from ademamix.lab.config import Run, Text, read
        from ademamix.lab.execution.options import Options
        from ademamix.lab.runs.record import RunError, RunFolder, open_folder
        from ademamix.lab.execution.runner import run_all

        out, source = Path(sys.argv[2]), Text(kind="text", source="\\u672c\\u6587")
        run = read(Run, sys.argv[1]).model_copy(update={"data": source})
        with RunFolder(out / "runs", run).locked():
            assert open_folder(out / "runs" / run.key).config == run
        try:
            run_all({"run": run}, Options(out))
        except RunError as error:
            print(ascii(str(error)))
    """
    told = finish(
        in_process(code, TINY.model_dump_json(), tmp_path, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C")
    )
    assert "run: there is no text at" in told
