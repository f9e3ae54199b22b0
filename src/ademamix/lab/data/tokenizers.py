"""From text to tokens: bytes, a SentencePiece model trained on the text, or a Hugging Face tokenizer."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ademamix.lab.data import DataError
from ademamix.lab.data.hub import cannot_be_had
from ademamix.lab.data.text import Source, content_hash, folder_files
from ademamix.output.atomic import rewritten

TRAINING_CHARACTERS = 1 << 25
"""SentencePiece is trained on a sample of about this size: more makes no better vocabulary, but takes hours."""
LONGEST_SENTENCE = 4000
MODEL_FILE = "tokenizer.model"


class Tokenizer(Protocol):
    """Text in, token ids out."""

    vocabulary: int
    """How many ids there are."""
    separator: int
    """The id after each document."""

    def encode(self, texts: Sequence[str]) -> Iterable[NDArray[np.integer[Any]]]:
        """Return the ids of each text, without a separator."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; what is no valid text becomes a replacement character."""


def tokenizer_key(name: str, cache: Path) -> str:
    """Return a key that differs between tokenisers: the name, and the content of a local one.

    >>> tokenizer_key("sentencepiece:32000", Path("cache"))
    'sentencepiece:32000'
    """
    if name == "bytes" or name.startswith("hub:"):
        return name
    if name.startswith("sentencepiece:"):
        return f"sentencepiece:{_vocabulary_size(name)}"
    folder = Path(name).expanduser()
    if folder.is_dir():
        return content_hash(folder_files(folder), cache)
    raise DataError(
        f"there is no tokenizer {name!r}: give 'bytes', 'sentencepiece:SIZE', 'hub:NAME', or a folder in which a "
        "Hugging Face tokenizer was saved"
    )


def make_tokenizer(name: str, source: Source, folder: Path) -> Tokenizer:
    """Return the tokeniser that a config names; one trained on the source's text is kept in the folder."""
    if name == "bytes":
        return Bytes()
    if name.startswith("sentencepiece:"):
        path = folder / MODEL_FILE
        if not path.exists():
            with rewritten(path) as file:
                file.write(train_sentencepiece(source, _vocabulary_size(name)))
        return SentencePiece(path.read_bytes())
    return HuggingFace(name.removeprefix("hub:") if name.startswith("hub:") else str(Path(name).expanduser()))


class Bytes:
    """The bytes of UTF-8; documents are separated by byte 0, which text does not have.

    >>> [ids.tolist() for ids in Bytes().encode(["no", "é"])]
    [[110, 111], [195, 169]]
    """

    vocabulary = 256
    separator = 0

    def encode(self, texts: Sequence[str]) -> Iterable[NDArray[np.uint8]]:
        """Return the bytes of each text."""
        return (np.frombuffer(text.encode(), dtype=np.uint8) for text in texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the bytes as text."""
        return bytes(ids).decode(errors="replace")


class SentencePiece:
    """A SentencePiece model; text outside its vocabulary is spelt in bytes."""

    def __init__(self, model: bytes) -> None:
        from sentencepiece import SentencePieceProcessor

        self._processor = SentencePieceProcessor(model_proto=model)
        self.vocabulary = int(self._processor.vocab_size())
        self.separator = int(self._processor.eos_id())

    def encode(self, texts: Sequence[str]) -> Iterable[NDArray[np.int64]]:
        """Return the ids of each text."""
        return (np.array(ids, dtype=np.int64) for ids in self._processor.encode(list(texts)))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(self._processor.decode(list(ids)))


def train_sentencepiece(source: Source, size: int) -> bytes:
    """Return a SentencePiece model (byte-pair encoding) of `size` tokens for the source's training text.

    The text is not normalised, and runs of spaces can be tokens, so that code and prose both come back as they were.
    The same text gives the same model.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=_sentences(_sample(source)),
            model_writer=model,
            vocab_size=size,
            model_type="bpe",
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=4 * LONGEST_SENTENCE,  # in bytes
            unk_id=0,
            eos_id=1,
            bos_id=-1,
            pad_id=-1,
            num_threads=1,  # their number is written into the model
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2] or "there is no training text"
        raise DataError(f"no SentencePiece model of {size} tokens can be trained on this text: {reason}") from error
    return model.getvalue()


class HuggingFace:
    """A tokenizer of the Hugging Face hub or of a local folder; documents are separated by its end-of-text token."""

    def __init__(self, name: str) -> None:
        try:
            from transformers import AutoTokenizer

            self._tokenizer: Any = AutoTokenizer.from_pretrained(name)
        except Exception as error:  # whatever the library raises: its errors have no class in common
            raise cannot_be_had(f"the tokenizer {name!r}", error) from error
        if self._tokenizer.eos_token_id is None:
            raise DataError(f"the tokenizer {name!r} has no end-of-text token to separate documents: choose another")
        self.vocabulary = len(self._tokenizer)
        self.separator = int(self._tokenizer.eos_token_id)

    def encode(self, texts: Sequence[str]) -> Iterable[NDArray[np.int64]]:
        """Return the ids of each text."""
        # verbose: it would warn of texts longer than a model's context, but windows are cut later
        encoded = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)
        return (np.array(ids, dtype=np.int64) for ids in encoded["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(self._tokenizer.decode(list(ids)))


def _vocabulary_size(name: str) -> int:
    size = name.removeprefix("sentencepiece:")
    if not size.isascii() or not size.isdigit() or not 0 < int(size) < 1 << 31:
        raise DataError(
            f"a SentencePiece tokenizer is named sentencepiece:SIZE, as in sentencepiece:32000, got {name!r}"
        )
    return int(size)


def _sample(source: Source) -> list[str]:
    """Return training text of at most `TRAINING_CHARACTERS`, evenly from all of it; of a stream, from its beginning."""
    kept: list[str] = []
    characters, stride = 0, 1
    training = (piece.text for piece in source.pieces(None) if not piece.validation)
    for index, text in enumerate(training):
        if index % stride:
            continue
        if characters + len(text) > TRAINING_CHARACTERS and kept:
            if source.streamed:
                break
            kept, stride = kept[::2], 2 * stride
            characters = sum(map(len, kept))
            if index % stride:
                continue
        kept.append(text)
        characters += len(text)
    return kept


def _sentences(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for line in text.split("\n"):
            for start in range(0, len(line), LONGEST_SENTENCE):
                yield line[start : start + LONGEST_SENTENCE]
