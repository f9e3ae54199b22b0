"""One AdEMAMix step as a function: advances the clocks, then chooses the body that does the arithmetic.

The three bodies share one signature: `single` (readable, differentiable), `foreach` (torch's multi-tensor
operations) and `fused` (one call into the C++ core, or on CUDA a Triton kernel).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

from ademamix.pytorch import step_foreach, step_fused, step_single, storage
from ademamix.pytorch.coefficients import Coefficients, PerTensor, Settings, next_step
from ademamix.pytorch.core import check_memory
from ademamix.pytorch.memory_order import PLAIN_TYPES
from ademamix.pytorch.rounding import Rounding

# Moments that are not fp32 are decoded this many at a time: it bounds the memory that a step takes beyond the state.
DECODED_ELEMENTS = 1 << 22


def ademamix_step(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_slows: list[Tensor],
    exp_avg_sqs: list[Tensor],
    exp_avg_scales: list[Tensor],
    exp_avg_slow_scales: list[Tensor],
    exp_avg_sq_scales: list[Tensor],
    state_steps: list[Tensor],
    slow_steps: list[Tensor],
    skipped: list[Tensor],
    *,
    lr: float | Tensor,
    betas: tuple[float, float, float],
    alpha: float,
    alpha_warmup: int,
    beta3_warmup: int,
    beta3_start: float,
    eps: float,
    weight_decay: float,
    rounding: Rounding,
    maximize: bool,
    capturable: bool,
    differentiable: bool,
    foreach: bool | None,
    fused: bool | None,
    grad_scale: Tensor | None,
    fast_starts: Mapping[int, Tensor] = MappingProxyType({}),
) -> None:
    r"""Take one step on each parameter, in place.

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g, \quad
        m_2 \leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g, \quad
        \nu \leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta\Big(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Big)

    `exp_avgs` is empty when beta1 = 0; the scales are empty unless the moments are coded. `skipped` is empty if
    non-finite gradient elements propagate; otherwise they are passed over and counted there. Complex tensors are
    treated as pairs of real ones, as in torch.optim. `fast_starts` has the step at which m1 was empty, by position, for
    parameters whose beta1 was 0 until then: t of their m1 counts from there.

    Reference: Algorithm 1 of the paper.
    """
    if not params:
        return
    as_tensors = capturable or torch.compiler.is_compiling()
    if isinstance(lr, Tensor):
        # In double: an fp32 lr times weight_decay would be rounded before it meets an fp64 parameter.
        lr = lr.reshape(()).to(torch.float64) if as_tensors or differentiable else lr.item()
    settings = Settings(lr, betas, alpha, alpha_warmup, beta3_warmup, beta3_start, eps, weight_decay)
    if fused is None and foreach is None:
        fused, foreach = fastest(params, grads, differentiable=differentiable)
    body = step_fused.update if fused else step_foreach.update if foreach else step_single.update

    moments = (exp_avgs, exp_avg_slows, exp_avg_sqs)
    scales = (exp_avg_scales, exp_avg_slow_scales, exp_avg_sq_scales)
    if not (differentiable or torch.compiler.is_compiling()) and (as_tensors or not fused):
        check_memory([params, grads, *moments, *scales, state_steps, slow_steps, skipped, [*fast_starts.values()]])
    coefficients, advance_clocks = next_step(state_steps, slow_steps, fast_starts, settings, as_tensors=as_tensors)
    if any(p.is_complex() for p in params):
        params, grads, exp_avgs, exp_avg_slows, exp_avg_sqs = (
            [torch.view_as_real(x) if x.is_complex() else x for x in tensors]
            for tensors in (params, grads, exp_avgs, exp_avg_slows, exp_avg_sqs)
        )
    moments = (exp_avgs, exp_avg_slows, exp_avg_sqs)
    whole = Arguments(params, grads, *moments, *scales, skipped, coefficients)
    if fused:
        parts = _by_device(whole, rounding)
    elif storage.is_reduced(exp_avg_slows[0]):
        parts = _split(whole, rounding)
    else:
        parts = iter([(whole, rounding)])
    for part, own_rounding in parts:
        body(*part, rounding=own_rounding, maximize=maximize, grad_scale=grad_scale)
    advance_clocks()


class Arguments(NamedTuple):
    """The positional arguments of a body."""

    params: list[Tensor]
    grads: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_slows: list[Tensor]
    exp_avg_sqs: list[Tensor]
    exp_avg_scales: list[Tensor]
    exp_avg_slow_scales: list[Tensor]
    exp_avg_sq_scales: list[Tensor]
    skipped: list[Tensor]
    coefficients: PerTensor


def _by_device(whole: Arguments, rounding: Rounding) -> Iterator[tuple[Arguments, Rounding]]:
    """Yield a part for each device that has parameters."""
    if all(param.is_cpu for param in whole.params):
        yield whole, rounding
        return
    positions: dict[torch.device, list[int]] = {}
    for i, param in enumerate(whole.params):
        positions.setdefault(param.device, []).append(i)
    *columns, c = whole
    for own in positions.values():
        lists = [[column[i] for i in own] if column else [] for column in columns]
        own_c = [c[i] for i in own] if isinstance(c, list) else Coefficients(*(field[own] for field in c))
        indices, first_rows = [rounding.indices[i] for i in own], [rounding.first_rows[i] for i in own]
        yield Arguments._make([*lists, own_c]), rounding._replace(indices=indices, first_rows=first_rows)


def _split(whole: Arguments, rounding: Rounding) -> Iterator[tuple[Arguments, Rounding]]:
    """Yield parts that have about DECODED_ELEMENTS each: several tensors, or some rows of a large one."""
    c = whole.coefficients
    for own, rows in _ranges([param.shape for param in whole.params]):

        def cut(tensors: list[Tensor], own: slice = own, rows: slice = rows) -> list[Tensor]:
            return [tensor[rows] for tensor in tensors[own]]

        part = Arguments(
            cut(whole.params),
            cut(whole.grads),
            cut(whole.exp_avgs),
            cut(whole.exp_avg_slows),
            cut(whole.exp_avg_sqs),
            cut(whole.exp_avg_scales),
            cut(whole.exp_avg_slow_scales),
            cut(whole.exp_avg_sq_scales),
            whole.skipped[own],
            c[own] if isinstance(c, list) else Coefficients(*(field[own] for field in c)),
        )
        first_rows = [first + rows.start for first in rounding.first_rows[own]]
        yield part, rounding._replace(indices=rounding.indices[own], first_rows=first_rows)


def _ranges(shapes: list[torch.Size]) -> Iterator[tuple[slice, slice]]:
    """Yield ranges of tensors and the range of rows to take of each."""
    first, elements = 0, 0
    for i, shape in enumerate(shapes):
        if elements + shape.numel() > DECODED_ELEMENTS and first < i:
            yield slice(first, i), slice(0, None)
            first, elements = i, 0
        elements += shape.numel()
        if elements > DECODED_ELEMENTS:  # this one alone
            rows = max(1, DECODED_ELEMENTS * shape[0] // elements)
            for start in range(0, shape[0], rows):
                yield slice(i, i + 1), slice(start, start + rows)
            first, elements = i + 1, 0
    if first < len(shapes):
        yield slice(first, len(shapes)), slice(0, None)


def fastest(params: list[Tensor], grads: Sequence[Tensor] = (), *, differentiable: bool) -> tuple[bool, bool]:
    """Choose (fused, foreach) for parameters whose owner stated neither."""
    plain = not differentiable and all(type(x) in PLAIN_TYPES for tensors in (params, grads) for x in tensors)
    # On a CPU alone: the Triton kernel is for those who ask for it, until it has been run on a GPU.
    if plain and step_fused.has_core() and all(p.is_cpu and p.dtype in storage.MOMENT_DTYPES for p in params):
        return True, False
    # torch has no multi-tensor kernels for a CPU, but there the body works in the cache, which is what makes it fast.
    foreach_devices = (*_get_foreach_kernels_supported_devices(), "cpu")
    return False, plain and all(p.device.type in foreach_devices for p in params)
