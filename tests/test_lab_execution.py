"""How runs are carried out: options, devices, and the messages of their processes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ademamix.lab import worker
from ademamix.lab.execution import Options, devices_of, processes_on
from ademamix.lab.record import RunError
from ademamix.lab.runner import run_all
from lab_runs import TINY, changed


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
