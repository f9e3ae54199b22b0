"""Files that are never half written: one gets its name only after its content is on disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PART = ".part"
"""How the name of a file ends, after a dot at its beginning, until it is whole."""


def write_atomically(path: Path, content: str) -> None:
    """Give `path` this content: at every moment it has all of the old or all of the new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "result.json"
    ...     write_atomically(path, "1")
    ...     write_atomically(path, "2")
    ...     path.read_text(), len(list(Path(folder).iterdir()))
    ('2', 1)
    """
    with rewritten(path) as file:
        file.write(content.encode())


@contextlib.contextmanager
def rewritten(path: Path) -> Iterator[IO[bytes]]:
    """Give a file that takes the place of `path` when the block ends; if the block raises, `path` stays as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "result.json"
    ...     with rewritten(path) as file:
    ...         length = file.write(b"whole")
    ...         path.exists()
    ...     path.read_bytes()
    False
    b'whole'
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")  # another process may write the same file
    with whole_or_not_at_all(temporary) as file:
        yield file
    temporary.replace(path)
    to_disk(path.parent)


@contextlib.contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[IO[bytes]]:
    """Give the new file `path`: on disk when the block ends, removed if the block raises.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / ".checkpoint.part"
    ...     with contextlib.suppress(MemoryError), whole_or_not_at_all(path) as file:
    ...         length = file.write(b"half")
    ...         raise MemoryError
    ...     path.exists()
    False
    """
    try:
        with path.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def to_disk(path: Path) -> None:
    """Wait until the content of a file is on disk, or of a folder the names in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "new name").touch()
    ...     to_disk(Path(folder))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
