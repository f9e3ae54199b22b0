"""Small records of runs: what they keep, and that results can be shown from them as from the runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ademamix.lab.config import Run
from ademamix.lab.execution.laboratory import Lab
from ademamix.lab.execution.options import Options
from ademamix.lab.runs.archive import Archive
from ademamix.lab.runs.environment import CurrentData
from ademamix.lab.runs.record import RunError, RunFolder
from ademamix.lab.train import train
from lab_runs import TINY, changed

FOLLOWED = changed(TINY, probes=[{"kind": "update-norms", "span": 6}])


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """A folder with the record of `FOLLOWED`, which was trained in `trained`."""
    result = train(FOLLOWED, Options(tmp_path / "trained"))
    Archive(tmp_path / "records").add(RunFolder(tmp_path / "trained" / "runs", FOLLOWED), result)
    return tmp_path


def restored(archived: Path, run: Run = FOLLOWED, current: CurrentData | None = None) -> RunFolder:
    folder = RunFolder(archived / "restored", run)
    found = Archive(archived / "records").restore({"run": run}, archived / "restored", current)
    assert list(map(repr, found.values())) == [repr(result) for result in [folder.result()] if result is not None]
    return folder


def test_a_run_comes_back_from_its_record(archived: Path) -> None:
    trained, back = RunFolder(archived / "trained" / "runs", FOLLOWED), restored(archived)
    assert back.result() is not None
    for name, value in vars(trained.result()).items():
        assert getattr(back.result(), name) == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)
    assert back.read_json("environment.json") == trained.read_json("environment.json")
    rows = [{name: row[name] for name in row if name not in ("lr", "gradient_norm")} for row in trained.metrics()]
    assert [row["step"] for row in rows] == [4, 6, 8, 12, 16, 18, 20, 24]
    for row, kept in zip(rows, back.metrics(), strict=True):
        assert kept == {name: pytest.approx(value, rel=1e-5) for name, value in row.items()}
    assert train(FOLLOWED, Options(archived / "trained")).steps == 24


def test_a_run_that_diverged_comes_back_as_that(tmp_path: Path) -> None:
    wild = changed(TINY, optimizer={"name": "adamw", "lr": 1e30}, clip=None)
    ended = train(wild, Options(tmp_path / "trained"))
    Archive(tmp_path / "records").add(RunFolder(tmp_path / "trained" / "runs", wild), ended)
    result = restored(tmp_path, wild).result()
    assert result is not None
    assert result.diverged
    assert math.isnan(result.validation_loss)


def test_records_on_other_data_are_passed_over(archived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CurrentData, "fingerprint", lambda self, config: "another")
    assert restored(archived, current=CurrentData(archived)).result() is None
    assert restored(archived, current=None).result() is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: "{",
        lambda record: json.dumps({**record, "run": {**record["run"], "steps": 25}}),
        lambda record: json.dumps({**record, "run": {}}),
        lambda record: json.dumps({name: part for name, part in record.items() if name != "result"}),
        lambda record: json.dumps({**record, "result": {**record["result"], "colour": "red"}}),
    ],
)
def test_a_damaged_record_is_named(archived: Path, damage) -> None:
    (path,) = (archived / "records").iterdir()
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(RunError, match=rf"the record '.*{FOLLOWED.key}.json' is damaged \(.*\): restore it") as refused:
        restored(archived)
    assert len(str(refused.value).splitlines()) == 1


def test_a_lab_trains_only_what_has_no_record(archived: Path, quick_workers: None) -> None:
    other = changed(FOLLOWED, seed=1)
    lab = Lab(Options(archived / "restored"), archive=Archive(archived / "records"))
    runs = {"archived": FOLLOWED, "other": other}
    with pytest.raises(RunError, match="1 of 2 runs are not finished, the first of them 'other'"):
        replace(lab, trains=False).carry_out(runs, "a test")
    assert list(lab.kept(runs)) == ["archived"]
    assert set(lab.carry_out(runs, "a test")) == {"archived", "other"}
    assert not (archived / "restored" / "runs" / FOLLOWED.key / "model").exists()
    assert {path.stem for path in (archived / "records").iterdir()} == {FOLLOWED.key, other.key}


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path, quick_workers: None) -> None:
    lost = changed(TINY, data={"kind": "text", "source": str(tmp_path / "nowhere")})
    lab, runs = Lab(Options(tmp_path), processes=1), {"lost": lost, "found": TINY}
    with pytest.raises(RunError, match=r"lost: .*nowhere"):
        lab.carry_out(runs, "a test")
    assert set(lab.carry_out(runs, "a test", keep_going=True)) == {"found"}
