"""The lab's sources of text, and what becomes of a source that cannot be used."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import lab_text
from ademamix.lab.config import Images, Text, ViT
from ademamix.lab.data import DataError, text
from lab_text import MODEL, bytes_of, read, tokens_of, words

cache, folder, standard_cache = lab_text.cache, lab_text.folder, lab_text.standard_cache


def test_the_standard_library_is_cleaned_and_split_by_file(standard_cache):
    files = text.standard_library()
    assert not [name for name in files if set(name.split("/")) & {"test", "tests", "site-packages", "encodings"}]
    assert not {"html/entities.py", "pydoc_data/topics.py", "locale.py"} & set(files)
    assert {"os.py", "json/decoder.py", "asyncio/base_events.py"} <= set(files)
    tokens = tokens_of("stdlib", standard_cache)
    documents = {"training": set(), "validation": set()}
    for split in documents:
        content = bytes_of(getattr(tokens, split))
        assert content.endswith(b"\0")
        assert b"\r" not in content
        documents[split] = set(content.decode().split("\0")[:-1])
    not_empty = {path.read_text(encoding="utf-8") for path in files.values()} - {""}
    assert documents["training"] | documents["validation"] == not_empty
    assert len(documents["training"] & documents["validation"]) < 3  # a few short files are alike
    assert 0.05 < len(tokens.validation) / len(tokens.training) < 0.2
    assert files["os.py"].read_text(encoding="utf-8") in documents["training"]


def test_a_python_without_sources_is_told(tmp_path):
    with pytest.raises(DataError, match="no sources of its standard library"):
        text.standard_library(tmp_path)


def test_the_last_tenth_of_a_file_is_validation(folder, cache):
    content = "é\r\n" * 50 + words(300)
    (folder / "one.txt").write_bytes(content.encode())
    tokens = tokens_of(folder / "one.txt", cache)
    expected = content.replace("\r\n", "\n")
    border = len(expected) - len(expected) // 10
    assert bytes_of(tokens.training).decode() == expected[:border] + "\0"
    assert bytes_of(tokens.validation).decode() == expected[border:] + "\0"


def test_a_long_file_is_read_in_parts(folder, cache, monkeypatch):
    (folder / "one.txt").write_text(words(1000))
    whole = tokens_of(folder / "one.txt", cache)
    monkeypatch.setattr(text, "CHARACTERS_AT_ONCE", 97)
    monkeypatch.setattr("ademamix.lab.data.tokens.CHARACTERS_AT_ONCE", 500)
    parts = tokens_of(folder / "one.txt", cache.with_name("other"))
    assert parts.fingerprint == whole.fingerprint
    assert np.array_equal(parts.training, whole.training)
    assert np.array_equal(parts.validation, whole.validation)


def test_a_folder_is_split_by_file_and_a_new_file_moves_no_other(folder, cache):
    names = [f"{chr(97 + index % 26)}/{index}.md" for index in range(60)]
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"document {index} {words(5, index)}")
    before = tokens_of(folder, cache)
    (folder / "a" / "new.md").write_text("something new")
    after = tokens_of(folder, cache)
    documents = [
        [set(bytes_of(part).decode().split("\0")[:-1]) for part in (each.training, each.validation)]
        for each in (before, after)
    ]
    assert before.fingerprint != after.fingerprint
    assert 0 < len(documents[0][1]) < 20
    assert documents[0][0] <= documents[1][0]
    assert documents[0][1] <= documents[1][1]
    assert documents[1][0] | documents[1][1] == {path.read_text() for path in folder.glob("*/*.md")}


def test_one_file_in_ten_is_validation_by_its_name():
    assert 900 < sum(text.is_validation(f"file {index}", 10) for index in range(10_000)) < 1100


def test_a_folder_takes_text_of_every_kind_and_leaves_the_rest(folder, cache):
    (folder / "b.jsonl").write_text(json.dumps({"text": "two\r\nlines"}) + "\n\n" + '{"text": "half \\ud83d pair"}\n')
    (folder / "e.rst").write_text("other")
    (folder / ".hidden.txt").write_text("no")
    (folder / ".git").mkdir()
    (folder / ".git" / "config.txt").write_text("no")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    (folder / "numbers.bin").write_bytes(b"a\0b")
    (folder / "a").write_text("validation")
    assert [name for name in ("a", "b.jsonl", "e.rst") if text.is_validation(name, 10)] == ["a"]
    tokens = tokens_of(folder, cache)
    assert bytes_of(tokens.validation) == b"validation\0"
    assert bytes_of(tokens.training) == b"two\nlines\0half ? pair\0other\0"


def test_a_folder_of_few_files_gives_the_last_tenth_of_each(folder, cache):
    (folder / "b.txt").write_text("b" * 90 + "1" * 10)
    (folder / "d.txt").write_text("d" * 90 + "2" * 10)
    assert not any(text.is_validation(name, 10) for name in ("b.txt", "d.txt"))
    tokens = tokens_of(folder, cache)
    assert bytes_of(tokens.training) == b"b" * 90 + b"\0" + b"d" * 90 + b"\0"
    assert bytes_of(tokens.validation) == b"1" * 10 + b"\0" + b"2" * 10 + b"\0"


@pytest.mark.parametrize(("tiny", "large"), [("b.txt", "c.txt"), ("c.txt", "b.txt")])
def test_a_folder_of_a_large_and_a_tiny_file_gives_the_last_tenth_of_each(tiny, large, folder, cache):
    (folder / tiny).write_text("0123456789")
    (folder / large).write_text(words(2000))
    assert [name for name in ("b.txt", "c.txt") if text.is_validation(name, 10)] == ["c.txt"]
    tokens = tokens_of(folder, cache)
    characters = 2000 * 6 - 1
    assert len(tokens.training) == characters - characters // 10 + 9 + 2
    assert len(tokens.validation) == characters // 10 + 1 + 2
    assert read(Text(kind="text", source=str(folder)), cache).batch(0).inputs.shape == (2, 16)


def test_hashes_are_remembered_of_files_that_rest(folder, cache):
    path = folder / "one.txt"
    path.write_text("a" * 1000)
    os.utime(path, (1e9, 1e9))
    key = text.content_hash({"one": path}, cache)
    assert text.content_hash({"two": path}, cache.with_name("other")) != key
    (remembered,) = (cache / "hashes").iterdir()
    assert remembered.read_text() == key
    remembered.write_text(key[:10])  # torn
    assert text.content_hash({"one": path}, cache) == key
    remembered.write_text("0" * 64)
    assert text.content_hash({"one": path}, cache) == "0" * 64
    path.write_text("b" * 1000)
    assert text.content_hash({"one": path}, cache) not in (key, "0" * 64)
    assert len(list((cache / "hashes").iterdir())) == 1  # it may change again within a tick of the clock


def test_text_that_cannot_be_used_is_explained(folder, cache):
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "broken.jsonl").write_text('{"txt": "?"}')
    for source, message in (
        (folder / "latin.txt", r"latin\.txt is not UTF-8 text: convert it"),
        (folder / "broken.jsonl", r'line 1 of .*broken\.jsonl is no JSON object with a string "text"'),
        (folder / "nowhere", "there is no text at .*nowhere.*give 'stdlib', 'kjv', a file, a folder, 'fineweb'"),
        ("hub:", r"is named hub:NAME\[:CONFIG"),
        ("hub:a:b:c:d:e", r"is named hub:NAME\[:CONFIG"),
    ):
        with pytest.raises(DataError, match=message):
            tokens_of(source, cache, tokens=10)
    (folder / "latin.txt").unlink()
    (folder / "broken.jsonl").unlink()
    with pytest.raises(DataError, match="there is no text in"):
        tokens_of(folder, cache)
    (folder / "one.txt").write_text("few")
    with pytest.raises(DataError, match="of training text, got 4"):
        read(Text(kind="text", source=str(folder)), cache)
    assert not list(cache.glob("*.partial"))


def test_a_model_of_the_other_kind_is_refused(cache):
    vit = ViT(kind="vit", width=16, layers=1, heads=1, patch=2, image=8, channels=1)
    for config, model in ((Text(kind="text"), vit), (Images(kind="images"), MODEL)):
        with pytest.raises(DataError, match=f"a model of kind '{model.kind}' cannot be trained on {config.kind}"):
            read(config, cache, model=model)
