r"""Memory and traffic of each device that trains a model, by arithmetic alone: ``ademamix plan`` prints it.

A model of N parameters on D devices, in bytes per device, where p, g, w and s are the bytes of a parameter, a gradient,
a master weight, or of what it has beside a parameter that is a part of it, and the optimizer's state of a parameter:

========  ==========  =========  ======  =====  ====================================================
sharding  parameters  gradients  master  state  sent in each step
========  ==========  =========  ======  =====  ====================================================
ddp       p N         g N        w N     s N    all-reduce 2 g N (D-1)/D
zero1     p N         g N        w N/D   s N/D  reduce-scatter g N (D-1)/D, all-gather p N (D-1)/D
zero2     p N         g N/D      w N/D   s N/D  the same
fsdp      p N/D       g N/D      w N/D   s N/D  reduce-scatter g N (D-1)/D, all-gather 2 p N (D-1)/D
========  ==========  =========  ======  =====  ====================================================

What is sent assumes rings, which are optimal: a device passes on all parts but one. FSDP gathers the parameters twice,
for the forward and for the backward pass. With a master copy it keeps that alone: the copy that a layer computes with
is made when it is gathered. A 24-bit master is no copy: two of its three bytes are the bf16 parameter. AdEMAMix sends
what AdamW sends, since its steps do not communicate.

Not counted: activations, layers while they are gathered, buffers of the communication, and the clocks, which are a few
bytes for each tensor in host memory.

Reference for the shardings: Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ademamix import formats
from ademamix.formats import BLOCK, is_large


class Precision(NamedTuple):
    """The bytes of a parameter, a gradient and a master weight; of the last, those beside the parameter, or 0."""

    parameter: int
    gradient: int
    master: int
    title: str


class Sharding(NamedTuple):
    """What is divided among the devices, and how often a step gathers the parameters."""

    parameters: bool
    gradients: bool
    state: bool
    gathers: int
    title: str


class StateFormat(NamedTuple):
    """The bytes of each stored moment of an element; of large parameters, if others keep fp32."""

    moments: tuple[int, ...]
    is_reduced: bool
    coded: int  # the number of moments that have scales
    title: str


PRECISIONS = {
    "fp32": Precision(4, 4, 0, "fp32 parameters and gradients"),
    "bf16": Precision(2, 2, 0, "bf16 parameters and gradients, no master copy"),
    "24bit": Precision(
        2,
        2,
        formats.bytes_of(formats.CORRECTION),
        "bf16 parameters and gradients, a byte beside each parameter for a 24-bit master",
    ),
    "mixed": Precision(2, 4, 4, "computes in bf16, with gradients and a master copy in fp32"),
}
"""How weights, gradients and masters are kept, by name."""
SHARDINGS = {
    "ddp": Sharding(False, False, False, 0, "each device has a copy of everything"),
    "zero1": Sharding(False, False, True, 1, "devices share state and master copy, as in ZeRO-1 and Megatron"),
    "zero2": Sharding(False, True, True, 1, "devices share state, master copy and gradients, as in ZeRO-2"),
    "fsdp": Sharding(True, True, True, 2, "devices share everything, as in FSDP2 and ZeRO-3"),
}
"""What devices share, by name."""


def _stored(storage: str, title: str, *, has_fast: bool = True) -> StateFormat:
    stored, first = formats.STORAGES[storage], 0 if has_fast else 1
    bytes_each = tuple(map(formats.bytes_of, stored[first:]))
    return StateFormat(bytes_each, storage != "fp32", sum(stored.coded[first:]), title)


STATE_FORMATS = {
    "adamw": StateFormat((4, 4), False, 0, "AdamW"),
    **{name: _stored(name, f"AdEMAMix, {name}") for name in formats.STORAGES},
    **{f"{name}-beta1-0": _stored(name, f"AdEMAMix, {name}, beta1 = 0", has_fast=False) for name in formats.STORAGES},
}
"""Optimizers and their storages, by name."""


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of one device, the one that has most: what it keeps, and what it sends in each step."""

    parameters: int
    gradients: int
    master: int
    state: int
    all_gather: int
    reduce_scatter: int
    all_reduce: int

    @property
    def memory(self) -> int:
        """What it keeps in all."""
        return self.parameters + self.gradients + self.master + self.state


