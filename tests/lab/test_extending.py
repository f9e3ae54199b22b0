"""What docs/extending.md shows is written into a copy of the package, file by file, and used there as a user would."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import ademamix
from ademamix.lab.config import Optimizer
from lab_runs import TINY, changed

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
HERE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")
                 and "editable" not in type(finder).__module__]
sys.path[:0] = sys.argv[1:3]
import ademamix
from pathlib import Path
out = Path(sys.argv[1]) / "out"
assert Path(ademamix.__file__).is_relative_to(sys.argv[1]), ademamix.__file__
"""
OPTIMIZER = """
import doctest, inspect
from ademamix.cli.run_options import lists
from ademamix.lab.optimizers import baselines, construction
assert "  sgdw " in lists()
(test,) = doctest.DocTestFinder().find(baselines.SGDW, "SGDW", globs=vars(baselines))
assert doctest.DocTestRunner().run(test) == (0, len(test.examples))
"""
RUN = """
from ademamix.lab.config import Run, read
from ademamix.lab.runs.record import RunFolder
from ademamix.lab.train import Options, train
run = read(Run, sys.argv[3])
assert not train(run, Options(out)).diverged
print(*[row["step"] for row in RunFolder(out / "runs", run).metrics() if "parameter_norm" in row])
"""
RECIPE = """
from lab_here import LabHere
from ademamix.lab.recipes import OF_THE_PAPER
from ademamix.lab.reproduction.engine import reproduce
from ademamix.lab.reproduction.scale import SCALES
from ademamix.lab.execution.options import Options
assert "alpha-alone" in OF_THE_PAPER
print("\\n".join(reproduce("alpha-alone", SCALES["smoke"], out / "alpha-alone", LabHere(Options(out)))))
"""


def _shown(beginning: str) -> str:
    """Return the block of the page that begins so."""
    blocks = re.findall(r"^( *)```(?:python)?\n(.*?)^\1```$", PAGE, re.DOTALL | re.MULTILINE)
    (block,) = (text for _, indented in blocks if (text := textwrap.dedent(indented)).startswith(beginning))
    return block


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """The lab of a copy of the package."""
    package = tmp_path / "ademamix"
    leave_out = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(Path(ademamix.__file__).parent, package, ignore=leave_out)
    core = importlib.util.find_spec("ademamix._core")
    assert core is not None
    assert core.origin is not None
    (package / Path(core.origin).name).symlink_to(core.origin)
    return package / "lab"


def _edit(path: Path, before: str, new: str) -> None:
    """Put something before a line of a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(f"\n{before}") == 1
    path.write_text(text.replace(f"\n{before}", f"\n{new}{before}"), encoding="utf-8")


def _add_row(path: Path, registry: str, row: str) -> None:
    text = path.read_text(encoding="utf-8")
    changed, found = re.subn(rf"^({registry}: .* = {{\n)", lambda line: line[0] + row, text, flags=re.MULTILINE)
    assert found == 1
    path.write_text(changed, encoding="utf-8")


def _run(lab: Path, code: str, *arguments: str) -> str:
    folders = [str(lab.parents[1]), str(Path(__file__).parents[1])]
    command = [sys.executable, "-c", HERE + code, *folders, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_optimizer_is_two_files(lab: Path) -> None:
    with (lab / "optimizers" / "baselines.py").open("a", encoding="utf-8") as module:
        module.write("\n\n" + _shown("class SGDW"))
    _add_row(lab / "optimizers" / "__init__.py", "OPTIMIZERS", _shown('"sgdw":'))
    run = TINY.model_dump_json().replace('"ademamix"', '"sgdw"', 1)
    assert _run(lab, OPTIMIZER + RUN, run) == "\n"


def test_a_recipe_is_two_files(lab: Path) -> None:
    (lab / "recipes" / "alpha_alone.py").write_text(_shown('"""How much alpha matters'), encoding="utf-8")
    _add_row(lab / "recipes" / "__init__.py", "RECIPES", _shown('"alpha-alone":'))
    report = _run(lab, RECIPE)
    assert "Every alpha outperforms AdamW" in report
    assert "alpha = 10 is better than 40" in report


def test_a_probe_is_one_file(lab: Path) -> None:
    probes = lab / "probes.py"
    _edit(probes, "Probe = Annotated[", _shown("class ParameterNorm") + "\n\n")
    probes.write_text(probes.read_text().replace("| Evaluate, Field", "| Evaluate | ParameterNorm, Field"))
    fields = changed(TINY, optimizer=Optimizer(name="adamw", lr=1e-3)).model_dump_json()
    run = fields.replace('"probes":[]', '"probes":[{"kind":"parameter-norm","every":10}]')
    assert _run(lab, RUN, run) == "10 20\n"
