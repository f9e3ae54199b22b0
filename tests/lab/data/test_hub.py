"""Text of the Hugging Face hub and of RedPajama: how it is split, and what happens without a network."""

from __future__ import annotations

import gzip
import http.server
import json
import threading

import numpy as np
import pytest

import lab_text
from ademamix.lab.config import Text
from ademamix.lab.data import DataError, hub, text, tokens
from ademamix.lab.data.tokens import token_files
from lab_text import PATIENCE, bytes_of, finish, in_process, tokens_of, words

cache, folder, standard_cache = lab_text.cache, lab_text.folder, lab_text.standard_cache


def write_documents(folder, documents, field="text", file="documents.jsonl"):
    lines = [json.dumps({field: document, "number": number}) for number, document in enumerate(documents)]
    (folder / file).write_text("\n".join(lines))


def test_a_dataset_is_split_by_content_and_read_no_further_than_needed(folder, cache):
    documents = [f"{number} {words(20, number)}" for number in range(1500)]
    write_documents(folder, documents + documents[:300], field="body")
    source = f"hub:{folder}:::body"
    with pytest.raises(DataError, match="may not end: say with `tokens`"):
        tokens_of(source, cache)
    everything = tokens_of(source, cache, tokens=10**9)
    training, validation = (
        bytes_of(part).decode().split("\0")[:-1] for part in (everything.training, everything.validation)
    )
    assert sorted(training + validation) == sorted(documents + documents[:300])
    assert not set(training) & set(validation)
    assert 3 < len(validation) < 45
    bounded = tokens_of(source, cache, tokens=1000)
    assert np.array_equal(bounded.training, everything.training[:1000])
    write_documents(folder, ["changed", *documents], field="body")
    assert bytes_of(tokens_of(source, cache, tokens=1000).training).startswith(b"changed\0")
    for wrong, message in (
        (f"hub:{folder}", "'text' of the split 'train' of the dataset .* cannot be loaded.*Column name"),
        (f"hub:{folder}::dev:body", "cannot be loaded.*dev"),
        (f"hub:{folder}:::number", "a document must be a string, got 0"),
    ):
        with pytest.raises(DataError, match=message):
            tokens_of(wrong, cache, tokens=1000)


def check_places(open_documents):
    """Check that a stream continues after each of its documents, and can be stopped and continued again."""

    def read(place):
        documents = open_documents(place)
        return [(document, json.loads(json.dumps(documents.place()))) for document in documents]

    everything = read(None)
    assert len(everything) > 3
    for number, (_, place) in enumerate(everything, start=1):
        rest = read(place)
        assert [document for document, _ in rest] == [document for document, _ in everything[number:]]
        if rest:
            _, again = rest[0]
            assert [document for document, _ in read(again)] == [document for document, _ in rest[1:]]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_dataset_goes_on_after_each_of_its_documents(suffix, folder):
    import pyarrow
    from pyarrow import parquet

    for number in range(3):
        documents = [f"{number} {words(5, line)}" for line in range(5)]
        if suffix == "jsonl":
            write_documents(folder, documents, file=f"{number}.jsonl")
        else:
            parquet.write_table(pyarrow.table({"text": documents}), folder / f"{number}.parquet", row_group_size=2)
    check_places(lambda place: hub.HubRows(hub.HubName.parse(f"hub:{folder}"), place))


READ = """
    import os, signal, sys
    from pathlib import Path
    from ademamix.lab.config import Text
    from ademamix.lab.data import DataError, tokens

    def unplug():
        raise DataError("the network is down")

    source, cache, groups, end = sys.argv[1:]
    tokens.CHARACTERS_AT_ONCE, tokens.SAVE_EVERY = 2000, 0.0
    write, left = tokens._write, int(groups)
    ends = {"unplugged": unplug, "killed": lambda: os.kill(os.getpid(), signal.SIGKILL)}

    def write_until_the_end(pieces, *others):
        global left
        if not left:
            ends[end]()
        left -= 1
        print(*(piece.text.split()[0] for piece in pieces), sep="\\n", flush=True)
        write(pieces, *others)

    tokens._write = write_until_the_end
    try:
        config = Text(kind="text", source=source, tokenizer="sentencepiece:300", tokens=20_000)
        tokens.token_files(config, Path(cache))
    except DataError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
"""


