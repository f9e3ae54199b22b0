"""Text of the Hugging Face hub, streamed, and of RedPajama v2, which lies beside it."""

from __future__ import annotations

import gzip
import http.client
import json
import time
import urllib.error
import urllib.request
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ademamix.lab.data import DataError
from ademamix.lab.data.text import Piece, Source, clean, content_hash, folder_files, is_validation

VALIDATION_SHARE = 100
"""One document in so many is validation. These datasets are large."""
PRESETS = {
    "fineweb": "hub:HuggingFaceFW/fineweb:sample-100BT:train:text",
    "redpajama-v2": "https://data.together.xyz/redpajama-data-v2/v1.0.0/documents",
}
"""Short names. RedPajama's own repository on the hub is a script, which `datasets` no longer runs; its documents are
files on a server of its makers."""
SNAPSHOT, SHARDS, QUALITIES = "2023-06", 5000, ("head", "middle")
WAITS = (1.0, 10.0)
"""Seconds before a second and a third attempt to read a file."""


class HubName(NamedTuple):
    """A dataset of the hub, or a local folder of one, as `hub:NAME[:CONFIG[:SPLIT[:FIELD]]]`.

    >>> HubName.parse("hub:HuggingFaceFW/fineweb:sample-10BT")
    HubName(name='HuggingFaceFW/fineweb', config='sample-10BT', split='train', field='text')
    >>> HubName.parse("hub:wikipedia:::body").field
    'body'
    """

    name: str
    config: str | None
    split: str
    field: str

    @classmethod
    def parse(cls, source: str) -> HubName:
        """Return the parts of a source's name; those left empty get their defaults."""
        parts = source.removeprefix("hub:").split(":")
        if not parts[0] or len(parts) > 4:
            raise DataError(f"a dataset of the hub is named hub:NAME[:CONFIG[:SPLIT[:FIELD]]], got {source!r}")
        name, config, split, field = (*parts, "", "", "")[:4]
        return cls(name, config or None, split or "train", field or "text")


def is_of_the_hub(source: str) -> bool:
    """Say whether a source is a preset or the name of a dataset."""
    return source.startswith("hub:") or source in PRESETS


def text_source(source: str, cache: Path) -> Source:
    """Return the text of a preset or of a dataset of the hub.

    A document is validation if the hash of its text says so, so a copy of it never gets into training.
    """
    preset = PRESETS.get(source.removeprefix("hub:"), source)
    if not preset.startswith("hub:"):
        return Source(f"{preset}/{SNAPSHOT}", lambda place: _pieces(RedPajama(preset, place)), streamed=True)
    dataset = HubName.parse(preset)
    local = Path(dataset.name).expanduser()
    content = content_hash(folder_files(local), cache) if local.is_dir() else ""
    return Source(json.dumps([*dataset, content]), lambda place: _pieces(HubRows(dataset, place)), streamed=True)


class Documents(Protocol):
    """Documents of a stream, one after another."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the documents."""

    def place(self) -> Any:
        """Return, as JSON, the place from which to continue after the last document."""


class RedPajama:
    """The English documents of RedPajama v2's snapshot 2023-06, in its two better quality classes.

    It is read file by file from `root`. A file that the server does not have, or that is broken there, is left out with
    a warning; both occur. A place is the number of a file and that of a line in it.
    """

    def __init__(self, root: str, place: Sequence[int] | None = None) -> None:
        self._root = root
        self._file, self._line = place or (0, 0)

    def __iter__(self) -> Iterator[str]:
        while self._file < len(QUALITIES) * SHARDS:
            shard, quality = divmod(self._file, len(QUALITIES))
            url = f"{self._root}/{SNAPSHOT}/{shard:04d}/en_{QUALITIES[quality]}.json.gz"
            lines = self._lines(url)
            if len(lines) < self._line:
                raise DataError(
                    f"{url} had {self._line} lines or more before, and has {len(lines)} now: try again later"
                )
            for line in lines[self._line :]:
                self._line += 1
                yield json.loads(line)["raw_content"]
            self._file, self._line = self._file + 1, 0

    def place(self) -> list[int]:
        """Return the number of the current file, and that of the line to read next."""
        return [self._file, self._line]

    def _lines(self, url: str) -> list[bytes]:
        try:
            return gzip.decompress(_download(url)).splitlines()
        except (FileNotFoundError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            warnings.warn(f"{url} is left out: {error}", stacklevel=2)
            return []


class HubRows:
    """A column of a dataset of the hub; a place is its state, as `datasets` calls it, and its revision."""

    def __init__(self, dataset: HubName, place: Mapping[str, Any] | None = None) -> None:
        self._dataset, self._place = dataset, place
        self._revision: str | None = None if place is None else place["revision"]

    def __iter__(self) -> Iterator[Any]:
        name, config, split, field = self._dataset
        try:
            import datasets  # type: ignore[import-untyped]
            import huggingface_hub

            if self._place is None and not Path(name).expanduser().is_dir():
                self._revision = huggingface_hub.HfApi().dataset_info(name).sha
            rows = datasets.load_dataset(name, config, split=split, revision=self._revision, streaming=True)
            self._rows = rows.select_columns([field])
            if self._place is not None:
                self._rows.load_state_dict(self._place["state"])
            for row in self._rows:
                yield row[field]
        except Exception as error:  # whatever the library raises: its errors have no class in common
            raise cannot_be_had(f"the {field!r} of the split {split!r} of the dataset {name!r}", error) from error

    def place(self) -> Any:
        """Return the revision and the state of the dataset."""
        return {"revision": self._revision, "state": self._rows.state_dict()}


def cannot_be_had(what: str, error: Exception) -> DataError:
    """Return the error for something that the hub, or the library that asks it, does not provide."""
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    return DataError(f"{what} cannot be loaded: {reason} (is the name right? without a network, give a local folder)")


def _download(url: str) -> bytes:
    for wait in (*WAITS, None):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise FileNotFoundError("the server does not have it") from None
            failure: Exception = error
        except (OSError, http.client.HTTPException) as error:
            failure = error
        if wait is not None:
            time.sleep(wait)
    raise cannot_be_had(url, failure) from failure


def _pieces(documents: Documents) -> Iterator[Piece]:
    for text in documents:
        if not isinstance(text, str):
            raise DataError(f"a document must be a string, got {text!r:.80}: name the field that holds the text")
        document = clean(text)
        validation = is_validation(document, VALIDATION_SHARE)
        yield Piece(document, validation, ends_document=True, place=documents.place)
