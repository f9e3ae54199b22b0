"""The lab's tokenisers: they give the text back, and say why when they cannot be loaded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lab_text
from ademamix.lab.data import DataError, text, tokenizers
from lab_text import tokens_of, words

cache, folder, prose = lab_text.cache, lab_text.folder, lab_text.prose


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
    assert tokens.tokenizer().decode(ids[:-1]) == processor.decode(ids[:-1])
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
    assert tokenizer.decode(ids.tolist()) == document
    assert tokenizer.separator not in ids


def test_sentencepiece_is_trained_on_a_sample_of_all_training_text(monkeypatch):
    pieces = [text.Piece(f"{number:04d}", number % 10 == 9, True) for number in range(1000)]
    monkeypatch.setattr(tokenizers, "TRAINING_CHARACTERS", 400)
    sample = tokenizers._sample(text.Source("key", lambda _: iter(pieces)))
    numbers = np.array([int(each) for each in sample])
    assert 50 <= len(numbers) <= 100
    assert not (numbers % 10 == 9).any()
    assert numbers[0] == 0
    assert np.diff(numbers).max() <= 20
    assert numbers[-1] > 980
    start = tokenizers._sample(text.Source("key", lambda _: iter(pieces), streamed=True))
    assert [int(each) for each in start] == [number for number in range(112) if number % 10 != 9][:100]


def test_a_saved_hugging_face_tokenizer_is_used(folder, cache, tmp_path, monkeypatch):
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
    assert tokens.tokenizer().decode([3, 2]) == "two one"
    save(["[UNK]", "[END]", "two", "one"], eos_token="[END]")
    monkeypatch.setenv("HOME", str(tmp_path))
    changed = tokens_of(folder, cache, tokenizer="~/saved")
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
        ("sentencepiece:0", "named sentencepiece:SIZE"),
        ("words", "no tokenizer 'words': give 'bytes', 'sentencepiece:SIZE', 'hub:NAME', or a folder"),
        ("sentencepiece:many", "named sentencepiece:SIZE, as in sentencepiece:32000, got 'sentencepiece:many'"),
        ("sentencepiece:100", "no SentencePiece model of 100 tokens .*smaller than required_chars"),
        ("sentencepiece:90000", "no SentencePiece model of 90000 tokens .*too high"),
        (str(folder), "the tokenizer .* cannot be loaded"),
    ):
        with pytest.raises(DataError, match=message):
            tokens_of(folder, cache, tokenizer=name)
    assert not list(cache.glob("*.partial"))
