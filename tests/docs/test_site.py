"""The built site: links lead somewhere, nothing comes from the network, and every public name is there."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import re
import shlex
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.util.inventory import InventoryFile

import ademamix
import ademamix.checkpoints
import ademamix.optax
from ademamix.cli import parser
from ademamix.lab.recipes import RECIPES

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "link": "href", "img": "src", "source": "src", "iframe": "src", "object": "data"}


class Reader(HTMLParser):
    """What a page refers to, and what may be referred to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.images: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in LOADED and found.get(LOADED[tag]):
            self.loaded.append(str(found[LOADED[tag]]))
        if tag == "img":
            self.images.append(found)


@functools.cache
def read(file: Path) -> Reader:
    reader = Reader()
    reader.feed(file.read_text())
    return reader


class Reference(NamedTuple):
    page: Path
    address: str

    def broken(self) -> bool:
        """Whether a file or an anchor is missing; addresses elsewhere are only looked at."""
        parts = urlsplit(self.address)
        if parts.scheme == "data":
            return False
        if parts.scheme or parts.netloc:
            return not (
                parts.scheme == "https" and re.fullmatch(r"[\w.-]+\.\w+", parts.netloc) and " " not in parts.path
            )
        target = (self.page.parent / unquote(parts.path)) if parts.path else self.page
        if not target.is_file():
            return True
        return bool(parts.fragment) and unquote(parts.fragment) not in read(target).ids


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_links_lead_somewhere(site: Path) -> None:
    references = [Reference(page, link) for page in pages(site) for link in {*read(page).links, *read(page).loaded}]
    assert len(references) > 1000
    assert [(page.name, address) for page, address in references if Reference(page, address).broken()] == []


def test_a_broken_link_is_noticed(site: Path) -> None:
    index = site / "index.html"
    for address in ("nothing.html", "start.html#nothing", "#nothing", "http://insecure.org", "https://nowhere"):
        assert Reference(index, address).broken(), address
    assert not Reference(index, "start.html#the-one-thing-to-know").broken()


def test_anchors_are_unique(site: Path) -> None:
    for page in pages(site):
        assert sorted(read(page).ids) == sorted(set(read(page).ids)), page.name


def test_nothing_comes_from_the_network(site: Path) -> None:
    loaded = {address for page in pages(site) for address in read(page).loaded if urlsplit(address).netloc}
    assert loaded == set()
    assert not [file.name for file in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", file.read_text())]


def test_images_have_a_text(site: Path) -> None:
    images = [image for page in pages(site) for image in read(page).images]
    assert len(images) >= 6
    assert [image["src"] for image in images if not image.get("alt")] == []


def test_every_recipe_is_in_the_table(site: Path) -> None:
    page = unescape((site / "recipes.html").read_text()).replace("’", "'")
    rows = [re.findall(r"<p>(.*?)</p>", row) for row in re.findall(r"<tr.*?</tr>", page, flags=re.DOTALL)]
    cells = [[re.sub(r"<[^>]+>", "", cell) for cell in row] for row in rows]
    expected = [[name, recipe.summary, recipe.origin, recipe.laptop] for name, recipe in RECIPES.items()]
    assert [row for row in cells if row and row[0] in RECIPES] == expected


def test_formulas_are_drawn_by_the_browser(site: Path) -> None:
    idea = (site / "idea.html").read_text()
    assert idea.count("<math") > 5
    assert "<mfrac>" in idea


def test_the_page_of_results_is_part_of_the_site(site: Path) -> None:
    assert (site / "report" / "index.html").read_bytes() == (ROOT / "docs" / "report" / "index.html").read_bytes()


def imported_by_readers() -> set[str]:
    """Return the names that pages and examples import from the package."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    imports = re.findall(
        r"^ *from (ademamix[\w.]*) import ([\w, ]+)$", "\n".join(file.read_text() for file in texts), flags=re.MULTILINE
    )
    return {f"{module}.{name.strip()}" for module, names in imports for name in names.split(",")}


def commands() -> list[str]:
    """Return the commands of ours in the blocks of all pages, without their comments."""
    blocks = [
        block
        for file in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
        for block in re.findall(
            r"^```(?:text|sh|bash|console)?\n(.*?)^```$", file.read_text(), re.DOTALL | re.MULTILINE
        )
    ]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [
        line for line in dict.fromkeys(lines) if line.startswith("ademamix ") and not re.search(r"[A-Z]{5}|\|", line)
    ]


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_pages_are_those_of_the_command_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(line, comments=True)
    assert program == "ademamix"
    options = parser().parse_args(arguments)
    assert callable(options.run)


def test_there_are_commands_of_every_kind() -> None:
    assert {line.split()[1] for line in commands()} >= {"plan", "compare", "sweep", "reproduce", "convert", "inspect"}
    with pytest.raises(SystemExit):
        parser().parse_args(["plan", "--step-count", "10"])


PUBLIC = sorted(
    {
        f"{package.__name__}.{name}"
        for package in (ademamix, ademamix.checkpoints, ademamix.optax)
        for name in package.__all__
    }
    | imported_by_readers()
)


@pytest.fixture(scope="session")
def documented(site: Path) -> set[str]:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    return {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str, documented: set[str]) -> None:
    assert name in documented
    found = pkgutil.resolve_name(name)
    if inspect.isroutine(found) or inspect.isclass(found):  # the text of others is beside them, where Sphinx finds it
        assert found.__doc__
