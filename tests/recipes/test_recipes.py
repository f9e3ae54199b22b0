"""Every recipe at smoke scale, through the engine; and the one list of them."""

from __future__ import annotations

import importlib
import inspect
import json
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import get_args

import pytest
from PIL import Image

from ademamix.cli import main
from ademamix.lab.recipes import OF_THE_PAPER, RECIPES, load
from ademamix.lab.reproduction.claims import OPEN, Verdict
from ademamix.lab.reproduction.engine import reproduce
from ademamix.lab.reproduction.scale import SCALES
from ademamix.lab.runs.laboratory import Lab

NOT_SO_HERE = {
    "nested-emas": ["AdMeta gives recent gradients less weight than a single EMA"],
    "toy-rosenbrock": [
        "AdEMAMix reaches better solutions than every Adam run at every beta3 of the sweep",
        "AdEMAMix reaches a better solution than Adam at every learning rate that was tried for Adam",
    ],
}
"""What does not hold, of the recipes that need no training; all else that they claim does."""
DISTINCT_TITLES = ("constant-lr", "forgetting", "forgetting-constant-lr")
"""Charts of one metric that only their titles tell apart."""


@pytest.mark.filterwarnings("ignore:beta3 = .* remembers about")  # some sweeps go too far, as the paper's do
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_at_smoke_scale(name: str, tmp_path: Path, lab: Lab) -> None:
    text = "\n".join(reproduce(name, SCALES["smoke"], tmp_path, lab))
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert (verdict["recipe"], verdict["scale"], verdict["complete"]) == (name, "smoke", True)
    assert (verdict["labels"], verdict["source"]) == (list(RECIPES[name].labels), RECIPES[name].source)
    for claim in (claim for panel in verdict["panels"] for claim in panel["claims"]):
        assert set(claim) == {"claim", "source", "ours", "verdict", "reason", "numbers", "seeds"}
        assert claim["verdict"] in get_args(Verdict)
        assert claim["numbers"]
        assert claim["claim"] in " ".join(text.split())
    panels = json.loads((tmp_path / "panels.json").read_text())["panels"]
    assert [panel["claims"] for panel in panels] == [panel["claims"] for panel in verdict["panels"]]
    assert all(panel["claims"] and panel["charts"] and panel["tables"] for panel in panels)
    titles = [chart["title"].partition(") ")[2] or chart["title"] for panel in panels for chart in panel["charts"]]
    assert name not in DISTINCT_TITLES or len(set(titles)) == len(titles)
    _check_figures(tmp_path, name, {panel["figure"] for panel in panels})
    report = (tmp_path / "report.md").read_text()
    assert report.startswith(f"# {name}\n")
    assert f"{RECIPES[name].origin}), at smoke scale" in report
    assert ("the paper's" in report.splitlines()[2]) == (name in OF_THE_PAPER)
    assert all(picture.name in report for picture in tmp_path.glob("*.png"))


def _check_figures(folder: Path, name: str, figures: set[str]) -> None:
    expected = {f"{name}-{figure}" if figure else name for figure in figures}
    assert {path.stem for path in folder.glob("*.png")} == {path.stem for path in folder.glob("*.svg")} == expected
    for path in folder.glob("*.png"):
        with Image.open(path) as image:
            image.load()
            assert min(image.size) > 500
    for path in folder.glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_claims_of_the_recipes_that_need_no_training() -> None:
    not_so: dict[str, list[str]] = {}
    for name in RECIPES:
        panels = list(load(name)(SCALES["paper"]))
        if any(panel.arms or panel.measure for panel in panels):
            continue
        for claim in (claim for panel in panels for claim in panel.claims):
            decision = claim.decide(None)  # they look at no outcome
            assert not decision.seeds
            if decision.verdict != "holds":
                not_so.setdefault(name, []).append(claim.text)
    assert not_so == NOT_SO_HERE


