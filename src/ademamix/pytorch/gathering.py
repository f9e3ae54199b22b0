"""Gathering what a step takes: the parameters of a group that have a gradient, and their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from torch import Tensor

from ademamix.pytorch import inputs, parameter_state, shards
from ademamix.pytorch.core import core, reader
from ademamix.pytorch.memory_order import are_plain, completed
from ademamix.pytorch.parameter_state import Form, Kind
from ademamix.pytorch.step import Flags, check_fused
from ademamix.pytorch.tensors import Tensors
from ademamix.state_keys import FAST_START

# The positions of parameters whose m1 began late, the clocks at which it did, and the indices of all parameters in the
# optimizer. The columns of `Tensors` follow. The order is that of `List` in csrc/addresses.h.
OTHER_LISTS = 3


def empty_lists() -> tuple[list[Any], ...]:
    """Return lists to gather into."""
    return tuple([] for _ in range(OTHER_LISTS + len(Tensors._fields[1:])))


def gather(
    group: Mapping[str, Any], kind: Kind, first_index: int, states: dict[Tensor, Any], lists: Sequence[list[Any]]
) -> Any:
    """Fill empty lists with the parameters of `group` that are of a kind and have a gradient, and what belongs to them.

    State that is missing or not as it should be is prepared. Where nothing is to be done, the core gathers all at once,
    and the addresses that it has found are returned if a step can be taken with them alone.
    """
    form = parameter_state.form_of(
        group["state_storage"] if kind.reduced else None,
        has_fast=group["betas"][0] > 0,
        skips=group["nonfinite"] == "skip",
        corrected=kind.corrected,
    )
    if core is not None and form.layout is not None:
        possible = (group["state_storage"] != "fp32", group["master"] is not None)
        addresses = core.gather(form.layout, [*group["params"]], states, first_index, possible, lists, reader)
        if addresses is not None:
            flags = Flags.of_group(group)
            return addresses if addresses.suffice and flags.prefers_fused and not flags.capturable else None
    check_fused(group)  # what the core takes can be fused
    _gather_one_by_one(group, kind, form, first_index, states, lists)
    return None


def _gather_one_by_one(
    group: Mapping[str, Any],
    kind: Kind,
    form: Form,
    first_index: int,
    states: dict[Tensor, Any],
    lists: Sequence[list[Any]],
) -> None:
    late, fast_starts, indices, *columns = lists
    tensors = Tensors([], *columns)
    mixed = len(parameter_state.kinds_in(group)) > 1
    fits = form.fits if are_plain(group["params"]) else form.fits_parts
    own_states: list[dict[str, Any]] = []
    for index, param in enumerate(group["params"], start=first_index):
        grad = param.grad
        if grad is None or (mixed and parameter_state.kind_of(param, group) != kind):
            continue
        state = states.get(param)
        if state is None or not fits(state, param, grad):
            if not shards.is_sharded(grad):
                grad = completed(grad)
            if state is None or not parameter_state.is_ready(state, param, grad, form):
                inputs.check(param, grad, differentiable=group["differentiable"])
                state = states[param]
                parameter_state.prepare(state, param, group)
        if FAST_START in state:
            late.append(len(own_states))
            fast_starts.append(state[FAST_START])
        tensors.params.append(param)
        tensors.grads.append(grad)
        indices.append(index)
        own_states.append(state)
    for column, key in form.keys.items():
        getattr(tensors, column).extend(map(itemgetter(key), own_states))
