"""What is stored for a parameter, and in which format: the only place that knows the formats.

The paths read moments into the dtype that they are computed in, update them, and write them back:

========  ==================  ===============  ==================  ==================
storage   ``exp_avg_slow``    ``exp_avg``      ``exp_avg_sq``      bytes a parameter
========  ==================  ===============  ==================  ==================
fp32      fp32                fp32             fp32                12
bf16      bf16                bf16             bf16                6
compact   int16 codes         int8 codes       uint8 codes         4.02 with scales
========  ==================  ===============  ==================  ==================

The coded ones have a uint8 tensor ``<name>_scale`` beside them, see :mod:`ademamix.pytorch.block_codes`. bf16 and codes
are rounded stochastically: a slow EMA moves by 1e-4 of a gradient a step, which rounding to nearest loses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ademamix.pytorch import block_codes
from ademamix.pytorch.core import ELEMENT_TYPES, check_memory, core, reader
from ademamix.pytorch.memory_order import PLAIN_TYPES, has_memory
from ademamix.pytorch.rounding import second_words, to_bf16

MOMENTS = ("exp_avg", "exp_avg_slow", "exp_avg_sq")
SCALES = tuple(f"{moment}_scale" for moment in MOMENTS)
CLOCKS = ("step", "slow_step")
FAST_START = "fast_start"  # the step that m1 was empty at, if that is not 0: beta1 was 0 until then

# The dtypes that parameters are computed in, and that their moments have unless they are reduced.
MOMENT_DTYPES = {
    torch.float32: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.complex64,
    torch.complex128: torch.complex128,
}
REDUCED_DTYPES = {
    "bf16": dict.fromkeys(MOMENTS, torch.bfloat16),
    "compact": {
        "exp_avg": block_codes.FAST.dtype,
        "exp_avg_slow": block_codes.SLOW.dtype,
        "exp_avg_sq": block_codes.SQUARE.dtype,
    },
}
# What is smaller than this has no memory to save, and is where precision matters most: biases, norms, small heads.
LEAST_ROW, LEAST_SIZE = 64, 4096


def reduces(param: Tensor, group: Mapping[str, Any]) -> bool:
    """Tell whether the moments of `param` are to be stored in fewer bits than they are computed in."""
    return (
        group["state_storage"] != "fp32"
        and MOMENT_DTYPES.get(param.dtype) == torch.float32
        and param.dim() > 1
        and param.numel() >= max(LEAST_SIZE, LEAST_ROW * param.shape[0])
    )


def dtype_of(moment: str, param: Tensor, group: Mapping[str, Any]) -> torch.dtype | None:
    """Return the dtype that `moment` is stored in; None if AdEMAMix cannot train `param`."""
    if reduces(param, group):
        return REDUCED_DTYPES[group["state_storage"]][moment]
    return MOMENT_DTYPES.get(param.dtype)


def is_reduced(stored: Tensor) -> bool:
    """Tell whether a stored moment has to be read and written, and cannot be computed with as it is."""
    return stored.dtype == torch.bfloat16 or stored.dtype in block_codes.BY_DTYPE


def arithmetic_dtype(stored: Tensor) -> torch.dtype:
    """Return the dtype that a real stored moment is computed in."""
    return torch.float64 if stored.dtype == torch.float64 else torch.float32


def values_of(state: Mapping[str, Any], moment: str) -> Tensor:
    """Return the values of a moment in the state of a parameter, to compute with."""
    return _read_moment(state[moment], state.get(f"{moment}_scale"))


def read(stored: Sequence[Tensor], scales: Sequence[Tensor]) -> list[Tensor]:
    """Return the values of stored moments to compute with: the tensors themselves if that is possible."""
    return [_read_moment(tensor, scales[i] if scales else None) for i, tensor in enumerate(stored)]


def write(stored: Sequence[Tensor], scales: Sequence[Tensor], values: Sequence[Tensor], words: Tensor) -> None:
    """Write the values of a parameter's moments (m1 if there is one, m2, nu) back into what is stored, in place.

    `words` has 32 random bits for each element, as (rows, row size).
    """
    for i, moment in enumerate(MOMENTS[-len(stored) :]):
        _write_moment(moment, stored[i], scales[i] if scales else None, values[i], words)


def _read_moment(stored: Tensor, scale: Tensor | None) -> Tensor:
    if scale is not None:
        return block_codes.decode(stored, scale)
    return stored.to(torch.float32) if stored.dtype == torch.bfloat16 else stored


def _write_moment(moment: str, stored: Tensor, scale: Tensor | None, values: Tensor, words: Tensor | None) -> None:
    """Write `values`, rounded by random `words`, or to nearest if there are none."""
    if scale is not None:
        random = None if words is None else _random_of_code(moment, words)
        codes, new_scale = block_codes.encode(values, block_codes.BY_DTYPE[stored.dtype], random)
        stored.copy_(codes)
        scale.copy_(new_scale)
    elif stored.dtype == torch.bfloat16 and words is not None:
        stored.copy_(to_bf16(values, _random_of_bf16(moment, words).view(values.shape)))
    else:
        stored.copy_(values)


def _random_of_code(moment: str, words: Tensor) -> Tensor:
    """Take the random bits of a moment from a word that serves all three of them."""
    if moment == "exp_avg_slow":
        bits = words >> 21
    elif moment == "exp_avg":
        bits = (words & 0x7FE00) | 0x100
    else:
        bits = ((words << 10) & 0x7FC00) | 0x200
    return bits.to(torch.int32)


def _random_of_bf16(moment: str, words: Tensor) -> Tensor:
    if moment == "exp_avg_slow":
        bits = words >> 16
    elif moment == "exp_avg":
        bits = words & 0xFFFF
    else:
        bits = second_words(words) >> 16
    return bits


def completed(grad: Tensor) -> Tensor:
    """Return a gradient as numbers in memory: what is to be waited for, negated or filled with zeros yet, is that."""
    if type(grad) not in PLAIN_TYPES and hasattr(grad, "trigger_wait"):
        waited_for: Tensor = grad.trigger_wait()  # of an asynchronous collective
        grad = waited_for
    if grad._is_zerotensor():
        grad = grad.clone()
    return grad.resolve_conj().resolve_neg()


def check(param: Tensor, grad: Tensor, *, differentiable: bool) -> None:
    """Raise if AdEMAMix cannot train `param` with `grad`, saying what to do."""
    if param.dtype not in MOMENT_DTYPES:
        raise TypeError(
            f"AdEMAMix does not train parameters of dtype {param.dtype}, only "
            f"{', '.join(str(dtype).removeprefix('torch.') for dtype in MOMENT_DTYPES)}. Keep a copy of the parameter "
            "in one of these and train that."
        )
    if param.device.type == "meta":
        raise RuntimeError(
            "AdEMAMix was given a parameter on the meta device, which has no data. Materialise the model first, for "
            "example with model.to_empty(device=...) and its initialisation."
        )
    if param.numel() > 1 and _overlaps(param):
        raise RuntimeError(
            f"AdEMAMix was given a parameter whose elements share memory (shape {tuple(param.shape)}, strides "
            f"{param.stride()}), so that an update in place is not defined. Pass a parameter of its own memory, for "
            "example torch.nn.Parameter(tensor.contiguous())."
        )
    if differentiable and param.is_leaf and param.requires_grad:
        raise RuntimeError(
            "differentiable=True updates parameters under autograd, which cannot be done to a leaf that requires "
            "grad. Pass clones of the leaves as parameters, and set their gradients with create_graph=True."
        )
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"AdEMAMix does not take sparse gradients, got layout {grad.layout}. Use sparse=False in the embedding "
            "that makes them, or optimize that embedding with torch.optim.SparseAdam."
        )
    if has_memory(param) and not has_memory(grad):
        raise RuntimeError(
            f"AdEMAMix cannot use a gradient of type {type(grad).__name__} for a plain parameter. Give both the same "
            "type, or give the parameter the gradient's local tensor."
        )
    if grad.dtype not in MOMENT_DTYPES or grad.is_complex() != param.is_complex() or grad.shape != param.shape:
        raise RuntimeError(
            f"AdEMAMix cannot use a gradient of dtype {grad.dtype} and shape {tuple(grad.shape)} for a parameter of "
            f"dtype {param.dtype} and shape {tuple(param.shape)}. Give it one of the same shape and of a dtype of the "
            "same kind, real or complex floating point."
        )


class Form(NamedTuple):
    """What the state of a parameter is to look like."""

    moments: Sequence[str]
    dtypes: Mapping[str, torch.dtype] | None  # of reduced moments
    skips: bool
    layout: Any  # the same for the core; None without it

    def fits(self, state: Mapping[str, Any], param: Tensor, grad: Tensor) -> bool:
        """Tell, at once, whether `state` and `grad` can be stepped with as they are. False may be a false alarm."""
        return self.layout is not None and self.layout.fits(state, param, grad, reader)


@cache
def form_of(state_storage: str | None, *, has_fast: bool, skips: bool) -> Form:
    """Return the form that the state has in a storage, or in full if that is None."""
    moments = MOMENTS if has_fast else MOMENTS[1:]
    dtypes = None if state_storage is None else REDUCED_DTYPES[state_storage]
    layout = None
    if core is not None:
        types = [ELEMENT_TYPES[dtypes[moment]] for moment in moments] if dtypes else []
        scales = [f"{moment}_scale" for moment in moments] if state_storage == "compact" else []
        counts = ["skipped"] if skips else []
        layout = core.StateLayout(list(moments), types, scales, list(CLOCKS), counts, None if has_fast else "exp_avg")
    return Form(moments, dtypes, skips, layout)


def is_ready(state: Mapping[str, Any], param: Tensor, grad: Tensor, form: Form) -> bool:
    """Tell whether a step of `param` needs nothing from :func:`prepare`. False may be a false alarm."""
    dtype, shape = param.dtype, param.shape
    if grad.dtype != dtype or grad.shape != shape or not param.is_contiguous() or grad.layout != torch.strided:
        return False
    for moment in form.moments:
        stored = state.get(moment)
        if not isinstance(stored, Tensor) or stored.shape != shape or stored.layout != torch.strided:
            return False
        if stored.dtype != (MOMENT_DTYPES.get(dtype) if form.dtypes is None else form.dtypes[moment]):
            return False
        if stored.dtype in block_codes.BY_DTYPE and not _fits(state.get(f"{moment}_scale"), stored):
            return False
    return (
        ("exp_avg" in form.moments or "exp_avg" not in state)
        and all(isinstance(state.get(clock), Tensor) for clock in CLOCKS)
        and (not form.skips or isinstance(state.get("skipped"), Tensor))
    )


def _fits(scale: Any, codes: Tensor) -> bool:
    """Tell whether `scale` can be the scales of `codes`."""
    return (
        isinstance(scale, Tensor)
        and scale.layout == torch.strided
        and scale.dtype == torch.uint8
        and tuple(scale.shape) == block_codes.scale_shape(codes.shape)
    )


def prepare(state: dict[str, Any], param: Tensor, group: Mapping[str, Any]) -> None:
    """Put into `state` what is not there yet, and adapt moments whose parameter or storage has changed.

    With beta1 = 0 an m1 of before is dropped, since it would be stale when beta1 is raised again.
    """
    adopted = adopt(state, param, group)
    state.clear()
    state.update(adopted)


@torch.inference_mode(False)  # tensors made in inference mode could never be updated outside of it
def adopt(entries: Mapping[str, Any], param: Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """Bring the state of `param` from elsewhere (a checkpoint, another optimizer) into the form that it has here.

    What is missing is added: clocks at zero, empty moments. Tensors that have the form already are taken as they are.
    """
    check_memory([[entry for entry in entries.values() if isinstance(entry, Tensor)]])
    _check_whole(entries)
    clock_device = param.device if group["capturable"] else "cpu"

    def clock(value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float32).to(clock_device)

    state: dict[str, Any] = {name: clock(entries.get(name, 0.0)) for name in CLOCKS}
    has_fast = group["betas"][0] > 0
    for moment, scale in zip(MOMENTS, SCALES, strict=True):
        if moment == "exp_avg" and not has_fast:
            continue
        if moment in entries:
            state.update(_adopt_moment(moment, entries[moment], entries.get(scale), param, group))
        else:
            state.update(empty_moment(moment, param, group))
    if has_fast and "exp_avg" not in entries and state["step"] > 0:
        state[FAST_START] = state["step"].clone()
    elif has_fast and FAST_START in entries:
        state[FAST_START] = clock(entries[FAST_START])
    for key, value in entries.items():
        if key not in (*CLOCKS, FAST_START, *MOMENTS, *SCALES):
            state[key] = value.to(param.device) if isinstance(value, Tensor) else value
    if group["nonfinite"] == "skip" and "skipped" not in state:
        state["skipped"] = torch.zeros((), dtype=torch.int64, device=param.device)
    return state


def _check_whole(entries: Mapping[str, Any]) -> None:
    """Raise if a moment would begin empty under a clock that has run, or a clock at 0 for a moment that is there."""
    missing = None
    if "exp_avg_sq" not in entries and float(entries.get("step", 0)) > 0:
        missing = "exp_avg_sq"
    elif "step" not in entries and any(moment in entries for moment in MOMENTS):
        missing = "step"
    elif "slow_step" not in entries and "exp_avg_slow" in entries:
        missing = "slow_step"
    if missing is not None:
        raise ValueError(
            f"the state of a parameter has no {missing}, only {', '.join(map(str, entries))}: it is damaged, or was "
            "not written by AdEMAMix. Load or assign all of it, or nothing to start with an empty state."
        )


def with_one_clock(state: Mapping[str, Any], group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `state` with an m1 that is corrected by `step`, for optimizers that have no other clock.

    A late m1 is scaled once, so that its corrected value is the same; one that has had no update stays empty.
    """
    if FAST_START not in state:
        return state
    fast, step, beta1 = values_of(state, "exp_avg"), float(state["step"]), group["betas"][0]
    own_step = step - float(state[FAST_START])
    if own_step > 0 and beta1 > 0:
        fast = fast * (math.expm1(step * math.log(beta1)) / math.expm1(own_step * math.log(beta1)))
    dropped = (FAST_START, "exp_avg_scale")
    return {**{key: value for key, value in state.items() if key not in dropped}, "exp_avg": fast}


