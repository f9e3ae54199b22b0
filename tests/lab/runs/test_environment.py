"""What runs are carried out with: their data, and the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ademamix.lab.execution.runner import run_all
from ademamix.lab.runs import environment
from ademamix.lab.runs.record import RunError, RunFolder
from ademamix.lab.train import Options, train
from lab_runs import TINY, changed
from lab_text import finish, in_process


def _folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs", TINY)


def test_other_data_than_before_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text("one two three four five six seven\n" * 200)
    run = changed(TINY, data={"kind": "text", "source": str(source)})
    options = Options(tmp_path)
    folder = RunFolder(options.runs, run)
    train(run, options)
    (folder.path / "result.json").unlink()
    source.write_text("eight nine ten eleven twelve\n" * 200)
    with pytest.raises(RunError, match="has changed since the run"):
        train(run, options)


def test_runs_between_which_the_data_changed_are_not_compared(tmp_path: Path) -> None:
    source, options = tmp_path / "text.txt", Options(tmp_path)
    runs = {
        name: changed(TINY, data={"kind": "text", "source": str(source)}, optimizer={"name": name, "lr": 1e-3})
        for name in ("adamw", "lion")
    }
    for name, run in runs.items():
        source.write_text(f"one two three four five six seven {name}\n" * 200)
        train(run, options)
    source.unlink()
    with pytest.raises(RunError, match=f"remove the runs on the older data, '.*{runs['adamw'].key}', and give"):
        run_all(runs, options)


@pytest.mark.parametrize("other", [{"image": 16}, {"channels": 3}], ids=["size", "channels"])
def test_a_model_of_another_size_does_not_change_the_images(other: dict[str, int], tmp_path: Path) -> None:
    vit = {"kind": "vit", "width": 16, "layers": 1, "heads": 1, "patch": 4, "image": 8, "channels": 1}
    runs = {str(model): changed(TINY, model=model, data={"kind": "images"}, steps=8) for model in (vit, vit | other)}
    for run in runs.values():
        train(run, Options(tmp_path))
    assert len(run_all(runs, Options(tmp_path))) == 2


@pytest.mark.parametrize("kind", ["text", "images"])
def test_kept_results_are_shown_without_torch(kind: str, tmp_path: Path) -> None:
    vit = {"kind": "vit", "width": 16, "layers": 1, "heads": 1, "patch": 4, "image": 8, "channels": 1}
    run = TINY if kind == "text" else changed(TINY, model=vit, data={"kind": "images"})
    train(run, Options(tmp_path))
    code = """
        import sys
        from pathlib import Path
        from ademamix.lab.config import Run, read
        from ademamix.lab.execution.options import Options
        from ademamix.lab.execution.runner import run_all

        print(run_all({"kept": read(Run, sys.argv[1])}, Options(Path(sys.argv[2])))["kept"].steps)
        assert not {"torch", "transformers", "datasets"} & set(sys.modules)
    """
    assert finish(in_process(code, run.model_dump_json(), tmp_path)) == "24\n"


def test_the_environment_is_kept_where_it_changed(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    with folder.locked():
        for step, device in [(0, "cpu"), (7, "cpu"), (9, "cuda")]:
            environment.describe(folder, "fingerprint", step=step, device=device)
    carried_out = (folder.read_json(environment.FILE) or {})["carried_out"]
    assert [(entry["after_step"], entry["device"]) for entry in carried_out] == [(0, "cpu"), (9, "cuda")]
