"""The state of a parameter: the form that it needs, and how a state from elsewhere is brought into it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix.pytorch import block_codes, shards
from ademamix.pytorch.core import CORE_STORAGES, check_memory, core, reader
from ademamix.pytorch.master import CORRECTION_DTYPE, divided, is_corrected, joined
from ademamix.pytorch.storage import (
    MOMENT_DTYPES,
    REDUCED_DTYPES,
    dtype_of,
    read_moment,
    reduces,
    write_moment,
)
from ademamix.pytorch.tensors import STATE_COLUMNS
from ademamix.state_keys import (
    CLOCK_KEYS,
    CORRECTION_KEY,
    FAST_KEY,
    FAST_START,
    MOMENT_KEYS,
    SCALE_KEYS,
    SKIPPED_KEY,
    SLOW_KEY,
    SLOW_STEP_KEY,
    SQUARE_KEY,
    STEP_KEY,
)


class Kind(NamedTuple):
    """What the parameters that a step takes together have in common besides their group: lists are of one kind."""

    reduced: bool  # their moments are stored in fewer bits than they are computed in
    corrected: bool  # they have masters


def kind_of(param: Tensor, group: Mapping[str, Any]) -> Kind:
    """Return the kind of a parameter."""
    return Kind(reduces(param, group), is_corrected(param, group))


def kinds_in(group: Mapping[str, Any]) -> list[Kind]:
    """Return the kinds that the parameters of a group may have. Most groups have one; the likelier come first."""
    reduced = (False,) if group["state_storage"] == "fp32" else (False, True)
    corrected = (False,) if group["master"] is None else (True, False)
    return [Kind(first, second) for second in corrected for first in reduced]


class Form(NamedTuple):
    """The form that the state of a parameter must have."""

    moments: Sequence[str]
    dtypes: Mapping[str, torch.dtype] | None  # of reduced moments
    keys: Mapping[str, str]  # of the state, by the columns of `Tensors` that they fill
    layout: Any  # the same for the core; None without it, or if it does not know the storage

    def fits(self, state: Mapping[str, Any], param: Tensor, grad: Tensor) -> bool:
        """Tell quickly whether a step can take `state` and `grad` as they are. False may be a false alarm."""
        return self.layout is not None and self.layout.fits(state, param, grad, reader)

    def fits_parts(self, state: Mapping[str, Any], param: Tensor, grad: Tensor) -> bool:
        """Tell the same of parameters that may be sharded, by their local parts."""
        return self.fits(*shards.parts_of(state, param, grad))


@cache
def form_of(state_storage: str | None, *, has_fast: bool, skips: bool, corrected: bool = False) -> Form:
    """Return the form that the state has in a storage, or in full if that is None."""
    moments = [moment for moment in MOMENT_KEYS if has_fast or moment != "fast"]
    dtypes = None if state_storage is None else REDUCED_DTYPES[state_storage]
    stored = {f"{moment}s": MOMENT_KEYS[moment] for moment in moments}
    coded = [moment for moment in moments if dtypes is not None and dtypes[moment] in block_codes.BY_DTYPE]
    scales = {f"{moment}_scales": SCALE_KEYS[moment] for moment in coded}
    corrections = {"corrections": CORRECTION_KEY} if corrected else {}
    counts = {"skipped": SKIPPED_KEY} if skips else {}
    clocks = dict(zip(("steps", "slow_steps"), CLOCK_KEYS, strict=True))
    keys = {**stored, **corrections, **scales, **counts, **clocks}
    layout, name = None, state_storage or "fp32"
    if core is not None and name in CORE_STORAGES:
        absent = [] if has_fast else [FAST_KEY]
        absent += [] if corrected else [CORRECTION_KEY]
        names = [keys.get(column) for column in STATE_COLUMNS]
        layout = core.StateLayout(name, names, absent, FAST_START)
    return Form(moments, dtypes, keys, layout)


def is_ready(state: Mapping[str, Any], param: Tensor, grad: Tensor, form: Form) -> bool:
    """Tell whether a step of `param` needs nothing from :func:`prepare`. False may be a false alarm."""
    dtype, shape = param.dtype, param.shape
    if grad.dtype != dtype or grad.shape != shape or not param.is_contiguous() or grad.layout != torch.strided:
        return False
    if shards.is_sharded(param) and not shards.on_its_mesh(grad, param):
        return False
    for moment in form.moments:
        stored = state.get(MOMENT_KEYS[moment])
        if not isinstance(stored, Tensor) or stored.shape != shape or stored.layout != torch.strided:
            return False
        if not shards.are_alike(param, stored):
            return False
        if stored.dtype != (MOMENT_DTYPES.get(dtype) if form.dtypes is None else form.dtypes[moment]):
            return False
        if stored.dtype in block_codes.BY_DTYPE:
            scale = state.get(SCALE_KEYS[moment])
            if not _fits(scale, stored) or not shards.is_scale_of(scale, param):
                return False
    correction = state.get(CORRECTION_KEY)
    if "corrections" in form.keys:
        if not _is_correction(correction, param) or not shards.are_alike(param, correction):
            return False
    elif correction is not None:
        return False
    return (
        ("fast" in form.moments or FAST_KEY not in state)
        and all(isinstance(state.get(clock), Tensor) for clock in CLOCK_KEYS)
        and ("skipped" not in form.keys or isinstance(state.get(SKIPPED_KEY), Tensor))
    )


def _fits(scale: Any, codes: Tensor) -> bool:
    """Tell whether `scale` can be the scales of `codes`."""
    return (
        isinstance(scale, Tensor)
        and scale.layout == torch.strided
        and scale.dtype == torch.uint8
        and tuple(scale.shape) == block_codes.scale_shape(codes.shape)
    )


def _is_correction(correction: Any, param: Tensor) -> bool:
    """Tell whether `correction` can be that of `param`."""
    return (
        isinstance(correction, Tensor)
        and correction.layout == torch.strided
        and correction.dtype == CORRECTION_DTYPE
        and correction.shape == param.shape
    )


def prepare(state: dict[str, Any], param: Tensor, group: Mapping[str, Any]) -> None:
    """Add the entries that `state` lacks, and adapt moments whose parameter or storage has changed.

    With beta1 = 0 an earlier m1 is dropped, since it would be stale when beta1 is raised again.
    """
    adopted = adopt(state, param, group)
    state.clear()
    state.update(adopted)


@torch.inference_mode(False)  # tensors made in inference mode could never be updated outside of it
def adopt(entries: Mapping[str, Any], param: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """Bring the state of `param` from elsewhere (a checkpoint, another optimizer) into the form that it has here.

    Missing entries are added: clocks at zero, empty moments, corrections of zero. Tensors already in that form are
    taken as they are.
    """
    check_memory([[entry for entry in entries.values() if isinstance(entry, Tensor)]])
    _check_whole(entries)
    clock_device = param.device if group["capturable"] else "cpu"

    def clock(value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float32).to(clock_device)

    state: dict[str, Any] = {name: clock(entries.get(name, 0.0)) for name in CLOCK_KEYS}
    has_fast = group["betas"][0] > 0
    for moment, key in MOMENT_KEYS.items():
        if moment == "fast" and not has_fast:
            continue
        if key in entries:
            state.update(_adopt_moment(moment, entries[key], entries.get(SCALE_KEYS[moment]), param, group))
        else:
            state.update(empty_moment(moment, param, group))
    if has_fast and FAST_KEY not in entries and state[STEP_KEY] > 0:
        state[FAST_START] = state[STEP_KEY].clone()
    elif has_fast and FAST_START in entries:
        state[FAST_START] = clock(entries[FAST_START])
    if is_corrected(param, group):
        state[CORRECTION_KEY] = _adopt_correction(entries.get(CORRECTION_KEY), param, group)
    for key, value in entries.items():
        if key not in (*CLOCK_KEYS, FAST_START, CORRECTION_KEY, *MOMENT_KEYS.values(), *SCALE_KEYS.values()):
            state[key] = value.to(param.device) if isinstance(value, Tensor) else value
    if group["nonfinite"] == "skip" and SKIPPED_KEY not in state:
        state[SKIPPED_KEY] = torch.zeros((), dtype=torch.int64, device=param.device)
    return state


def missing_entry(entries: Mapping[str, Any]) -> str | None:
    """Return the moment that would begin empty under a clock that has run, or a clock at 0 for an existing moment.

    m1 may begin late, at any step.
    """
    if SQUARE_KEY not in entries and float(entries.get(STEP_KEY, 0)) > 0:
        return SQUARE_KEY
    if STEP_KEY not in entries and any(key in entries for key in MOMENT_KEYS.values()):
        return STEP_KEY
    if SLOW_KEY not in entries and float(entries.get(SLOW_STEP_KEY, 0)) > 0:
        return SLOW_KEY
    return SLOW_STEP_KEY if SLOW_STEP_KEY not in entries and SLOW_KEY in entries else None


def _check_whole(entries: Mapping[str, Any]) -> None:
    missing = missing_entry(entries)
    if missing is not None:
        raise ValueError(
            f"the state of a parameter has no {missing}, only {', '.join(map(str, entries))}: it is damaged, or was "
            "not written by AdEMAMix. Load or assign all of it, or nothing to start with an empty state."
        )


def refuse_bare_codes(entries: Mapping[str, Any], param: Tensor, group: Mapping[str, Any]) -> None:
    """Raise if a moment has codes in place of values: a loader has cast them to the dtype of what it loaded into.

    torch.distributed.checkpoint does so where the storage of the checkpoint, in `group`, is not that of the optimizer.
    """
    slow = entries.get(SLOW_KEY)
    if not isinstance(slow, Tensor) or group["state_storage"] != "compact" or not reduces(param, group):
        return
    part = shards.local(slow)
    if part.dtype in block_codes.BY_DTYPE:
        return
    if bool((part == part.round()).all()) and bool(part.any()):
        raise ValueError(
            "the checkpoint has compact moments, and they were loaded as numbers without their scales, since this "
            "optimizer has another storage. Load with torch.distributed.checkpoint.load(..., planner="
            "ademamix.pytorch.distributed_checkpoint.AnyStorage()) into a state_dict that is not flattened, or give "
            "the optimizer state_storage='compact'."
        )


def lacks_correction(entries: Mapping[str, Any], param: Tensor, group: Mapping[str, Any]) -> bool:
    """Tell whether a state that was loaded for `param` should have a correction, and has none."""
    return is_corrected(param, group) and SQUARE_KEY in entries and CORRECTION_KEY not in entries


def values_of(state: Mapping[str, Any], key: str) -> Tensor:
    """Return the values of the moment that `state` has under `key`, to compute with; a sharded one stays so."""
    stored, scale = state[key], state.get(f"{key}_scale")
    values = read_moment(shards.local(stored), None if scale is None else shards.local(scale))
    return shards.wrapped(values, stored)


def master_of(param: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """Return a copy of the value of `param` that a step would compute with, at least in fp32; sharded like it."""
    part = shards.local(param.detach())
    if is_corrected(param, group) and CORRECTION_KEY in state:
        return shards.wrapped(joined(part, shards.local(state[CORRECTION_KEY])), param)
    return shards.wrapped(part.to(torch.promote_types(param.dtype, torch.float32), copy=True), param)


def write_master(
    value: Tensor, param: Tensor, states: Mapping[Tensor, dict[str, Any]], group: Mapping[str, Any]
) -> None:
    """Give `param` this value: what bf16 cannot hold goes into its correction, if it is to have one."""
    part = shards.part_for(param, value.detach()).to(param.device)
    if is_corrected(param, group):
        prepare(states[param], param, group)
        part, correction = divided(part.to(torch.float32), random=None)
        shards.local(states[param][CORRECTION_KEY]).copy_(correction)
    shards.local(param).copy_(part)


def with_one_clock(state: Mapping[str, Any], group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `state` with an m1 that is corrected by `step`, for optimizers that have no other clock.

    A late m1 is scaled once, so that its corrected value is the same; one that has had no update stays empty.
    """
    if FAST_START not in state:
        return state
    fast, step, beta1 = values_of(state, FAST_KEY), float(state[STEP_KEY]), group["betas"][0]
    own_step = step - float(state[FAST_START])
    if own_step > 0 and beta1 > 0:
        fast = fast * (math.expm1(step * math.log(beta1)) / math.expm1(own_step * math.log(beta1)))
    dropped = (FAST_START, SCALE_KEYS["fast"])
    return {**{key: value for key, value in state.items() if key not in dropped}, FAST_KEY: fast}


