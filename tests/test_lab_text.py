"""The lab's text: its sources, tokens and windows, and what happens to token files when things go wrong."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ademamix.lab.config import GPT, Images, Mamba, Text, ViT
from ademamix.lab.data import DataError, hub, load, text, tokenizers
from ademamix.lab.data.tokens import TokenFiles, Windows, token_files

MODEL = GPT(kind="gpt", width=16, layers=1, heads=1, context=16)


def read(config, cache, *, batch=2, seed=0, model=MODEL):
    return load(config, model=model, batch=batch, seed=seed, cache=cache)


def tokens_of(source, cache, **settings):
    return token_files(Text(kind="text", source=str(source), **settings), cache)


def bytes_of(tokens):
    return tokens.astype(np.uint8).tobytes()


def words(count, seed=0):
    generator = np.random.default_rng(seed)
    return " ".join(f"{word:05d}" for word in generator.integers(100_000, size=count))


@pytest.fixture(scope="session")
def standard_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("standard_library")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "texts"
    made.mkdir()
    return made


def in_process(code, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output


# Windows


def numbered(training, validation=1000):
    """Tokens that are their own positions; those of the validation split follow."""
    both = np.arange(training + validation, dtype=np.uint32)
    return TokenFiles(both[:training], both[training:], vocabulary=len(both), fingerprint="numbered")


@settings(deadline=None)
@given(
    context=st.integers(1, 9),
    batch=st.integers(1, 7),
    held_out_batches=st.integers(0, 3),
    spare=st.integers(0, 200),
    seed=st.integers(0, 2**40),
    data=st.data(),
)
def test_an_epoch_visits_every_window_once_and_nothing_held_out(context, batch, held_out_batches, spare, seed, data):
    case = {"context": context, "batch": batch, "held_out_batches": held_out_batches, "seed": seed}
    held_out = held_out_batches * batch * context + bool(held_out_batches)
    trained = (batch + 1) * context + spare
    windows = Windows(numbered(trained + held_out), **case)
    count = trained // context - 1
    epochs = 3
    batches = [windows.batch(step) for step in range(-(-epochs * count // batch))]
    inputs = torch.cat([each.inputs for each in batches])
    targets = torch.cat([each.targets for each in batches])
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(context))
    assert inputs.min() >= 0
    assert targets.max() < trained
    for epoch in range(epochs):
        starts = inputs[epoch * count : (epoch + 1) * count, 0]
        phase = int(starts[0]) % context
        assert sorted(starts.tolist()) == [phase + index * context for index in range(count)]
    for index in range(held_out_batches):
        assert windows.held_out(index).inputs.min() >= trained
    step = data.draw(st.integers(0, len(batches) - 1))
    alone = Windows(numbered(trained + held_out), **case).batch(step)
    assert torch.equal(alone.inputs, batches[step].inputs)
    assert torch.equal(alone.targets, batches[step].targets)


def test_held_out_batches_do_not_share_a_target_and_fill_the_end_of_the_text():
    windows = Windows(numbered(1000), context=8, batch=4, held_out_batches=3, seed=0)
    targets = torch.cat([windows.held_out(index).targets for index in range(3)]).flatten()
    assert sorted(targets.tolist()) == list(range(1000 - 3 * 4 * 8, 1000))
    for index in (-1, 3):
        with pytest.raises(DataError, match=f"no held-out batch {index}: held_out_batches is 3"):
            windows.held_out(index)


def test_orders_differ_between_seeds_and_between_epochs_and_cuts_move():
    tokens = numbered(10_000, validation=10_000)
    one, two = (Windows(tokens, context=100, batch=99, held_out_batches=0, seed=seed) for seed in (0, 1))
    starts = [windows.batch(step).inputs[:, 0] for windows in (one, two) for step in range(4)]
    assert len({tuple((first // 100).tolist()) for first in starts}) == 8
    assert len({int(first[0]) % 100 for first in starts}) > 4


def test_validation_is_always_the_same_and_spread_evenly():
    windows = Windows(numbered(500, validation=801), context=8, batch=5, held_out_batches=0, seed=0)
    other = Windows(numbered(500, validation=801), context=8, batch=5, held_out_batches=0, seed=1)
    first, again = (list(each.validation(4)) for each in (windows, other))
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=True))
    starts = sorted(torch.cat([each.inputs[:, 0] for each in first]).tolist())
    assert starts == [500 + 40 * index for index in range(20)]
    for each in first:  # each batch by itself spans the split
        assert each.inputs[0, 0] < 500 + 200
        assert each.targets[-1, -1] > 500 + 600
    everything = torch.cat([each.targets for each in windows.validation(1000)]).flatten()
    assert sorted(everything.tolist()) == list(range(501, 1301))


def test_too_little_text_is_refused():
    smallest = {"context": 8, "batch": 4, "held_out_batches": 2, "seed": 0}
    Windows(numbered(40 + 65, validation=33), **smallest)
    with pytest.raises(DataError, match=r"need 105 tokens of training text, got 104: give more text, or a smaller"):
        Windows(numbered(40 + 64, validation=33), **smallest)
    with pytest.raises(DataError, match=r"needs 33 tokens of validation text, got 32"):
        Windows(numbered(40 + 65, validation=32), **smallest)
    with pytest.raises(DataError, match=r"got 3"):
        Windows(numbered(3), **smallest)


# Sources


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


def test_a_bound_on_tokens_cuts_the_training_text_alone(folder, cache):
    (folder / "one.txt").write_text(words(1000))
    everything, bounded = (tokens_of(folder / "one.txt", cache, tokens=bound) for bound in (None, 777))
    assert np.array_equal(bounded.training, everything.training[:777])
    assert np.array_equal(bounded.validation, everything.validation)


def test_text_that_cannot_be_used_is_explained(folder, cache):
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "broken.jsonl").write_text('{"txt": "?"}')
    for source, message in (
        (folder / "latin.txt", r"latin\.txt is not UTF-8 text: convert it"),
        (folder / "broken.jsonl", r'line 1 of .*broken\.jsonl is no JSON object with a string "text"'),
        (folder / "nowhere", "there is no text at .*nowhere.*give 'stdlib', a file, a folder, 'fineweb'"),
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


# The hub


def write_documents(folder, documents, field="text"):
    lines = [json.dumps({field: document, "number": number}) for number, document in enumerate(documents)]
    (folder / "documents.jsonl").write_text("\n".join(lines))


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


def test_presets_name_what_they_stand_for(cache):
    assert text.open_source("fineweb", cache).key == text.open_source("hub:fineweb", cache).key
    assert "sample-10BT" in text.open_source("fineweb", cache).key
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
        server.shutdown()
    assert bytes_of(tokens.training) == b"first 0\0first 1\0first 2\0last ?\0"
    assert [str(each.message).split("/")[-2:] for each in warned] == [
        ["0000", "en_middle.json.gz is left out: the server does not have it"],
        ["0001", "en_head.json.gz is left out: Compressed file ended before the end-of-stream marker was reached"],
    ]
    with pytest.raises(DataError, match=r"en_head\.json\.gz cannot be had: .*refused"):
        next(hub.redpajama(root))


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


# Tokenisers


@pytest.fixture(scope="session")
def prose(tmp_path_factory):
    path = tmp_path_factory.mktemp("prose") / "prose.txt"
    path.write_text("\n".join(Path(text.__file__).with_name(name).read_text() for name in ("text.py", "tokens.py")))
    return path


@pytest.fixture(scope="session")
def trained(prose, tmp_path_factory):
    cache = tmp_path_factory.mktemp("sentencepiece")
    return tokens_of(prose, cache, tokenizer="sentencepiece:600"), next(cache.glob("*/tokenizer.model")).read_bytes()


def test_sentencepiece_gives_the_text_back_and_the_same_model_again(prose, trained):
    from sentencepiece import SentencePieceProcessor

    tokens, model = trained
    processor = SentencePieceProcessor(model_proto=model)
    assert tokens.vocabulary == processor.vocab_size() == 600
    everything = prose.read_text()
    ids = tokens.training.tolist()
    assert ids[-1] == processor.eos_id()
    assert ids.count(processor.eos_id()) == 1
    assert processor.decode(ids[:-1]) == everything[: len(everything) - len(everything) // 10]
    assert len(ids) < 0.5 * len(everything)
    source = text.open_source(str(prose), prose.parent)
    assert tokenizers.train_sentencepiece(source, 600) == model


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0▁")))  # ▁ is its own sign for a space
def test_sentencepiece_gives_every_text_back(trained, document):
    from sentencepiece import SentencePieceProcessor

    tokenizer = tokenizers.SentencePiece(trained[1])
    (ids,) = tokenizer.encode([document])
    assert SentencePieceProcessor(model_proto=trained[1]).decode(ids.tolist()) == document
    assert tokenizer.separator not in ids


def test_sentencepiece_is_trained_on_a_sample_of_all_training_text(monkeypatch):
    pieces = [text.Piece(f"{number:04d}", number % 10 == 9, True) for number in range(1000)]
    monkeypatch.setattr(tokenizers, "TRAINING_CHARACTERS", 400)
    sample = tokenizers._sample(text.Source("key", lambda: iter(pieces)))
    numbers = np.array([int(each) for each in sample])
    assert 50 <= len(numbers) <= 100
    assert not (numbers % 10 == 9).any()
    assert numbers[0] == 0
    assert np.diff(numbers).max() <= 20
    assert numbers[-1] > 980
    start = tokenizers._sample(text.Source("key", lambda: iter(pieces), streamed=True))
    assert [int(each) for each in start] == [number for number in range(112) if number % 10 != 9][:100]


def test_a_saved_hugging_face_tokenizer_is_used(folder, cache, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def save(words_known, **special):
        core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words_known)}, "[UNK]"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", **special).save_pretrained(tmp_path / "saved")

    (folder / "a").write_text("two one")
    (folder / "b").write_text("one two three")
    (folder / "d").write_text("two two")
    save(["[UNK]", "[END]", "one", "two"], eos_token="[END]")
    tokens = tokens_of(folder, cache, tokenizer=str(tmp_path / "saved"))
    assert tokens.vocabulary == 4
    assert tokens.training.tolist() == [2, 3, 0, 1, 3, 3, 1]
    assert tokens.validation.tolist() == [3, 2, 1]
    save(["[UNK]", "[END]", "two", "one"], eos_token="[END]")
    changed = tokens_of(folder, cache, tokenizer=str(tmp_path / "saved"))
    assert changed.training.tolist() == [3, 2, 0, 1, 2, 2, 1]
    assert changed.fingerprint != tokens.fingerprint
    save(["[UNK]", *(f"word{number}" for number in range(70_000)), "one", "[END]"], eos_token="[END]")
    large = tokens_of(folder, cache, tokenizer=str(tmp_path / "saved"))
    assert large.training.dtype == np.uint32
    assert large.training.tolist() == [70_001, 0, 0, 70_002, 0, 0, 70_002]
    save(["[UNK]", "one"])
    with pytest.raises(DataError, match="has no end-of-text token"):
        tokens_of(folder, cache, tokenizer=str(tmp_path / "saved"))


def test_tokenizers_that_cannot_be_are_explained(folder, cache):
    (folder / "one.txt").write_text(words(200))
    for name, message in (
        ("words", "no tokenizer 'words': give 'bytes', 'sentencepiece:SIZE', 'hub:NAME', or a folder"),
        ("sentencepiece:many", "named sentencepiece:SIZE, as in sentencepiece:32000, got 'sentencepiece:many'"),
        ("sentencepiece:100", "no SentencePiece model of 100 tokens .*smaller than required_chars"),
        ("sentencepiece:90000", "no SentencePiece model of 90000 tokens .*too high"),
        (str(folder), "the tokenizer .* cannot be had"),
    ):
        with pytest.raises(DataError, match=message):
            tokens_of(folder, cache, tokenizer=name)
    assert not list(cache.glob("*.partial"))


# Token files


def test_a_batch_is_the_same_in_any_order_and_from_the_cache(standard_cache):
    config = Text(kind="text", held_out_batches=1)
    one, two = (read(config, standard_cache, batch=8, seed=3) for _ in range(2))
    steps = [50_000, 0, 7, 10**6]
    forward = {step: one.batch(step) for step in steps}
    for step in reversed(steps):
        assert torch.equal(two.batch(step).inputs, forward[step].inputs)
        assert torch.equal(two.batch(step).targets, forward[step].targets)
    assert one.fingerprint == two.fingerprint
    assert one.outputs == 256
    assert not torch.equal(read(config, standard_cache, batch=8, seed=4).batch(0).inputs, forward[0].inputs)
    assert forward[0].inputs.is_contiguous()
    assert forward[0].targets.is_contiguous()


def test_a_batch_takes_far_less_than_a_step(standard_cache):
    model = Mamba(kind="mamba", width=16, layers=1, context=64)
    data = read(Text(kind="text"), standard_cache, model=model, batch=8)
    data.batch(0)
    times = []
    for step in range(500):
        start = time.perf_counter()
        data.batch(step)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 3e-4


def test_a_changed_file_is_seen_even_if_size_and_name_are_the_same(folder, cache):
    path = folder / "one.txt"
    path.write_text("a" * 1000)
    old = tokens_of(path, cache)
    path.write_text("b" * 1000)
    new = tokens_of(path, cache)
    assert set(bytes_of(new.training)) == {ord("b"), 0}
    assert old.fingerprint != new.fingerprint
    assert set(bytes_of(old.training)) == {ord("a"), 0}  # what is in use stays


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


def test_a_file_that_changes_while_it_is_read_is_refused(folder, cache, monkeypatch):
    path = folder / "one.txt"
    path.write_text(words(500))
    make = tokenizers.make_tokenizer

    def make_and_change(*arguments):
        with path.open("a") as handle:
            handle.write("more")
        return make(*arguments)

    monkeypatch.setattr("ademamix.lab.data.tokens.make_tokenizer", make_and_change)
    with pytest.raises(DataError, match="was changed while it was read"):
        tokens_of(path, cache)
    assert [each.suffix for each in cache.iterdir()] == [".lock"]


BUILD = """
    import sys, time
    from pathlib import Path
    from ademamix.lab.config import Text
    from ademamix.lab.data import text, tokens
    import sentencepiece

    config = Text(kind="text", source=sys.argv[1], tokenizer=sys.argv[3])
    cache = Path(sys.argv[2])
