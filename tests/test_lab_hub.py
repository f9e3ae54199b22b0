"""Text of the Hugging Face hub and of RedPajama: how it is split, and what happens without a network."""

from __future__ import annotations

import gzip
import http.server
import json
import threading

import numpy as np
import pytest

import lab_text
from ademamix.lab.data import DataError, hub, text
from lab_text import bytes_of, finish, in_process, tokens_of, words

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
        (f"hub:{folder}", "'text' of the split 'train' of the dataset .* cannot be had.*Column name"),
        (f"hub:{folder}::dev:body", "cannot be had.*dev"),
        (f"hub:{folder}:::number", "a document must be a string, got 0"),
    ):
        with pytest.raises(DataError, match=message):
            tokens_of(wrong, cache, tokens=1000)


def check_places(open_documents):
    """Check that a stream goes on after each of its documents."""
    documents = open_documents(None)
    everything, places = [], []
    for document in documents:
        everything.append(document)
        places.append(json.loads(json.dumps(documents.place())))
    assert len(everything) > 3
    for number, place in enumerate(places, start=1):
        assert list(open_documents(place)) == everything[number:]


def test_a_dataset_goes_on_after_each_of_its_documents(folder):
    for number in range(3):
        write_documents(folder, [f"{number} {words(5, line)}" for line in range(5)], file=f"{number}.jsonl")
    check_places(lambda place: hub.HubRows(hub.HubName.parse(f"hub:{folder}"), place))


def test_a_stream_is_read_on_when_its_process_was_killed_or_the_network_fails(folder, cache):
    for number in range(3):
        write_documents(folder, [words(50, 100 * number + line) for line in range(100)], file=f"{number}.jsonl")
    output = finish(
        in_process(
            """
            import os, signal, sys
            from pathlib import Path
            import numpy as np
            from ademamix.lab.config import Text
            from ademamix.lab.data import DataError, hub, tokens

            tokens.CHARACTERS_AT_ONCE, tokens.SAVE_EVERY = 2000, 0.0
            config = Text(kind="text", source=sys.argv[1], tokenizer="sentencepiece:300", tokens=20_000)
            cache = Path(sys.argv[2])
            whole = tokens.token_files(config, cache / "whole")

            original, written = tokens._write, []

            def written_until(limit, fail):
                def write(pieces, *others):
                    if len(written) == limit:
                        fail()
                    written.append([piece.text for piece in pieces])
                    original(pieces, *others)
                return write

            def unplug():
                raise DataError("the network is down")

            for limit in (4, 9, 9):
                tokens._write = written_until(limit, unplug)
                try:
                    tokens.token_files(config, cache / "torn")
                except DataError as error:
                    print(error, len(written))
            if not (process := os.fork()):
                tokens._write = written_until(12, lambda: os.kill(os.getpid(), signal.SIGKILL))
                tokens.token_files(config, cache / "torn")
            assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL

            told = []
            tokens._write = written_until(None, None)
            built = tokens.token_files(config, cache / "torn", lambda *count: told.append(count))
            assert built.fingerprint == whole.fingerprint
            assert np.array_equal(built.training, whole.training)
            assert np.array_equal(built.validation, whole.validation)
            first, *_, (count, wanted) = told
            assert 5000 < first[0] < count == wanted == 20_000, told
            documents = [text for group in written for text in group]
            assert len(documents) == len(set(documents))  # nothing was read twice
            assert not [path for path in (cache / "torn").iterdir() if path.suffix == ".partial"]
            """,
            f"hub:{folder}",
            cache,
        )
    )
    assert output.splitlines() == ["the network is down 4", "the network is down 9", "the network is down 9"]


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
            tokens = tokens_of("redpajama-v2", cache, tokens=100)
        with pytest.warns(UserWarning, match="is left out"):
            check_places(lambda place: hub.RedPajama(root, place))
        server.shutdown()
    assert bytes_of(tokens.training) == b"first 0\0first 1\0first 2\0last ?\0"
    assert [str(each.message).split("/")[-2:] for each in warned] == [
        ["0000", "en_middle.json.gz is left out: the server does not have it"],
        ["0001", "en_head.json.gz is left out: Compressed file ended before the end-of-stream marker was reached"],
    ]
    with pytest.raises(DataError, match=r"en_head\.json\.gz cannot be had: .*refused"):
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
        assert "cannot be had: " in line
        assert "without a network, give a local folder" in line
