"""The examples run, the Python in the documentation runs, and its links lead somewhere."""

from __future__ import annotations

import re
import runpy
from contextlib import nullcontext
from pathlib import Path

import pytest

from cpu_as_cuda import cpu_as_cuda

ROOT = Path(__file__).parent.parent


MARKS = {
    # These two warn of what they do without, and of what torch has deprecated.
    "deepspeed_zero": [pytest.mark.deepspeed, pytest.mark.filterwarnings("ignore")],
    "megatron_core": [pytest.mark.deepspeed, pytest.mark.filterwarnings("ignore")],
    "torchtitan_spec": [
        pytest.mark.triton,
        pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # of torch's own compiler
        pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),  # a checkpoint of one process
    ],
}
EXAMPLES = [
    pytest.param(path, marks=MARKS.get(path.stem, ()), id=path.stem)
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example, capsys):
    with cpu_as_cuda() if example.stem == "megatron_core" else nullcontext():
        runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", list(filter(blocks_of, PAGES)), ids=lambda page: page.name)
def test_python_in_the_documentation(page, monkeypatch):
    """The blocks of a page are one program, run where a reader would be: in the checkout."""
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for block in blocks_of(page):
        exec(compile(block, page.name, "exec"), names)


def test_no_page_is_left_out():
    names = {page.name for page in PAGES if blocks_of(page)}
    assert {"README.md", "pytorch.md", "integrations.md", "memory.md", "storage.md", "optax.md", "lab.md"} <= names
    assert {"start.md", "settings.md", "switching.md", "distributed.md", "migrating.md", "idle.md"} <= names


def test_the_versions_of_trainers_are_those_that_are_installed():
    page, constraints = ((ROOT / file).read_text() for file in ("docs/integrations.md", "constraints.txt"))
    rows = re.findall(r"^\| .+ \| (.+) \| .+ \| \[.+ \|$", page, flags=re.MULTILINE)
    stated = {f"{name}=={version}" for row in rows for name, version in re.findall(r"(\S+) (\d[\d.]+)", row)}
    assert len(stated) >= len(rows) > 4
    assert stated <= set(constraints.splitlines())


def anchors(page: Path) -> set[str]:
    """Return the anchors that the repository's host makes of headings: in lower case, words joined by dashes."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in (link for link in links if "://" not in link):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