"""


def test_two_processes_build_once(prose, cache):
    go = cache.with_name("go")
    code = (
        BUILD
        + """
    print("ready", flush=True)
    while not Path(sys.argv[4]).exists():
        time.sleep(0.001)
    built = tokens.token_files(config, cache)
    (folder,) = (path.parent for path in cache.glob("*/meta.json"))
    print(built.fingerprint, *((folder / name).stat().st_ino for name in ("train.bin", "tokenizer.model")))
    """
    )
    processes = [in_process(code, prose, cache, "sentencepiece:500", go) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    go.touch()
    first, second = map(finish, processes)
    assert first == second
    assert sorted(path.suffix for path in cache.iterdir() if path.name != "hashes") == ["", ".lock"]


def test_a_killed_build_leaves_nothing_that_is_taken_for_good(folder, cache):
    (folder / "one.txt").write_text(words(5000))
    code = (
        BUILD
        + """
    import os, resource, signal
    import numpy as np
    from ademamix.lab.data import DataError

    tokens.CHARACTERS_AT_ONCE = text.CHARACTERS_AT_ONCE = 1000
    whole = tokens.token_files(config, cache / "whole")

    def killed_at(name, call):
        process = os.fork()
        if process:
            return os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
        original, calls = getattr(tokens, name), iter(range(call))

        def deadly(*arguments):
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments)

        setattr(tokens, name, deadly)
        tokens.token_files(config, cache / "killed")
        os._exit(0)

    moments = [("make_tokenizer", 0), ("_write", 0), ("_write", 7), *(("_to_disk", call) for call in range(4))]
    for moment in moments:
        assert killed_at(*moment), moment
        assert {path.suffix for path in (cache / "killed").iterdir() if path.name != "hashes"} == {".lock", ".partial"}
    assert killed_at("_to_disk", 4)  # after the files had their name
    for moment in ((), ("again",)):
        built = tokens.token_files(config, cache / "killed")
        assert built.fingerprint == whole.fingerprint
        assert np.array_equal(built.training, whole.training)
        assert np.array_equal(built.validation, whole.validation)
    assert not list((cache / "killed").glob("*.partial"))

    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))  # as if the disk were full
    try:
        tokens.token_files(config, cache / "full")
    except DataError as error:
        print(error)
    assert [path.suffix for path in (cache / "full").iterdir() if path.name != "hashes"] == [".lock"]
    """
    )
    output = finish(in_process(code, folder / "one.txt", cache, "bytes"))
    assert f"one.txt' cannot be kept in {cache / 'full'}: [Errno 27] File too large" in output


def test_damage_and_an_impossible_cache_are_explained(folder, cache):
    path = folder / "one.txt"
    path.write_text(words(500))
    tokens_of(path, cache)
    (built,) = cache.glob("*/train.bin")
    built.write_bytes(built.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train\.bin is damaged: .* delete"):
        tokens_of(path, cache)
    with pytest.raises(DataError, match=r"cannot be kept in .*one\.txt"):
        tokens_of(path, path)


def test_a_model_of_the_other_kind_is_refused(cache):
    vit = ViT(kind="vit", width=16, layers=1, heads=1, patch=2, image=8, channels=1)
    for config, model in ((Text(kind="text"), vit), (Images(kind="images"), MODEL)):
        with pytest.raises(DataError, match=f"a model of kind '{model.kind}' cannot be trained on {config.kind}"):
            read(config, cache, model=model)
