"""Warnings as plain lines: those of the library and of others about a run."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def told(tell: Callable[[str], object]) -> Iterator[None]:
    """Give each warning of the block to `tell`, once, as a line without the place in the source that it comes from.

    >>> with told(print):
    ...     for _ in range(2):
    ...         warnings.warn("beta3 outlives\\nthe run", stacklevel=1)
    beta3 outlives the run
    """
    known: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = " ".join(str(message).split())
        if text not in known:
            known.add(text)
            tell(text)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
