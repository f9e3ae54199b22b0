"""The recipe toy-rosenbrock: its runs, what it says about them, its files and its errors."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from ademamix.cli import main
from ademamix.lab.recipes import toy_rosenbrock as recipe
from ademamix.reference import ReferenceAdEMAMix


def test_gradient_is_that_of_the_function():
    for start in (recipe.START, recipe.MINIMUM, (0.3, -1.7)):
        point = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        recipe.rosenbrock(*point).backward()
        assert_allclose(recipe.gradient(*start), point.grad, rtol=1e-12, atol=1e-12)


def test_ademamix_runs_with_the_settings_of_the_paper():
    oracle = ReferenceAdEMAMix([-3.0, 5.0], lr=0.05, betas=(0.9, 0.999, 0.99), alpha=9.0, weight_decay=0.0)
    expected = [oracle.theta]
    for _ in range(300):
        expected.append(oracle.update(recipe.gradient(*oracle.theta)))
    assert_allclose(recipe.descend("AdEMAMix", beta=0.99, lr=0.05, steps=300).points, expected, rtol=1e-9)


def test_adam_runs_with_the_settings_of_the_paper():
    # with alpha = 0, AdEMAMix is Adam
    oracle = ReferenceAdEMAMix([-3.0, 5.0], lr=0.2, betas=(0.99, 0.999, 0.0), alpha=0.0, weight_decay=0.0)
    expected = [oracle.theta]
    for _ in range(300):
        expected.append(oracle.update(recipe.gradient(*oracle.theta)))
    assert_allclose(recipe.descend("Adam", beta=0.99, lr=0.2, steps=300).points, expected, rtol=1e-9)


def test_measures_of_a_run():
    run = recipe.Run("Adam", 0.9, 0.1, np.array([[1.0, 5.0], [1.0, 2.0], [1.0, 3.0], [1.0, 1.5]]))
    assert run.steps == 3
    assert run.distances.tolist() == [4.0, 1.0, 2.0, 0.5]
    assert run.path_length == 3 + 1 + 1.5
    assert (run.first_within(3.0), run.first_within(1.0), run.first_within(0.5)) == (1, 3, None)


def test_rule_for_the_learning_rate():
    way = recipe.valley_length()
    runs = [
        recipe.Run("Adam", 0.9, lr, np.array([[0.0, 0.0], [stretch * way, 0.0]]))
        for lr, stretch in ((0.1, 0.5), (0.2, 1.33), (0.5, 1.34))
    ]
    assert recipe.choose_rate(runs).lr == 0.2


def test_everything_said_is_true_of_the_full_numbers():
    study = recipe.run_study()
    adam, slow = study.sweep["Adam"], study.sweep["AdEMAMix"]
    assert all(run.steps == 3000 and run.points[0].tolist() == [-3.0, 5.0] for run in adam + slow)
    assert ([run.beta for run in adam], [run.beta for run in slow]) == ([0.9, 0.99, 0.999], [0.99, 0.995, 0.999])
    assert ({run.lr for run in adam}, {run.lr for run in slow}) == ({0.2}, {0.05})

    # reading() and the titles of the figure
    assert adam[2].first_within(1.0) < adam[1].first_within(1.0) < adam[0].first_within(1.0)
    assert 1.2 * adam[0].path_length < adam[1].path_length < 0.5 * adam[2].path_length
    assert "path is 34.4 long, where the way through the valley is 8.1, and it ends 1.0 from" in recipe.reading(study)
    for run in slow[:2]:
        assert run.first_within(1.0) < min(adam[0].first_within(1.0), adam[1].first_within(1.0))
        assert run.path_length < 1.01 * adam[0].path_length
        assert run.distances[-1] < min(other.distances[-1] for other in adam)
    across = {run: abs(run.points[300:, 1] - run.points[300:, 0] ** 2).max() for run in (adam[2], slow[2])}
    assert across[slow[2]] < 0.02 < 1 < across[adam[2]]  # zigzag: how far it strays from the valley's floor
    assert slow[2].points[:, 0].max() == pytest.approx(2.0, abs=0.05)

    # rates_reading()
    larger, reduced = study.rates["Adam"][-1], study.rates["AdEMAMix"][0]
    assert (larger.lr, reduced.lr) == (0.5, 0.02)
    assert larger.path_length > slow[0].path_length
    assert larger.distances[-1] < slow[0].distances[-1]
    assert reduced.distances[-1] > adam[0].distances[-1]


def test_command_prints_the_table_and_writes_the_figure_twice(tmp_path, capsys):
    command = ["reproduce", "toy-rosenbrock", "--scale", "smoke", "--out", str(tmp_path / "new" / "folder")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "new" / "folder" / "toy-rosenbrock" / "smoke"
    png, svg = folder / "toy-rosenbrock.png", folder / "toy-rosenbrock.svg"
    assert sorted(folder.iterdir()) == [folder / "report.txt", png, svg]
    assert (folder / "report.txt").read_text() == printed
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in svg.read_text(encoding="utf-8")
    assert str(png) in printed
    assert str(svg) in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith(("Adam  ", "AdEMAMix  "))]
    assert [(row[0], row[3]) for row in rows] == [
        *(("Adam", beta) for beta in ("0.9", "0.99", "0.999")),
        *(("AdEMAMix", beta) for beta in ("0.99", "0.995", "0.999")),
    ]
    first = recipe.descend("Adam", 0.9, float(rows[0][4]), steps=40)
    assert [float(cell) for cell in rows[0][5:8]] == pytest.approx(first.distances[[10, 20, 40]], rel=0.06)
    assert float(rows[0][-1]) == pytest.approx(first.path_length, abs=0.06)
    assert "they show nothing" in printed
    assert recipe.rates_reading(recipe.run_study(steps=40))[:40] not in printed

    before = svg.read_bytes(), png.read_bytes()
    assert main(command) == 0
    assert (svg.read_bytes(), png.read_bytes()) == before


def test_report_of_the_other_scales_has_the_readings(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipe, "STEPS", 40)
    printed = recipe.reproduce(tmp_path, "laptop")
    study = recipe.run_study(steps=40)
    for part in (recipe.table(study), recipe.rates_table(study)):
        assert part in printed
    for part in (recipe.reading(study), recipe.rates_reading(study)):
        assert part in " ".join(printed.split())
    assert capsys.readouterr().err == "running 14 descents, about ten seconds\n"


def test_progress_on_a_terminal_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    recipe.run_study(steps=1, progress=recipe._show_progress)
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert written.endswith("\rrun 14 of 14\n")


def test_folder_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "toy-rosenbrock", "--out", "file"]) == 2
    printed, message = capsys.readouterr()
    assert printed == ""
    assert message.startswith("ademamix: error: cannot write to the folder ")
    assert "'file" in message
    assert "--out DIR" in message
    assert message.count("\n") == 1


class Absent:
    """A finder of modules that does not find one package."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("missing", ["matplotlib", "torch"])
def test_package_that_is_missing(missing, tmp_path, capsys, monkeypatch):
    for name in [*sys.modules]:
        if name == recipe.__name__ or name.split(".")[0] == missing:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(missing), *sys.meta_path])
    assert main(["reproduce", "toy-rosenbrock", "--out", str(tmp_path)]) == 2
    assert f"needs {missing}, which is not installed: pip install 'ademamix[lab]'" in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "ademamix reproduce toy-rosenbrock" in text
    assert "Rosenbrock function" in text
