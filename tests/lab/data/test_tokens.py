"""Windows of tokens, and what happens to token files when things go wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lab_text
from ademamix.lab.config import Text
from ademamix.lab.data import DataError, tokenizers
from ademamix.lab.data.tokens import TokenFiles
from ademamix.lab.data.windows import Windows
from lab_text import bytes_of, finish, in_process, read, tokens_of, words

cache, folder, prose = lab_text.cache, lab_text.folder, lab_text.prose
standard_cache = lab_text.standard_cache


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
    held_out = held_out_batches * batch * (context + 1)
    trained = (batch + 1) * context + spare
    windows = Windows(numbered(trained + held_out), **case)
    count = trained // context - 1
    epochs = 3
    batches = [windows.batch(step) for step in range(-(-epochs * count // batch))]
    inputs = torch.cat([each.inputs for each in batches])
    targets = torch.cat([each.targets for each in batches])
    assert inputs.dtype == targets.dtype == torch.int64
    looked_at = torch.cat([each.inputs for each in windows.training(count, chunk=2)])
    taken_out = {token for index in range(held_out_batches) for token in tokens_in(windows.held_out(index))}
    assert len(taken_out) == held_out
    rank = {token: number for number, token in enumerate(sorted(set(range(trained + held_out)) - taken_out))}
    inputs, targets = (
        torch.tensor([[rank[token] for token in row] for row in each.tolist()]) for each in (inputs, targets)
    )
    assert [rank[token] for token in looked_at.flatten().tolist()] == list(range(count * context))
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(context))
    for epoch in range(epochs):
        starts = inputs[epoch * count : (epoch + 1) * count, 0]
        phase = int(starts[0]) % context
        assert sorted(starts.tolist()) == [phase + index * context for index in range(count)]
    step = data.draw(st.integers(0, len(batches) - 1))
    alone = Windows(numbered(trained + held_out), **case).batch(step)
    assert torch.equal(alone.inputs, batches[step].inputs)
    assert torch.equal(alone.targets, batches[step].targets)


def tokens_in(batch):
    return [
        token
        for start, row in zip(batch.inputs[:, 0].tolist(), batch.targets.tolist(), strict=True)
        for token in (start, *row)
    ]


def test_held_out_batches_are_a_sample_of_the_whole_text_the_same_for_every_seed():
    windows, other = (Windows(numbered(8000), context=8, batch=16, held_out_batches=3, seed=seed) for seed in (0, 1))
    for index in range(3):
        batch = windows.held_out(index)
        assert torch.equal(batch.inputs, other.held_out(index).inputs)
        assert torch.equal(batch.targets, batch.inputs + 1)
        assert {start // 2000 for start in batch.inputs[:, 0].tolist()} == {0, 1, 2, 3}, "every quarter of the text"
    assert len({token for index in range(3) for token in tokens_in(windows.held_out(index))}) == 3 * 16 * 9
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
    tokens = numbered(500, validation=801)
    windows = Windows(tokens, context=8, batch=5, held_out_batches=0, seed=0)
    others = [Windows(tokens, context=8, batch=batch, held_out_batches=0, seed=batch) for batch in (1, 16)]
    first, *again = (list(each.validation(20, chunk=6)) for each in (windows, *others))
    assert [len(each.inputs) for each in first] == [6, 6, 6, 2]
    assert all(torch.equal(a.inputs, b.inputs) for other in again for a, b in zip(first, other, strict=True))
    starts = torch.cat([each.inputs[:, 0] for each in first]).tolist()
    assert starts == [500 + 40 * index for index in range(20)]
    everything = torch.cat([each.targets for each in windows.validation(1000, chunk=6)]).flatten()
    assert everything.tolist() == list(range(501, 1301))


def test_too_little_text_is_refused():
    smallest = {"context": 8, "batch": 4, "held_out_batches": 2, "seed": 0}
    Windows(numbered(40 + 72, validation=9), **smallest)
    with pytest.raises(DataError, match=r"need 112 tokens of training text, got 111: give more text, or a smaller"):
        Windows(numbered(40 + 71, validation=9), **smallest)
    with pytest.raises(DataError, match=r"a window needs 9 tokens of validation text, got 8"):
        Windows(numbered(40 + 72, validation=8), **smallest)
    with pytest.raises(DataError, match=r"got 3"):
        Windows(numbered(3), **smallest)


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


def test_a_bound_on_tokens_cuts_the_training_text_alone(folder, cache):
    (folder / "one.txt").write_text(words(1000))
    everything, bounded = (tokens_of(folder / "one.txt", cache, tokens=bound) for bound in (None, 777))
    assert np.array_equal(bounded.training, everything.training[:777])
    assert np.array_equal(bounded.validation, everything.validation)


def test_a_changed_file_is_seen_even_if_size_and_name_are_the_same(folder, cache):
    path = folder / "one.txt"
    path.write_text("a" * 1000)
    old = tokens_of(path, cache)
    path.write_text("b" * 1000)
    new = tokens_of(path, cache)
    assert set(bytes_of(new.training)) == {ord("b"), 0}
    assert old.fingerprint != new.fingerprint
    assert set(bytes_of(old.training)) == {ord("a"), 0}  # what is in use stays


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

    moments = [("make_tokenizer", 0), ("_write", 0), ("_write", 7), *(("to_disk", call) for call in range(4))]
    for moment in moments:
        assert killed_at(*moment), moment
        assert {path.suffix for path in (cache / "killed").iterdir() if path.name != "hashes"} == {".lock", ".partial"}
    assert killed_at("to_disk", 4)  # after the files had their name
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
    (built.parent / "meta.json").rename(cache / "kept.json")
    (built.parent / "meta.json").write_text("{}")
    with pytest.raises(DataError, match=r"meta\.json is damaged .* delete"):
        tokens_of(path, cache)
    (cache / "kept.json").rename(built.parent / "meta.json")
    built.write_bytes(built.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train\.bin is damaged: .* delete"):
        tokens_of(path, cache)
    with pytest.raises(DataError, match=r"cannot be kept in .*one\.txt"):
        tokens_of(path, path)