def test_a_stream_is_read_on_when_its_process_was_killed_or_the_network_fails(folder, cache):
    for number in range(3):
        write_documents(folder, [words(50, 100 * number + line) for line in range(100)], file=f"{number}.jsonl")

    def read(groups, end):
        process = in_process(READ, f"hub:{folder}", cache / "torn", groups, end)
        documents, errors = process.communicate(timeout=PATIENCE)
        return documents.split(), errors, process.returncode

    seen = []
    for groups, end, code in ((4, "unplugged", 2), (0, "killed", -9), (5, "killed", -9), (3, "unplugged", 2)):
        documents, errors, returned = read(groups, end)
        assert returned == code, errors
        assert bool(groups) == bool(documents)
        assert ("network is down. The text read so far is kept in" in errors) == (end == "unplugged")
        seen += documents
    told = []
    config = Text(kind="text", source=f"hub:{folder}", tokenizer="sentencepiece:300", tokens=20_000)
    built = token_files(config, cache / "torn", lambda *count: told.append(count))
    assert len(seen) == len(set(seen)) > 60  # nothing was read twice
    assert told == [(20_000, 20_000)]
    whole = token_files(config, cache / "whole")
    assert built.fingerprint == whole.fingerprint
    assert np.array_equal(built.training, whole.training)
    assert np.array_equal(built.validation, whole.validation)
    names = [sorted(path.name for path in each.parent.iterdir()) for each in cache.glob("*/*/meta.json")]
    assert names[0] == names[1] == ["meta.json", "tokenizer.model", "train.bin", "validation.bin"]


@pytest.mark.parametrize("change", ["version", "damage", "nothing"])
def test_what_cannot_be_read_on_is_read_anew(change, folder, cache, monkeypatch):
    write_documents(folder, [words(50, line) for line in range(100)])
    monkeypatch.setattr(tokens, "CHARACTERS_AT_ONCE", 2000)
    monkeypatch.setattr(tokens, "SAVE_EVERY", 0.0)
    config = Text(kind="text", source=f"hub:{folder}", tokens=9000)

    def stop(count, wanted):
        if count > wanted // 2:
            raise DataError("stopped")

    with pytest.raises(DataError, match=r"stopped\. The text read so far is kept in"):
        token_files(config, cache, stop)
    if change == "version":
        monkeypatch.setattr(tokens, "version", lambda name: f"another {name}")
    if change == "damage":
        (progress,) = cache.glob("*.partial/progress.json")
        progress.write_text("{")
    told = []
    built = token_files(config, cache, lambda count, _: told.append(count))
    assert (told[0] < 4500) == (change != "nothing")
    assert built.fingerprint == token_files(config, cache / "whole").fingerprint


