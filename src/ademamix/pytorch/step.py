"""One AdEMAMix step as a function, which advances the clocks and chooses the body that does the arithmetic.

The bodies share one signature: `single` (readable, differentiable), `foreach` (torch's multi-tensor operations), `cpu`
(one call into the C++ core) and `triton` (a kernel for CUDA). `fused` means one of the last two; torch.compile sees
them as an operator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

from ademamix.pytorch import shards, step_cpu, step_foreach, step_operator, step_single, step_triton, storage
from ademamix.pytorch.coefficients import PerTensor, Settings, coefficients_at, next_step, taken
from ademamix.pytorch.core import CORE_STORAGES, check_memory, core, missing_core
from ademamix.pytorch.memory_order import are_plain, has_memory
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.tensors import Tensors

# Moments that are not fp32 are decoded this many at a time: it bounds the memory that a step takes beyond the state.
DECODED_ELEMENTS = 1 << 22

# Triton is only looked for here, and imported where it is used: nobody else should wait for it.
has_triton = importlib.util.find_spec("triton") is not None


class Flags(NamedTuple):
    """How to carry out a step; with `foreach` and `fused` both None, the fastest body is chosen."""

    maximize: bool = False
    capturable: bool = False
    differentiable: bool = False
    foreach: bool | None = None
    fused: bool | None = None
    has_kernels: bool = core is not None  # on a CPU, for the storage of the moments

    @classmethod
    def of_group(cls, group: Mapping[str, Any]) -> Flags:
        """Take the flags from a parameter group."""
        flags = cls(*[group[name] for name in cls._fields[:-1]])
        return flags._replace(has_kernels=group["state_storage"] in CORE_STORAGES)

    @property
    def is_open(self) -> bool:
        """Tell whether the caller has left the choice of the body to us."""
        return self.fused is None and self.foreach is None

    @property
    def prefers_fused(self) -> bool:
        """Tell whether a fused body takes tensors that are plain and in the memory of the CPU.

        By default on a CPU alone: the Triton kernel is for those who ask for it, until it has been run on a GPU.
        """
        return bool(self.fused) or (self.is_open and self.has_kernels and not self.differentiable)


def ademamix_step(
    tensors: Tensors,
    settings: Settings,
    rounding: Rounding,
    flags: Flags,
    *,
    grad_scale: Tensor | None = None,
    fast_starts: Mapping[int, Tensor] = MappingProxyType({}),
    addresses: Any = None,
) -> None:
    r"""Take one step on each parameter, in place.

    .. math::
        m_1 &\leftarrow \beta_1 m_1 + (1-\beta_1) g, \quad
        m_2 \leftarrow \beta_3^{(t)} m_2 + (1-\beta_3^{(t)}) g, \quad
        \nu \leftarrow \beta_2 \nu + (1-\beta_2) g^2 \\
        \theta &\leftarrow \theta - \eta\Bigl(\frac{m_1/(1-\beta_1^t) + \alpha^{(t)} m_2}
                 {\sqrt{\nu/(1-\beta_2^t)} + \epsilon} + \lambda\theta\Bigr)

    Gradients are divided by `grad_scale`. `fast_starts` has the step at which m1 was empty, by position, for parameters
    whose beta1 was 0 until then: t of their m1 counts from there. `addresses` are those of all tensors, if the core has
    gathered them; nothing else is then looked at but the parameters.

    >>> from ademamix.pytorch.tensors import Place
    >>> def zeros():
    ...     return [torch.zeros(3)]
    >>> state = {"fasts": zeros(), "slows": zeros(), "squares": zeros()}
    >>> state |= {"steps": [torch.tensor(0.0)], "slow_steps": [torch.tensor(0.0)]}
    >>> tensors = Tensors.none()._replace(places=[Place(0)], params=zeros(), grads=[torch.ones(3)], **state)
    >>> settings = Settings(0.1, (0.9, 0.999, 0.9999), 5.0, 0, 0, 0.9, 1e-8, 0.0)
    >>> ademamix_step(tensors, settings, Rounding(seed=0, stochastic_params=True), Flags())
    >>> tensors.params[0]
    tensor([-0.1000, -0.1000, -0.1000])

    Reference: Algorithm 1 of the paper.
    """
    if not tensors.params:
        return
    if addresses is not None:
        _step_at(addresses, tensors.params, settings, rounding, maximize=flags.maximize, grad_scale=grad_scale)
        return
    params = tensors.params
    if not flags.differentiable:
        tensors = shards.localised(tensors)
    as_tensors = flags.capturable or torch.compiler.is_compiling()
    if isinstance(settings.lr, Tensor):
        # In double: an fp32 lr times weight_decay would be rounded before it meets an fp64 parameter.
        lr = settings.lr.reshape(()).to(torch.float64) if as_tensors or flags.differentiable else settings.lr.item()
        settings = settings._replace(lr=lr)
    fused, foreach = chosen(flags, tensors.params, tensors.grads)
    if not (flags.differentiable or torch.compiler.is_compiling()) and (as_tensors or not fused):
        check_memory([*tensors.columns, [*fast_starts.values()]])
    coefficients, advance_clocks = next_step(tensors, fast_starts, settings, as_tensors=as_tensors)
    parts = _parts(tensors.as_real(), coefficients, fused=fused)
    for part, own in _with_rows(parts) if any(place.whole for place in tensors.places) else parts:
        update = _body(part, own, fused=fused, foreach=foreach)
        update(part, own, rounding, maximize=flags.maximize, grad_scale=grad_scale)
        if fused and not torch.compiler.is_compiling():
            torch.autograd.graph.increment_version(part.params)  # kernels write behind autograd's back
    advance_clocks()
    if tensors.params is not params and not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version([param for param in params if shards.is_sharded(param)])


def _step_at(
    addresses: Any,
    params: list[Tensor],
    settings: Settings,
    rounding: Rounding,
    *,
    maximize: bool,
    grad_scale: Tensor | None,
) -> None:
    """Take the same step on tensors that the core has gathered, at the addresses that it has found."""
    if isinstance(settings.lr, Tensor):
        settings = settings._replace(lr=settings.lr.item())
    clocks = addresses.clocks
    coefficients = coefficients_at(clocks.distinct, settings)
    step_cpu.update_at(addresses, coefficients, rounding, maximize=maximize, grad_scale=grad_scale)
    torch.autograd.graph.increment_version(params)  # kernels write behind autograd's back
    clocks.advance()


def _body(tensors: Tensors, coefficients: PerTensor, *, fused: bool, foreach: bool) -> Callable[..., None]:
    """Choose the body for tensors; those of a fused step are on one device."""
    if not fused:
        return step_foreach.update if foreach else step_single.update
    if runs_on_triton(tensors.params[0]) and not torch.compiler.is_compiling():
        return step_triton.update
    return step_cpu.update if isinstance(coefficients, list) else step_operator.update


def chosen(flags: Flags, params: list[Tensor], grads: Sequence[Tensor] = ()) -> tuple[bool, bool]:
    """Return (fused, foreach) as they were stated, or the fastest if neither was."""
    if not flags.is_open:
        return bool(flags.fused), bool(flags.foreach)
    plain = not flags.differentiable and are_plain(params) and are_plain(grads)
    if plain and flags.prefers_fused and all(p.is_cpu and p.dtype in storage.MOMENT_DTYPES for p in params):
        return True, False
    # torch has no multi-tensor kernels for a CPU, but the body is fast there because it works in the cache.
    foreach_devices = (*_get_foreach_kernels_supported_devices(), "cpu")
    return False, plain and all(p.device.type in foreach_devices for p in params)


def runs_on_triton(param: Tensor) -> bool:
    """Tell whether the Triton kernel is the one for `param`: on NVIDIA's GPUs, and on AMD's, which torch calls CUDA."""
    return param.is_cuda


def check_fused(group: Mapping[str, Any]) -> None:
    """Raise if a group is to be fused but cannot be."""
    for param in group["params"] if group["fused"] else ():
        if reason := why_not_fused(param, group["state_storage"]):
            raise RuntimeError(f"`fused=True` is not possible: {reason}")


def why_not_fused(param: Tensor, state_storage: str) -> str | None:
    """Say why no fused body can update `param`, or return None if one can."""
    param = shards.local(param)
    storages: Collection[str] = CORE_STORAGES
    if runs_on_triton(param):
        storages = step_triton.STORAGES
        if not has_triton:
            return "on a GPU it needs Triton, which is not installed: `pip install triton`, or leave `fused` out"
    elif not param.is_cpu:
        return f"there is no fused kernel for device {param.device.type!r}; leave `fused` out or use foreach=True"
    elif core is None:
        return missing_core
    if state_storage not in storages:
        return f"there is no fused kernel for state_storage={state_storage!r}; leave `fused` out or use foreach=True"
    if param.dtype not in storage.MOMENT_DTYPES:
        return f"there is no fused kernel for {param.dtype}; leave `fused` out"
    if not has_memory(param):
        return f"a {type(param).__name__} keeps its elements where the kernel cannot see them; leave `fused` out"
    return None


def _parts(tensors: Tensors, coefficients: PerTensor, *, fused: bool) -> Iterator[tuple[Tensors, PerTensor]]:
    """Yield the tensors that a body can take at once: those of one device if fused, else few enough to decode."""
    if fused and not all(param.is_cpu for param in tensors.params):
        for positions in _by_device(tensors.params):
            yield tensors.take(positions), taken(coefficients, positions)
    elif not fused and storage.is_reduced(tensors.slows[0]):
        for own, rows in _ranges([param.shape for param in tensors.params]):
            yield tensors.take(own).rows(rows), taken(coefficients, own)
    else:
        yield tensors, coefficients


def _with_rows(parts: Iterable[tuple[Tensors, PerTensor]]) -> Iterator[tuple[Tensors, PerTensor]]:
    """Take tensors apart that are cut in two dimensions beyond the first, until they have rows."""
    for tensors, coefficients in parts:
        places = enumerate(tensors.places)
        crossed = [i for i, place in places if place.whole and len(place.cuts(tensors.params[i].shape)) > 1]
        if crossed:
            others = [i for i in range(len(tensors.params)) if i not in crossed]
            yield from [(tensors.take(others), taken(coefficients, others))] if others else []
            for i in crossed:
                own, entries = taken(coefficients, [i]), range(len(tensors.params[i]))
                yield from _with_rows((tensors.take([i]).entry(entry), own) for entry in entries)
        else:
            yield tensors, coefficients


def _by_device(params: list[Tensor]) -> list[list[int]]:
    """Return the positions of the parameters of each device."""
    positions: dict[torch.device, list[int]] = {}
    for i, param in enumerate(params):
        positions.setdefault(param.device, []).append(i)
    return list(positions.values())


def _ranges(shapes: list[torch.Size]) -> Iterator[tuple[slice, slice]]:
    """Yield ranges of tensors of about DECODED_ELEMENTS, and the range of rows to take of each."""
    first, elements = 0, 0
    for i, shape in enumerate(shapes):
        if elements + shape.numel() > DECODED_ELEMENTS and first < i:
            yield slice(first, i), slice(0, None)
            first, elements = i, 0
        elements += shape.numel()
        if elements > DECODED_ELEMENTS:  # this one is too large even alone
            rows = max(1, DECODED_ELEMENTS * shape[0] // elements)  # of a vector, whole blocks
            for start in range(0, shape[0], rows):
                yield slice(i, i + 1), slice(start, start + rows)
            first, elements = i + 1, 0
    if first < len(shapes):
        yield slice(first, len(shapes)), slice(0, None)
