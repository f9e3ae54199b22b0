"""A process that carries out runs for another one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ademamix.lab.execution import worker
from ademamix.lab.execution.interrupt import EXIT_CODE
from ademamix.lab.execution.options import Options
from ademamix.lab.runs.record import RunFolder
from lab_runs import TINY
from lab_text import PATIENCE


def test_a_process_for_runs_tells_how_far_it_is(tmp_path: Path) -> None:
    command = worker.command(Options(tmp_path), threads=1)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"run": TINY.model_dump(mode="json"), "keep_at": []}) + "\n")
        process.stdin.flush()
        told = [json.loads(process.stdout.readline())]
        while told[-1] != {"finished": True}:
            told.append(json.loads(process.stdout.readline()))
    kinds = [kind for message in told for kind in message]
    assert sorted(set(kinds), key=kinds.index) == ["read", "progress", "finished"]
    count, wanted = told[0]["read"]
    assert count > 1000
    assert wanted is None


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
        process.stdin.write(json.dumps({"run": TINY.model_dump(mode="json"), "keep_at": []}) + "\n")
        process.stdin.flush()
        assert "waits" in process.stdout.readline()
        process.stdin.close()
        assert process.wait(PATIENCE) == EXIT_CODE