def test_a_stream_that_was_read_to_its_bound_is_not_read_further(folder, cache, monkeypatch):
    write_documents(folder, [words(50, line) for line in range(100)])
    monkeypatch.setattr(hub, "VALIDATION_SHARE", 2)
    monkeypatch.setattr(tokens, "CHARACTERS_AT_ONCE", 2000)
    monkeypatch.setattr(tokens, "SAVE_EVERY", 0.0)
    config = Text(kind="text", source=f"hub:{folder}", tokens=9000)
    whole = token_files(config, cache / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(tokens, "file_hash", lambda path: 1 / 0)  # as if killed after the last token
        with pytest.raises(ZeroDivisionError):
            token_files(config, cache / "torn")
    assert token_files(config, cache / "torn").fingerprint == whole.fingerprint


def test_a_dataset_that_changes_while_it_is_read_is_not_mixed(folder, cache, monkeypatch):
    documents = [words(50, line) for line in range(100)]
    write_documents(folder, documents)
    monkeypatch.setattr(tokens, "CHARACTERS_AT_ONCE", 2000)
    monkeypatch.setattr(tokens, "SAVE_EVERY", 0.0)
    config = Text(kind="text", source=f"hub:{folder}", tokens=9000)
    with pytest.raises(DataError, match="was changed while it was read"):
        token_files(config, cache, lambda *_: write_documents(folder, documents[1:]))
    assert not list(cache.glob("*.partial"))


def test_presets_name_what_they_stand_for(cache):
    assert text.open_source("fineweb", cache).key == text.open_source("hub:fineweb", cache).key
    assert "sample-100BT" in text.open_source("fineweb", cache).key
    assert "redpajama" in text.open_source("redpajama-v2", cache).key
    assert text.open_source("redpajama-v2", cache).streamed


def test_redpajama_is_read_file_by_file_and_gaps_are_told(tmp_path, monkeypatch, cache):
    shards = tmp_path / hub.SNAPSHOT
    for shard, quality, content in (
        (0, "head", b"".join(json.dumps({"raw_content": f"first {n}"}).encode() + b"\n" for n in range(3))),
        (1, "middle", b'{"raw_content": "last \\ud800"}\n'),
    ):
        (shards / f"{shard:04d}").mkdir(parents=True)
        (shards / f"{shard:04d}" / f"en_{quality}.json.gz").write_bytes(gzip.compress(content))
    (shards / "0001" / "en_head.json.gz").write_bytes(gzip.compress(b"torn")[:-4])

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *_):
            pass

    monkeypatch.setattr(hub, "SHARDS", 2)
    monkeypatch.setattr(hub, "WAITS", (0.0, 0.0))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setitem(hub.PRESETS, "redpajama-v2", root)
        with pytest.warns(UserWarning, match="is left out") as warned:
            read = tokens_of("redpajama-v2", cache, tokens=100)
        with pytest.warns(UserWarning, match="is left out"):
            check_places(lambda place: hub.RedPajama(root, place))
        with pytest.raises(DataError, match="had 9 lines or more before, and has 3 now"):
            next(iter(hub.RedPajama(root, [0, 9])))
        server.shutdown()
    assert bytes_of(read.training) == b"first 0\0first 1\0first 2\0last ?\0"
    assert [str(each.message).split("/")[-2:] for each in warned] == [
        ["0000", "en_middle.json.gz is left out: the server does not have it"],
        ["0001", "en_head.json.gz is left out: Compressed file ended before the end-of-stream marker was reached"],
    ]
    with pytest.raises(DataError, match=r"en_head\.json\.gz cannot be loaded: .*refused"):
        next(iter(hub.RedPajama(root)))


def test_without_a_network_the_hub_is_explained_and_nothing_heavy_is_imported_before(standard_cache):
    output = finish(
        in_process(
            """
            import sys
            from pathlib import Path
            from ademamix.lab.config import GPT, Images, Text, ViT
            from ademamix.lab.data import DataError, load

            gpt = GPT(kind="gpt", width=16, layers=1, heads=1, context=16)
            cache = Path(sys.argv[1])
            load(Text(kind="text"), model=gpt, batch=2, seed=0, cache=cache).batch(0)
            heavy = {"datasets", "transformers", "sentencepiece", "sklearn", "kornia", "jax"}
            assert not heavy & set(sys.modules), heavy & set(sys.modules)
            vit = ViT(kind="vit", width=16, layers=1, heads=1, patch=2, image=8, channels=3)
            for config, model in (
                (Text(kind="text", source="fineweb", tokens=10), gpt),
                (Text(kind="text", tokenizer="hub:EleutherAI/gpt-neox-20b"), gpt),
                (Images(kind="images", source="hub:uoft-cs/cifar10"), vit),
            ):
                try:
                    load(config, model=model, batch=2, seed=0, cache=cache)
                except DataError as error:
                    print(error)
            """,
            standard_cache,
            HF_HUB_OFFLINE="1",
        )
    )
    lines = output.splitlines()
    assert len(lines) == 3
    for line, name in zip(lines, ("HuggingFaceFW/fineweb", "EleutherAI/gpt-neox-20b", "uoft-cs/cifar10"), strict=True):
        assert name in line
        assert "cannot be loaded: " in line
        assert "without a network, give a local folder" in line
