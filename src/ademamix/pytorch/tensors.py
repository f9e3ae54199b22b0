"""The tensors of a step, as parallel lists: the one place that names them and their order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ademamix.formats import BLOCK


class Rows(NamedTuple):
    """A tensor as rows, each of which is a piece of a row of the whole parameter."""

    number: int
    size: int  # elements in each
    first: int  # the row of the whole that the first is a piece of
    first_column: int  # where the pieces begin
    whole_size: int  # elements in a row of the whole


class Place(NamedTuple):
    """Which part of which parameter a tensor is: random words depend on this, not on how a parameter is cut."""

    param_index: int  # in the optimizer
    offsets: tuple[int, ...] = ()  # where the part begins in each dimension; empty if it is the whole
    whole: tuple[int, ...] = ()  # the shape of the whole parameter; empty as well

    def rows(self, shape: Sequence[int]) -> Rows:
        """Return a tensor of this shape and place as rows: those of dimension 0, of which a vector is one.

        Where the parameter is cut in a dimension beyond the next, they are shorter: up to where it is cut.
        """
        if not shape:
            return Rows(number=1, size=1, first=0, first_column=0, whole_size=1)
        whole, offsets = self.whole or tuple(shape), self.offsets or (0,) * len(shape)
        axis = max([min(1, len(shape) - 1), *self.cuts(shape)])
        first = 0
        for size, offset in zip(whole[:axis], offsets[:axis], strict=True):
            first = first * size + offset
        return Rows(
            number=math.prod(shape[:axis]),
            size=math.prod(shape[axis:]),
            first=first,
            first_column=offsets[axis] * math.prod(whole[axis + 1 :]),
            whole_size=math.prod(whole[axis:]),
        )

    def cuts(self, shape: Sequence[int]) -> list[int]:
        """Return the dimensions beyond the first in which a tensor of this shape is not as large as the whole."""
        return [axis for axis, size in enumerate(self.whole) if axis > 0 and size != shape[axis]]

    def moved(self, start: int, shape: Sequence[int]) -> Place:
        """Return the place of what begins at `start` in dimension 0 of a tensor of this shape."""
        offsets = self.offsets or (0,) * len(shape)
        return Place(self.param_index, (offsets[0] + start, *offsets[1:]), self.whole or tuple(shape))

    def unbound(self, i: int) -> Place:
        """Return the place of the entry at `i` in dimension 0 of a tensor, with its rows as part of all such rows."""
        first = (self.offsets[0] + i) * self.whole[1] + self.offsets[1]
        return Place(self.param_index, (first, *self.offsets[2:]), (self.whole[0] * self.whole[1], *self.whole[2:]))


def whole_places(param_indices: Iterable[int]) -> list[Place]:
    """Return the places of whole parameters. They are kept: every step asks for them."""
    if torch.compiler.is_compiling():  # which warns of a cache, and makes them once
        return [Place(index) for index in param_indices]
    return list(map(_kept_place, param_indices))


_kept_place = cache(Place)


class Tensors(NamedTuple):
    """Parameters and all that belongs to them. A column has an entry for each parameter, or is empty.

    The order is that of `Columns` in csrc/bindings.cpp, which ends at the clocks.
    """

    places: list[Place]
    params: list[Tensor]
    grads: list[Tensor]
    fasts: list[Tensor]  # empty when beta1 = 0
    slows: list[Tensor]
    squares: list[Tensor]
    corrections: list[Tensor]  # empty unless bf16 parameters have masters of 24 bits
    fast_scales: list[Tensor]  # scales are empty unless the moments are coded
    slow_scales: list[Tensor]
    square_scales: list[Tensor]
    skipped: list[Tensor]  # counts of gradient elements that are not finite; empty if those propagate
    steps: list[Tensor]
    slow_steps: list[Tensor]

    @classmethod
    def none(cls) -> Tensors:
        """Return columns to append to."""
        return cls([], *[[] for _ in cls._fields[1:]])

    @property
    def columns(self) -> tuple[list[Tensor], ...]:
        """All columns of tensors."""
        return self[1:]

    @property
    def of_kernels(self) -> tuple[list[Tensor], ...]:
        """The columns that kernels take."""
        return self.columns[:KERNEL_COLUMNS]

    def with_columns(self, *first: list[Tensor]) -> Tensors:
        """Return the same tensors with other first columns."""
        return Tensors(self.places, *first, *self.columns[len(first) :])

    def take(self, positions: slice | list[int]) -> Tensors:
        """Return the tensors at some positions."""
        if isinstance(positions, slice):
            return Tensors(self.places[positions], *[column[positions] for column in self.columns])
        columns = [[column[i] for i in positions] if column else [] for column in self.columns]
        return Tensors([self.places[i] for i in positions], *columns)

    def rows(self, rows: slice) -> Tensors:
        """Return some rows of dimension 0 of each tensor. Counts and clocks stay those of the whole.

        The scales of vectors, whose rows are elements, are in a row of their own.
        """
        places = [place.moved(rows.start, x.shape) for place, x in zip(self.places, self.params, strict=True)]
        shaped = [[tensor[rows] for tensor in column] for column in self.columns[:SHAPED_COLUMNS]]
        blocks = slice(rows.start // BLOCK, None if rows.stop is None else -(-rows.stop // BLOCK))
        scales = [
            [x[:, blocks] if param.dim() == 1 else x[rows] for param, x in zip(self.params, column, strict=True)]
            if column
            else []
            for column in self.columns[SHAPED_COLUMNS:ROW_COLUMNS]
        ]
        return self.with_columns(*shaped, *scales)._replace(places=places)

    def entry(self, i: int) -> Tensors:
        """Return the entry at `i` in dimension 0 of the only tensor. Counts and clocks stay those of the whole."""
        shaped = [[tensor[i] for tensor in column] for column in self.columns[:SHAPED_COLUMNS]]
        return self.with_columns(*shaped)._replace(places=[self.places[0].unbound(i)])

    def as_real(self) -> Tensors:
        """Return complex tensors as pairs of real ones, as torch.optim does."""
        if not any(map(Tensor.is_complex, self.params)):
            return self
        real = [
            [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in column]
            for column in self.columns[:SHAPED_COLUMNS]
        ]
        # Complex parameters are rounded to nearest, wherever their parts lie.
        places = [
            Place(place.param_index) if x.is_complex() else place
            for place, x in zip(self.places, self.params, strict=True)
        ]
        return self.with_columns(*real)._replace(places=places)


# The number of columns whose tensors have the shape of their parameter, or its rows, or are taken by kernels.
SHAPED_COLUMNS = Tensors._fields[1:].index("fast_scales")
ROW_COLUMNS = Tensors._fields[1:].index("skipped")
KERNEL_COLUMNS = Tensors._fields[1:].index("steps")
KERNEL_NAMES = Tensors._fields[1 : 1 + KERNEL_COLUMNS]
# Those of the state, in the order of `StateColumn` in csrc/state_layout.h.
STATE_COLUMNS = Tensors._fields[3:]