def state_bytes(shape: Sequence[int], state: str, *, devices: int = 1) -> int:
    r"""Return the bytes of the moments of a parameter on the device with most of it, where `devices` share its rows.

    With rows of c elements, n of them on the device, b bytes for the codes of an element and k coded moments:

    .. math:: n \left(b\,c + k \left\lceil \tfrac{c}{128} \right\rceil\right)

    Small parameters stay fp32, and so do vectors that the devices would cut through blocks of 128.

    >>> state_bytes((4096, 4096), "compact") / 4096**2
    4.0234375
    >>> state_bytes((4096, 4096), "compact-beta1-0") / 4096**2
    3.015625
    >>> state_bytes((4096,), "compact") / 4096
    12.0
    """
    form = STATE_FORMATS[state]
    elements = part_of(shape, devices)
    is_cut = len(shape) == 1 and devices > 1 and elements % BLOCK > 0
    if form.is_reduced and (not is_large(shape) or is_cut):
        return 4 * len(form.moments) * elements
    row = elements if len(shape) == 1 else math.prod(shape[1:])
    scales = form.coded * -(-row // BLOCK) * (elements // row) if row else 0
    return sum(form.moments) * elements + scales


def part_of(shape: Sequence[int], devices: int) -> int:
    """Return the elements of a parameter on the first device, where `devices` share its rows; a vector's are elements.

    >>> part_of((10, 100), devices=4)
    300
    """
    return -(-shape[0] // devices) * math.prod(shape[1:]) if shape else 1


def weights_of(parameters: int) -> list[tuple[int, ...]]:
    """Return the shapes of a model of which only the size is known: rows of whole blocks, as wide weights have.

    >>> weights_of(1_300_000_000)
    [(10156250, 128)]
    """
    return [(-(-parameters // BLOCK), BLOCK)]


def plan(shapes: Sequence[Sequence[int]], state: str, *, devices: int, shard: str, precision: str) -> DevicePlan:
    """Return what a device keeps and sends when a model with parameters of these shapes is trained.

    The shapes of a torch model are ``[param.shape for param in model.parameters()]``. FSDP divides the rows of each,
    ZeRO one vector of all. With bf16 parameters and no master copy, torch's AdamW has moments in bf16 as well. It knows
    no 24-bit masters, and has a master copy in fp32 where others have these.

    >>> llama = weights_of(70_000_000_000)
    >>> device = plan(llama, "compact", devices=1024, shard="fsdp", precision="mixed")
    >>> device.state / 1e9, device.memory / 1e9
    (0.2750..., 0.8219...)

    Args:
        shapes: of the parameters; :func:`weights_of` has some for a number of parameters.
        state: one of :data:`STATE_FORMATS`.
        devices: how many share the work. Each has all layers: for tensor and pipeline parallelism, give the shapes of
            one part.
        shard: one of :data:`SHARDINGS`.
        precision: one of :data:`PRECISIONS`.
    """
    kept, widths = SHARDINGS[shard], PRECISIONS[precision]
    if state == "adamw" and precision == "24bit":
        widths = widths._replace(master=PRECISIONS["mixed"].master)
    whole = sum(math.prod(shape) for shape in shapes)
    part = sum(part_of(shape, devices) for shape in shapes) if kept.parameters else -(-whole // devices)
    others = devices - 1
    has_only_master = kept.parameters and widths.master > widths.parameter
    return DevicePlan(
        parameters=0 if has_only_master else widths.parameter * (part if kept.parameters else whole),
        gradients=widths.gradient * (part if kept.gradients else whole),
        master=widths.master * (part if kept.state else whole),
        state=_state(shapes, state, part, devices, kept, widths),
        all_gather=kept.gathers * others * part * widths.parameter,
        reduce_scatter=others * part * widths.gradient if kept.gathers else 0,
        all_reduce=0 if kept.gathers else 2 * others * part * widths.gradient,
    )


def _state(
    shapes: Sequence[Sequence[int]], state: str, part: int, devices: int, kept: Sharding, widths: Precision
) -> int:
    if not kept.state:
        devices = 1
    elif not kept.parameters:  # a slice of all parameters
        shapes, devices = [(part,)], 1
    if state == "adamw" and not widths.master:
        return len(STATE_FORMATS[state].moments) * widths.parameter * sum(part_of(shape, devices) for shape in shapes)
    return sum(state_bytes(shape, state, devices=devices) for shape in shapes)