def test_what_is_too_short_concludes_nothing(tmp_path: Path, lab: Lab) -> None:
    *_, files = reproduce("toy-two-emas", SCALES["smoke"], tmp_path, lab)
    (panel,) = json.loads((tmp_path / "verdict.json").read_text())["panels"]
    assert {claim["verdict"] for claim in panel["claims"]} == {OPEN}
    assert panel["warning"] == "Only 40 steps, to see that it works: they show nothing."
    assert panel["warning"] in (tmp_path / "report.md").read_text()
    assert str(tmp_path / "verdict.json") in files


def test_files_are_the_same_every_time(tmp_path: Path, lab: Lab) -> None:
    contents = []
    for _ in range(2):
        list(reproduce("nested-emas", SCALES["smoke"], tmp_path, lab))
        contents.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 5


class TestList:
    def test_listing_loads_no_framework(self) -> None:
        code = (
            "import sys, ademamix.lab.recipes as recipes\n"
            "assert recipes.RECIPES and recipes.SCALES == ('smoke', 'laptop', 'paper')\n"
            "print([name for name in ('torch', 'matplotlib', 'numpy', 'pydantic') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def test_the_list_and_the_modules_are_the_same(self) -> None:
        package = importlib.import_module("ademamix.lab.recipes")
        modules = {path.stem.replace("_", "-") for path in Path(package.__file__).parent.glob("[!_]*.py")}
        assert modules == set(RECIPES)
        assert all(callable(load(name)) for name in RECIPES)

    def test_command_lists(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main(["reproduce", "--list"])
        assert ended.value.code == 0
        header, *rows = capsys.readouterr().out.splitlines()
        assert header.split() == ["recipe", "reproduces", "laptop", "shows"]
        for row, (name, recipe) in zip(rows, RECIPES.items(), strict=True):
            assert row.startswith(name)
            assert all(part in row for part in (recipe.origin, recipe.laptop, recipe.summary))


class TestCommand:
    def test_writes_the_report_and_prints_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["reproduce", "ema-weights", "--scale", "paper", "--out", str(tmp_path / "new")]) == 0
        printed = capsys.readouterr().out
        folder = tmp_path / "new" / "ema-weights" / "paper"
        names = ["ema-weights.png", "ema-weights.svg", "panels.json", "report.md", "verdict.json"]
        assert sorted(path.name for path in folder.iterdir()) == names
        (panel,) = json.loads((folder / "panels.json").read_text())["panels"]
        assert {"ademamix", "python", "machine"} <= panel["environment"].keys()
        assert str(folder / "report.md") in printed
        assert "6,930.1" in printed
        assert "holds: No beta gives weight to the immediate past and to very old steps at once." in printed

    def test_folder_that_cannot_be_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.chdir(tmp_path)
        assert main(["reproduce", "ema-weights", "--out", "file"]) == 2
        printed, message = capsys.readouterr()
        assert printed == ""
        assert message.startswith("ademamix: error: cannot write to the folder ")
        assert "'file" in message
        assert "--out DIR" in message
        assert message.count("\n") == 1

    @pytest.mark.parametrize("missing", ["matplotlib", "numpy", "torch"])
    def test_package_that_is_missing(self, missing: str, tmp_path: Path) -> None:
        command = [sys.executable, "-c", WITHOUT, missing, "reproduce", "toy-rosenbrock", "--out", str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert f"needs {missing}, which is not installed: pip install 'ademamix[lab]'" in ended.stderr

    def test_help_teaches(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stopped:
            main(["reproduce", "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert "ademamix reproduce toy-rosenbrock" in text
        assert "Rosenbrock function" in text
        of_the_paper, _, others = text.partition("  all ")
        assert all(f"\n  {name} " in of_the_paper for name in OF_THE_PAPER)
        assert all(f"\n  {name} " in others for name in set(RECIPES) - set(OF_THE_PAPER))


WITHOUT = """\
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from ademamix.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""A command where a package is missing: in a process of its own, for modules that are loaded twice have two of each
class."""


def test_a_recipe_is_short() -> None:
    lines = {}
    for name in RECIPES:
        module = importlib.import_module(f"ademamix.lab.recipes.{name.replace('-', '_')}")
        if any(panel.arms for panel in load(name)(SCALES["smoke"])):
            lines[name] = len(inspect.getsource(module).splitlines())
    assert statistics.median(lines.values()) <= 80, lines
