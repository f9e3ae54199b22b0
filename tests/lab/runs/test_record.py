"""The folder of a run: whole files, one writer, clear errors."""

from __future__ import annotations

import json
import math
import resource
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch

from ademamix.lab import config
from ademamix.lab.data import DataError
from ademamix.lab.models import networks
from ademamix.lab.runs import record
from ademamix.lab.runs.record import KEPT_CHECKPOINTS, Result, RunError, RunFolder, open_folder
from ademamix.lab.train import Options, train
from lab_runs import CONTEXT, DELICATE, TINY, changed, kill, outcome, process
from lab_text import PATIENCE


def _folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs", TINY)


def test_a_folder_of_another_format_is_not_taken_for_one_of_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        pass
    monkeypatch.setattr(config, "FORMAT", config.FORMAT + 1)
    with pytest.raises(RunError, match=f"{folder.path.name}' is that of a run of another version"):
        open_folder(folder.path)


def test_a_folder_knows_its_run(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        pass
    assert open_folder(folder.path).config == TINY


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        for step in (5, 10, 15, 20):
            folder.save_checkpoint(step, {"x": torch.full((3,), float(step))})
        assert len(list((folder.path / "checkpoints").iterdir())) == KEPT_CHECKPOINTS
        step, state = folder.load_checkpoint() or (None, {})
    assert step == 20
    assert state["x"].tolist() == [20.0, 20.0, 20.0]


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content[:50] + b"?" + content[51:]])
def test_a_damaged_checkpoint_is_not_used(tmp_path: Path, damage) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        folder.save_checkpoint(1, {"x": torch.ones(3)})
        folder.save_checkpoint(2, {"x": torch.ones(3)})
        newest = max((folder.path / "checkpoints").iterdir())
        newest.write_bytes(damage(newest.read_bytes()))
        with pytest.warns(UserWarning, match=newest.name):
            assert (folder.load_checkpoint() or (None,))[0] == 1


