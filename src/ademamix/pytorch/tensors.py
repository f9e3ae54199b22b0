"""The tensors of a step, as parallel lists: the one place that names them, their order and their keys in the state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# The names of the moments here, in the order that they have everywhere, and their keys in the state of a parameter and
# in checkpoints: AdamW's, and one more.
MOMENT_KEYS = {"fast": "exp_avg", "slow": "exp_avg_slow", "square": "exp_avg_sq"}
SCALE_KEYS = {moment: f"{key}_scale" for moment, key in MOMENT_KEYS.items()}  # of coded moments
CLOCK_KEYS = ("step", "slow_step")
SKIPPED_KEY = "skipped"


class Place(NamedTuple):
    """Which rows of which parameter a tensor has: random words depend on this, not on how a parameter is cut."""

    param_index: int  # in the optimizer
    first_row: int = 0  # in dimension 0 of the parameter


class Tensors(NamedTuple):
    """Parameters and all that belongs to them. A column has an entry for each parameter, or is empty.

    The order is that of `Columns` in csrc/bindings.cpp and of `TensorRow` in step_triton.py, which end at the clocks.
    """

    indices: list[int]  # of the parameters in the optimizer
    first_rows: list[int]  # where each tensor begins in dimension 0 of its parameter
    params: list[Tensor]
    grads: list[Tensor]
    fasts: list[Tensor]  # empty when beta1 = 0
    slows: list[Tensor]
    squares: list[Tensor]
    fast_scales: list[Tensor]  # scales are empty unless the moments are coded
    slow_scales: list[Tensor]
    square_scales: list[Tensor]
    skipped: list[Tensor]  # counts of gradient elements that are not finite; empty if those propagate
    steps: list[Tensor]
    slow_steps: list[Tensor]

    @classmethod
    def none(cls) -> Tensors:
        """Return columns to append to."""
        return cls([], [], *[[] for _ in cls._fields[2:]])

    @property
    def columns(self) -> tuple[list[Tensor], ...]:
        """All columns of tensors."""
        return self[2:]

    @property
    def of_kernels(self) -> tuple[list[Tensor], ...]:
        """The columns that kernels take."""
        return self.columns[:KERNEL_COLUMNS]

    def place(self, i: int) -> Place:
        """Return where the tensor at `i` belongs."""
        return Place(self.indices[i], self.first_rows[i])

    def with_columns(self, *first: list[Tensor]) -> Tensors:
        """Return the same tensors with other first columns."""
        return Tensors(self.indices, self.first_rows, *first, *self.columns[len(first) :])

    def take(self, positions: slice | list[int]) -> Tensors:
        """Return the tensors at some positions."""
        if isinstance(positions, slice):
            cut = [column[positions] for column in self.columns]
            return Tensors(self.indices[positions], self.first_rows[positions], *cut)
        columns = [[column[i] for i in positions] if column else [] for column in self.columns]
        return Tensors([self.indices[i] for i in positions], [self.first_rows[i] for i in positions], *columns)

    def rows(self, rows: slice) -> Tensors:
        """Return some rows of dimension 0 of each tensor. Counts and clocks stay those of the whole."""
        first_rows = [first + rows.start for first in self.first_rows]
        cut = [[tensor[rows] for tensor in column] for column in self.columns[:ROW_COLUMNS]]
        return self.with_columns(*cut)._replace(first_rows=first_rows)

    def as_real(self) -> Tensors:
        """Return complex tensors as pairs of real ones, as torch.optim does."""
        if not any(param.is_complex() for param in self.params):
            return self
        return self.with_columns(
            *[
                [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in column]
                for column in self.columns[:SHAPED_COLUMNS]
            ]
        )


# The number of columns whose tensors have the shape of their parameter, or its rows, or are taken by kernels.
SHAPED_COLUMNS = Tensors._fields[2:].index("fast_scales")
ROW_COLUMNS = Tensors._fields[2:].index("skipped")
KERNEL_COLUMNS = Tensors._fields[2:].index("steps")