def empty_moment(moment: str, param: Tensor, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the entries of a moment of zeros, without gaps in memory.

    A plain one has the memory layout of its parameter. Codes are row-major: their blocks lie inside of the rows.
    """
    dtype = dtype_of(moment, param, group)
    entries = {moment: torch.zeros_like(param, dtype=dtype, memory_format=_layout(param, group))}
    if dtype in block_codes.BY_DTYPE:
        shape = block_codes.scale_shape(param.shape)
        entries[f"{moment}_scale"] = torch.zeros(shape, dtype=torch.uint8, device=param.device)
    return entries


def _adopt_moment(
    moment: str, value: Tensor, scale: Tensor | None, param: Tensor, group: Mapping[str, Any]
) -> dict[str, Tensor]:
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        raise TypeError(
            f"the state's {moment} must be a dense tensor, got {_described(value)}: delete the parameter's entry from "
            "optimizer.state to begin it anew."
        )
    if value.shape != param.shape:
        raise ValueError(
            f"the state's {moment} has shape {tuple(value.shape)} but its parameter has {tuple(param.shape)}: the "
            "state belongs to another model, its parameters are in another order, or the parameter was resized. After "
            "a resize, delete its entry from optimizer.state."
        )
    is_coded = value.dtype in block_codes.BY_DTYPE
    if is_coded and not _fits(scale, value):
        raise ValueError(
            f"the state's {moment} is coded as {value.dtype}, which needs {moment}_scale in torch.uint8 of shape "
            f"{block_codes.scale_shape(value.shape)}, got {_described(scale)}. The checkpoint is damaged or was not "
            "written by AdEMAMix."
        )
    dtype = dtype_of(moment, param, group)
    if dtype is None:
        return {moment: value}  # a step would raise, saying why
    value = value.to(param.device)
    scale = scale.to(param.device) if is_coded and scale is not None else None
    stride = torch.empty_like(param, device="meta", memory_format=_layout(param, group)).stride()
    if value.dtype == dtype and value.stride() == stride:
        return {moment: value} if scale is None else {moment: value, f"{moment}_scale": scale}
    entries = empty_moment(moment, param, group)
    values = _read_moment(value, scale).to(MOMENT_DTYPES[param.dtype])
    _write_moment(moment, entries[moment], entries.get(f"{moment}_scale"), values, words=None)
    return entries


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{value.dtype} of shape {tuple(value.shape)} and layout {value.layout}"


def _layout(param: Tensor, group: Mapping[str, Any]) -> torch.memory_format:
    return torch.contiguous_format if reduces(param, group) else torch.preserve_format


def _overlaps(tensor: Tensor) -> bool:
    extent = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= extent:
                return True
            extent += stride * (size - 1)
    return False