def test_damaged_checkpoints_do_not_take_the_place_of_new_ones(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        for step in (90, 100):
            folder.save_checkpoint(step, {})
        for path in (folder.path / "checkpoints").iterdir():
            path.write_bytes(b"torn")
        with pytest.warns(UserWarning, match="damaged|no checkpoint is whole"):
            assert folder.load_checkpoint() is None
        folder.save_checkpoint(10, {})
        assert folder.load_checkpoint() == (10, {})


def test_a_half_written_line_of_metrics_is_dropped(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        with folder.open_metrics() as append:
            append({"step": 4, "loss": 2.0})
            append({"step": 8, "loss": 1.0})
        with (folder.path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 12, "lo')
        assert [row["step"] for row in folder.metrics()] == [4, 8]
        folder.keep_metrics_until(4)
        assert folder.metrics() == [{"step": 4, "loss": 2.0}]


@pytest.mark.parametrize("content", ["", "{", "[1]", "{}", "\xff"])
def test_a_damaged_file_is_called_damaged(content: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    folder.path.mkdir(parents=True)
    (folder.path / "result.json").write_bytes(content.encode("latin-1"))
    (folder.path / "metrics.jsonl").write_bytes(content.encode("latin-1") + b"\n")
    with pytest.raises(RunError, match=r"result\.json' is damaged .* remove the folder"):
        folder.result()
    if content != "{}":
        with pytest.raises(RunError, match=r"metrics\.jsonl' is damaged"):
            folder.metrics()


@pytest.mark.parametrize("line", ['{"loss": 1.0}', '{"step": "4"}', '{"step": true}', '{"step": 4, "loss": "low"}'])
def test_a_row_of_metrics_that_is_none_is_called_damaged(line: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    folder.path.mkdir(parents=True)
    (folder.path / "metrics.jsonl").write_text(f'{{"step": 2, "loss": 1.0}}\n{line}\n')
    for read in (folder.metrics, lambda: folder.keep_metrics_until(4)):
        with pytest.raises(RunError, match=r"metrics\.jsonl' is damaged \(line 2"):
            read()


def test_what_is_not_a_number_is_written_as_json_and_read_as_such(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    result = Result(steps=1, validation_loss=math.nan, accuracy=None, seconds=1.0, parameters=1, state_bytes=1)
    with folder.locked():
        with folder.open_metrics() as append:
            append({"step": 4, "loss": math.nan, "gradient_norm": math.inf})
        folder.keep_metrics_until(4)
        folder.finish(result, Path.mkdir)
    for name in ("metrics.jsonl", "result.json"):
        json.loads((folder.path / name).read_text(), parse_constant=pytest.fail)
    (row,) = folder.metrics()
    assert row["step"] == 4
    assert math.isnan(row["loss"])
    assert math.isnan((folder.result() or result).validation_loss)
    (folder.path / "metrics.jsonl").write_text('{"step": 4, "loss": NaN}\n')  # as it was written before
    assert math.isnan(folder.metrics()[0]["loss"])


def test_the_metrics_are_on_disk_before_the_checkpoints_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path)
    result = Result(steps=1, validation_loss=1.0, accuracy=None, seconds=1.0, parameters=1, state_bytes=1)
    synced: list[str] = []

    def to_disk(path: Path) -> None:
        assert (folder.path / "checkpoints").exists()
        assert not (folder.path / "result.json").exists()
        synced.append(path.name)

    with folder.locked():
        folder.save_checkpoint(1, {})
        with folder.open_metrics() as append:
            append({"step": 1, "loss": 1.0})
            monkeypatch.setattr(record, "to_disk", to_disk)
            folder.finish(result, Path.mkdir)
    assert "metrics.jsonl" in synced


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        pass
    (folder.path / "checkpoints").mkdir(exist_ok=True)
    (folder.path / "checkpoints" / ".checkpoint.part").write_bytes(b"half")
    (folder.path / ".model.part").mkdir()
    with folder.locked():
        assert not list(folder.path.rglob("*.part"))


def _hold(folder: RunFolder, held: Event) -> None:
    with folder.locked():
        held.set()
        signal.pause()  # until it is killed


def test_a_second_process_waits_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    folder, held, waited = _folder(tmp_path), CONTEXT.Event(), []
    holder = CONTEXT.Process(target=_hold, args=(folder, held))
    holder.start()
    assert held.wait(PATIENCE)

    def on_wait() -> None:
        waited.append(True)
        kill(holder)

    with folder.locked(on_wait=on_wait):
        assert waited == [True]


def test_two_processes_on_one_run_train_it_once(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    runs = [process(TINY, alone, save_every=0.0), *(process(TINY, together, save_every=0.0) for _ in range(2))]
    for one in runs:
        one.join()
        assert one.exitcode == 0
    assert outcome(TINY, together) == outcome(TINY, alone)
    assert len(list((RunFolder(together / "runs", TINY).path / "tensorboard").iterdir())) == 1


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    options = Options(tmp_path)
    first = train(TINY, options)
    reports: list[object] = []
    assert train(TINY, options, report=reports.append) == first
    assert not reports
    folder = RunFolder(options.runs, TINY)
    assert isinstance(folder.result(), Result)
    assert not (folder.path / "checkpoints").exists()


@pytest.fixture
def _small_disk():
    """Files may not grow beyond 20 kB: what a full disk does, as far as a program can see."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("_small_disk")
def test_a_full_disk_leaves_what_was_saved(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        folder.save_checkpoint(1, {"x": torch.ones(10)})
        with pytest.raises(RunError, match="Everything saved before is intact"):
            folder.save_checkpoint(2, {"x": torch.ones(100_000)})
        assert (folder.load_checkpoint() or (None,))[0] == 1
        assert not list(folder.path.rglob("*.part"))


@pytest.mark.usefixtures("_small_disk")
def test_a_full_disk_at_the_end_keeps_the_checkpoints(tmp_path: Path) -> None:
    folder, model = _folder(tmp_path), networks.build_model(DELICATE.model, 256)
    result = Result(steps=1, validation_loss=1.0, accuracy=None, seconds=1.0, parameters=1, state_bytes=1)
    with folder.locked():
        folder.save_checkpoint(1, {"x": torch.ones(10)})
        with pytest.raises(RunError, match="cannot write the result"):
            folder.finish(result, lambda path: networks.save(model, path))
        assert folder.result() is None
        assert (folder.load_checkpoint() or (None,))[0] == 1
        assert not list(folder.path.rglob("*.part"))


def test_a_run_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    lost = changed(TINY, data={"kind": "text", "source": str(tmp_path / "nowhere")})
    with pytest.raises(DataError, match="nowhere"):
        train(lost, Options(tmp_path))
    assert not list((tmp_path / "runs").iterdir())
    folder = _folder(tmp_path)
    with folder.locked(), folder.open_metrics() as append:
        append({"step": 1})
    with pytest.raises(KeyError), folder.locked():
        raise KeyError
    assert len(folder.metrics()) == 1


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match=r"cannot create the folder '.*runs.*'"), _folder(tmp_path).locked():
        pass


def test_a_finished_run_can_be_loaded_by_its_folder(tmp_path: Path) -> None:
    result = train(TINY, Options(tmp_path))
    assert open_folder(tmp_path / "runs" / TINY.key).result() == result
