"""The recipes that need no training: their files, and what a list of all loads."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from ademamix.lab.recipes import (
    NO_TRAINING,
    RECIPES,
    load,
)

FILES = {  # toy-rosenbrock has tests of its own
    "toy-two-emas": ["toy-two-emas"],
    "ema-weights": ["ema-weights"],
    "beta3-schedule": ["beta3-schedule"],
    "mix-weights": ["mix-weights", "mix-weights-schedules"],
    "nested-emas": ["nested-emas"],
}


@pytest.mark.parametrize("name", FILES)
def test_recipe_writes_whole_files_and_the_same_every_time(name, tmp_path):
    report = load(name)(tmp_path, "smoke")
    files = [tmp_path / f"{file}.{kind}" for file in FILES[name] for kind in ("png", "svg")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    for file in files:
        assert str(file) in report
        if file.suffix == ".png":
            with Image.open(file) as image:
                image.load()
                assert min(image.size) > 500
        else:
            assert ElementTree.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    before = [file.read_bytes() for file in files]

    assert ("they show nothing" in report) != (NO_TRAINING in report)
    scale = "paper" if NO_TRAINING in report else "smoke"
    assert load(name)(tmp_path, scale) == report
    assert [file.read_bytes() for file in files] == before


def test_listing_the_recipes_loads_no_framework():
    code = (
        "import sys, ademamix.lab.recipes as recipes\n"
        "assert recipes.RECIPES and recipes.SCALES == ('smoke', 'laptop', 'paper')\n"
        "print([name for name in ('torch', 'matplotlib', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {"toy-rosenbrock", "lm-comparison", *FILES} == set(RECIPES)
