"""Commands under torchrun: as on one process, also when a process is killed, or all are asked to stop."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.lab.config import Run
from ademamix.lab.runs.record import RunFolder, open_folder
from ademamix.lab.train import Options, train
from lab_runs import DELICATE, SMALL, changed, outcome
from lab_text import PATIENCE

SEED = 15
KILLS = 5  # of each of two runs
LONG = changed(DELICATE, batch=4, steps=300, validate_every=100)


def command(*arguments: str, processes: int = 2, restarts: int = 0) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={processes}", f"--max-restarts={restarts}", "-m", "ademamix", *arguments]


def run_to_its_end(*arguments: str, **how: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments, **how), capture_output=True, text=True, timeout=PATIENCE, check=False)


@contextlib.contextmanager
def begun(*arguments: str, **how: int) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(*arguments, **how), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield process
        process.kill()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.005)


def last_step(run: Run, out: Path) -> int:
    rows = RunFolder(out / "runs", run).metrics()
    return int(rows[-1]["step"]) if rows else 0


def workers(launcher: int) -> dict[int, int]:
    """Return the processes that torchrun has started, by rank."""
    found = {}
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                content = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                found |= {int(entry[5:]): pid for entry in content if entry.startswith(b"RANK=")}
    return found


def test_two_processes_train_what_one_does_and_one_of_them_speaks(tmp_path: Path) -> None:
    arguments = [*SMALL, "--optimizers", "adamw", "ademamix", "--steps", "12", "--out", str(tmp_path / "two")]
    done = run_to_its_end("compare", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ") == 1
    assert done.stderr.count("AdEMAMix: finished") == 1
    folders = list((tmp_path / "two" / "runs").iterdir())
    assert len(folders) == 2
    for folder in map(open_folder, folders):
        alone = train(folder.config, Options(tmp_path / "one"))
        result = folder.result()
        assert result is not None
        assert result.validation_loss == pytest.approx(alone.validation_loss, rel=1e-5)
        expected = RunFolder(tmp_path / "one" / "runs", folder.config)
        assert [row["step"] for row in folder.metrics()] == [row["step"] for row in expected.metrics()]
        assert {path.name for path in folder.path.iterdir()} == {path.name for path in expected.path.iterdir()}
        (carried_out,) = json.loads((folder.path / "environment.json").read_text())["carried_out"]
        assert carried_out["processes"] == 2


def test_shards_need_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "--shard", "--out", str(tmp_path)]) == 2
    assert "torchrun --nproc-per-node 2 -m ademamix train ... --shard" in capsys.readouterr().err


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["train", "--steps", "none"], "argument --steps: must be a whole number"),
        (["train", *SMALL, "--batch", "3"], "a batch of 3 cannot be divided among 2 processes"),
        (["compare", *SMALL, "--processes", "2"], "--processes starts processes that each train"),
        (["sweep", "adamw", "lr=1e-3"], "`ademamix sweep` has no use for several processes"),
        (["train", *SMALL, "--device", "cuda:1"], "--device cuda:1 is one GPU"),
    ],
)
def test_mistakes_are_explained_once(arguments: list[str], error: str, tmp_path: Path) -> None:
    done = run_to_its_end(*arguments, "--out", str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.count("error: " + error) == 1, done.stderr
    assert done.stderr.count("ademamix: error") <= 1, done.stderr


@pytest.mark.distributed
def test_the_help_lets_all_processes_go() -> None:
    done = run_to_its_end("train", "--help")
    assert done.returncode == 0
    assert done.stdout.count("torchrun --nproc-per-node 2 -m ademamix train") == 1


@pytest.mark.distributed
@pytest.mark.parametrize("ask", [signal.SIGINT, signal.SIGTERM])
def test_processes_that_are_asked_to_stop_save_and_one_continues(ask: signal.Signals, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(LONG.model_dump_json())
    arguments = ["train", "--config", str(config), "--threads", "1", "--out", str(tmp_path)]
    with begun(*arguments) as process:
        wait_until(lambda: last_step(LONG, tmp_path) > 20, process)
        process.send_signal(ask)
        said = process.communicate(timeout=PATIENCE)[1]
    assert said.count("stopped, and saved") == 1, said
    saved = RunFolder(tmp_path / "runs", LONG).load_checkpoint()
    assert saved is not None
    assert saved[0] >= last_step(LONG, tmp_path)
    assert main(arguments) == 0
    assert last_step(LONG, tmp_path) == LONG.steps


@pytest.mark.distributed
@pytest.mark.parametrize("shard", [[], ["--shard"]], ids=["copies", "shards"])
def test_a_run_whose_processes_are_killed_ends_as_one_that_was_left_alone(shard: list[str], tmp_path: Path) -> None:
    generator = random.Random(f"{SEED}{shard}")
    config, whole, torn = tmp_path / "config.json", tmp_path / "whole", tmp_path / "torn"
    config.write_text(LONG.model_dump_json())
    arguments = ["train", "--config", str(config), "--threads", "1", *shard]
    done = run_to_its_end(*arguments, "--out", str(whole))
    assert done.returncode == 0, done.stderr
    print("seed", SEED)
    with begun(*arguments, "--save-every", "0.05", "--out", str(torn), restarts=KILLS) as process:
        before: dict[int, int] = {}
        for _ in range(KILLS):
            wait_until(lambda: len(set(workers(process.pid).values()) - set(before.values())) == 2, process)  # noqa: B023
            before, target = workers(process.pid), last_step(LONG, torn) + generator.randrange(7, 30)
            wait_until(lambda: last_step(LONG, torn) >= target, process)  # noqa: B023
            time.sleep(generator.uniform(0, 0.05))
            rank = generator.randrange(2)
            print(f"killed process {rank} after step {last_step(LONG, torn)}")
            os.kill(before[rank], signal.SIGKILL)
        said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, said
    assert outcome(LONG, torn) == outcome(LONG, whole)