def empty_moment(moment: str, param: Tensor, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the entries of a moment of zeros, without gaps in memory, sharded like its parameter.

    A plain one has the memory layout of its parameter. Codes are row-major: their blocks lie inside the rows.
    """
    return _wrapped(moment, param, *_zeros(moment, param, group))


def _zeros(moment: str, param: Tensor, group: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the local part of a moment of zeros, and that of its scales if it is coded."""
    dtype, part = dtype_of(moment, param, group), shards.local(param)
    scale = None
    if dtype in block_codes.BY_DTYPE:
        scale = torch.zeros(block_codes.scale_shape(part.shape), dtype=torch.uint8, device=part.device)
    return torch.zeros_like(part, dtype=dtype, memory_format=_layout(param, group)), scale


def _wrapped(moment: str, param: Tensor, stored: Tensor, scale: Tensor | None) -> dict[str, Tensor]:
    """Return the entries of a moment of `param`, of which these are the local parts."""
    entries = {MOMENT_KEYS[moment]: shards.wrapped(stored, param)}
    if scale is not None:
        entries[SCALE_KEYS[moment]] = shards.wrapped_scale(scale, param)
    return entries


def _adopt_moment(
    moment: str, value: Tensor, scale: Tensor | None, param: Tensor, group: Mapping[str, Any]
) -> dict[str, Tensor]:
    key, scale_key = MOMENT_KEYS[moment], SCALE_KEYS[moment]
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise TypeError(
            f"the state's {key} must be a dense tensor, got {_described(value)}: delete the parameter's entry from "
            "optimizer.state to start it afresh."
        )
    if value.shape != param.shape:
        raise ValueError(
            f"the state's {key} has shape {tuple(value.shape)} but its parameter has {tuple(param.shape)}: the "
            "state belongs to another model, its parameters are in another order, or the parameter was resized. After "
            "a resize, delete its entry from optimizer.state."
        )
    is_coded = value.dtype in block_codes.BY_DTYPE
    if is_coded and not _fits(scale, value):
        raise ValueError(
            f"the state's {key} is coded as {value.dtype}, which needs {scale_key} in torch.uint8 of shape "
            f"{block_codes.scale_shape(value.shape)}, got {_described(scale)}. The checkpoint is damaged or was not "
            "written by AdEMAMix."
        )
    dtype = dtype_of(moment, param, group)
    if dtype is None:
        return {key: value}  # a step would raise, saying why
    part, part_scale = _local_parts(value, scale if is_coded else None, param)
    if part.dtype == dtype and part.stride() == _stride(param, group):
        return _wrapped(moment, param, part, part_scale)
    values = read_moment(part, part_scale).to(MOMENT_DTYPES[param.dtype])
    stored, new_scale = _zeros(moment, param, group)
    write_moment(moment, stored, new_scale, values, words=None)
    return _wrapped(moment, param, stored, new_scale)


def _adopt_correction(correction: Any, param: Tensor, group: Mapping[str, Any]) -> Tensor:
    if correction is None:
        zeros = torch.zeros_like(shards.local(param), dtype=CORRECTION_DTYPE, memory_format=_layout(param, group))
        return shards.wrapped(zeros, param)
    if not _is_correction(correction, param):
        raise ValueError(
            f"the state's {CORRECTION_KEY} must be {CORRECTION_DTYPE} of shape {tuple(param.shape)}, as its parameter "
            f"has, got {_described(correction)}. The state belongs to another model, or was not written by AdEMAMix."
        )
    part = shards.part_for(param, correction).to(param.device)
    if part.stride() != _stride(param, group):
        part = torch.empty_like(shards.local(param), dtype=part.dtype, memory_format=_layout(param, group)).copy_(part)
    return shards.wrapped(part, param)


def _local_parts(value: Tensor, scale: Tensor | None, param: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the part of a whole moment that belongs to the local part of `param`, on its device, and its scales."""
    if scale is not None and not shards.keeps_blocks(param):  # the parts cannot have scales of their own
        value, scale = values_of({"codes": value, "codes_scale": scale}, "codes"), None
    part = shards.part_for(param, value).to(param.device)
    return part, None if scale is None else shards.part_for(param, scale, is_scale=True).to(param.device)


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{value.dtype} of shape {tuple(value.shape)} and layout {value.layout}"


def _stride(param: Tensor, group: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the strides that state of the shape of `param` has, or its local part."""
    return torch.empty_like(shards.local(param), device="meta", memory_format=_layout(param, group)).stride()


def _layout(param: Tensor, group: Mapping[str, Any]) -> torch.memory_format:
    return torch.contiguous_format if reduces(param, group) else torch.preserve_format
