"""Tables for a terminal of any width: nothing is cut; columns that do not fit are laid out another way."""

from __future__ import annotations

import itertools
import shutil
import textwrap
from collections.abc import Iterable, Sequence

GAP = "  "
NARROWEST = 20  # columns; a layout needs that many
UNKNOWN_WIDTH = 100  # of a pipe or a file


def width_of_output() -> int:
    """Return the columns of the terminal, or the number in COLUMNS."""
    return max(NARROWEST, shutil.get_terminal_size((UNKNOWN_WIDTH, 24)).columns)


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Wrap each line of prose between its words; all of its lines but the first are indented.

    >>> print(wrapped("one two three\\nfour", width=8))
    one two
    three
    four
    """
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def indented(text: str) -> str:
    """Move a block of text two columns to the right.

    >>> indented("one\\ntwo")
    '  one\\n  two'
    """
    return textwrap.indent(text, "  ")


def laid_out(labels: Sequence[str], columns: Sequence[tuple[str, Sequence[str]]], width: int) -> str:
    """Lay out columns, each a name and a cell for each of the labels, in `width`.

    Where that would wrap a cell, columns become rows if there are as many of them as labels; where words would have to
    be broken both ways, each column becomes a list.

    >>> columns = [("AdamW", ["1.3254", "0.008"]), ("AdEMAMix", ["1.2789", "0.004"])]
    >>> print(laid_out(["loss", "learning rate"], columns, width=40))
                   AdamW   AdEMAMix
    loss           1.3254  1.2789
    learning rate  0.008   0.004
    >>> print(laid_out(["loss", "learning rate"], columns, width=26))
              loss    learning
                      rate
    AdamW     1.3254  0.008
    AdEMAMix  1.2789  0.004
    >>> print(laid_out(["loss", "learning rate"], columns, width=20))
    AdamW
      loss: 1.3254
      learning rate:
        0.008
    AdEMAMix
      loss: 1.2789
      learning rate:
        0.004
    """
    rows = [["", *(name for name, _ in columns)]]
    rows += [[label, *(cells[number] for _, cells in columns)] for number, label in enumerate(labels)]
    turned = [[cell.strip() for cell in column] for column in zip(*rows, strict=True)]
    grids = [_grid(rows, width), _grid(turned, width)]
    if grids[0] is not None and len(grids[0]) > len(rows) and len(columns) >= len(labels):  # it wraps a cell
        grids.reverse()
    lists = (_list(name, zip(labels, cells, strict=True), width) for name, cells in columns)
    return "\n".join(next(filter(None, grids), itertools.chain.from_iterable(lists)))


def in_rows(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Lay out rows under a header, in `width`; where that is too narrow, each row as a list.

    >>> print(in_rows(["key", "what"], [["0123", "AdamW, seed 1"]], width=12))
    key   what
    0123  AdamW,
          seed 1
    """
    lists = (_list(row[0], zip(header[1:], row[1:], strict=True), width) for row in rows)
    return "\n".join(_grid([header, *rows], width) or itertools.chain.from_iterable(lists))


def _grid(rows: Sequence[Sequence[str]], width: int) -> list[str] | None:
    """Lay rows out in columns, wrapped where there is most to wrap; None if a word would have to be broken."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    narrowest = [max(map(_longest_word, column)) for column in columns]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=lambda number: widths[number] - narrowest[number])
        if widths[widest] <= narrowest[widest]:
            return None
        widths[widest] -= 1
    lines = []
    for row in rows:
        cells = [_wrapped_cell(cell, room) for cell, room in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            lines.append(GAP.join(part.ljust(room) for part, room in zip(parts, widths, strict=True)).rstrip())
    return lines


def _longest_word(cell: str) -> int:
    return max(map(len, cell.split()), default=0)


def _wrapped_cell(cell: str, room: int) -> list[str]:
    return [cell] if len(cell) <= room else textwrap.wrap(cell, room, break_on_hyphens=False)


def _list(name: str, cells: Iterable[tuple[str, str]], width: int) -> list[str]:
    lines = [f"{label.strip()}: {cell}" for label, cell in cells if cell]
    return [wrapped(name, width), indented(wrapped("\n".join(lines), width - 2, indent="  "))]
