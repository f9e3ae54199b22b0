"""Megatron-Core's distributed optimizer, with the state of AdEMAMix in its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

from ademamix.pytorch.optimizer import AdEMAMix
from ademamix.pytorch.parameter_state import prepare, values_of
from ademamix.pytorch.storage import write_moment
from ademamix.state_keys import CLOCK_KEYS, FAST_START, MOMENT_KEYS, SCALE_KEYS

CLOCKS = (*CLOCK_KEYS, FAST_START)


class DistributedAdEMAMix(DistributedOptimizer):  # type: ignore[misc]
    """The distributed optimizer with the state of AdEMAMix in its checkpoints.

    Moments are fp32 there, whatever their storage, and the clocks are in the groups.
    """

    # What Megatron is told that each moment is called: its own name, but where `_seen_as_adam` needs Adam's.
    _names: Mapping[str, str] = MappingProxyType({key: key for key in MOMENT_KEYS.values()})

    def state_dict(self) -> dict[str, Any]:
        """Return what is not cut into slices: the settings of the groups, with the clocks, and the gradient scaler."""
        init_state(self.optimizer)
        groups = self.optimizer.state_dict()["param_groups"]
        clocks = _clocks_of(self.optimizer)
        for group in groups:
            del group["params"]
            group.update(clocks)
        scaler = {"grad_scaler": self.grad_scaler.state_dict()} if self.grad_scaler else {}
        return {"optimizer": {"param_groups": groups}, **scaler}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned, and the slices if they are with it."""
        init_state(self.optimizer)  # or Megatron would give it the state of Adam
        super().load_state_dict(state_dict)
        saved = state_dict["optimizer"]["param_groups"][0]
        clocks = {name: saved[name] for name in CLOCKS if name in saved}
        for group in self.optimizer.param_groups:
            for name in clocks:
                group.pop(name, None)
        for state in self.optimizer.state.values():  # Megatron has put one and the same `step` into all of them
            state.update({name: torch.tensor(value) for name, value in clocks.items()})

    def get_parameter_state_dp_zero(self, *args: Any, **kwargs: Any) -> dict[Any, Any] | None:
        """Gather the slices of all processes, once for each average, since Megatron's own method knows one."""
        whole: dict[Any, Any] | None = None
        for key in self._averages():
            with self._seen_as_adam(key):
                part = super().get_parameter_state_dp_zero(*args, **kwargs)
            if part is None:  # this process only sends
                continue
            for tensors in _buffers_in(part):
                tensors[key] = tensors.pop("exp_avg")
            if whole is None:
                whole = part
            for tensors, more in zip(_buffers_in(whole), _buffers_in(part), strict=True):
                tensors.update(more)
        return whole

    def load_parameter_state_from_dp_zero(
        self, state_dict: dict[Any, Any] | None, *, update_legacy_format: bool = False
    ) -> None:
        """Give each process its slices of what :meth:`get_parameter_state_dp_zero` returned."""
        if update_legacy_format:
            raise ValueError("Megatron's format of before February 2024 has no place for AdEMAMix: do not convert")
        for key in self._averages():
            with self._seen_as_adam(key):
                super().load_parameter_state_from_dp_zero(state_dict and _seen_in(state_dict, key))

    def _get_main_param_and_optimizer_states(self, model_param: Tensor) -> dict[str, Tensor]:
        param, state = self._main_param_and_state(model_param)
        return {"param": param, **{name: values_of(state, key) for key, name in self._names.items() if key in state}}

    @torch.no_grad()
    def _set_main_param_and_optimizer_states(self, model_param: Tensor, tensors: Mapping[str, Tensor]) -> None:
        param, state = self._main_param_and_state(model_param)
        param.copy_(tensors["param"])
        for moment, key in MOMENT_KEYS.items():
            if key in state and key in self._names:
                values = tensors[self._names[key]].to(param.device, torch.float32)
                write_moment(moment, state[key], state.get(SCALE_KEYS[moment]), values, words=None)

    def _main_param_and_state(self, model_param: Tensor) -> tuple[Tensor, dict[str, Any]]:
        group, position = self.model_param_group_index_map[model_param]
        param = self.optimizer.param_groups[group]["params"][position]
        return param, self.optimizer.state[param]

    def _averages(self) -> list[str]:
        """Return the keys of m1, unless beta1 is 0, and of m2."""
        keys = [MOMENT_KEYS["fast"], MOMENT_KEYS["slow"]]
        return keys if self.optimizer.param_groups[0]["betas"][0] > 0 else keys[1:]

    @contextmanager
    def _seen_as_adam(self, average: str) -> Iterator[None]:
        """Show one of the averages as Adam's, to methods that name the moments of Adam."""
        self._names = {average: "exp_avg", "exp_avg_sq": "exp_avg_sq"}
        try:
            yield
        finally:
            del self._names


def init_state(optimizer: AdEMAMix, config: Any = None) -> None:
    """Give every parameter its state, empty and with clocks at 0, as Megatron's ``init_state_fn``."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if not optimizer.state[param]:
                prepare(optimizer.state[param], param, group)


def _clocks_of(optimizer: AdEMAMix) -> dict[str, float]:
    """Return the clocks that all slices of this process share."""
    clocks = [{name: float(state[name]) for name in CLOCKS if name in state} for state in optimizer.state.values()]
    if any(own != clocks[0] for own in clocks):
        raise ValueError(
            "parameters have taken different numbers of steps, and Megatron's checkpoints have one clock for all: "
            "give all of them a gradient in every step, or build the optimizer without those that have none"
        )
    return clocks[0] if clocks else dict.fromkeys(CLOCK_KEYS, 0.0)


def _buffers_in(state: Mapping[Any, Any]) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each of Megatron's buffers, which are in a dict by number and dtype."""
    for key, by_dtype in state.items():
        if isinstance(key, int):
            yield from by_dtype.values()


def _seen_in(state: Mapping[Any, Any], average: str) -> dict[Any, Any]:
    """Return the tensors of all buffers with one of the averages in the place of Adam's."""
    return {
        key: {dtype: {**tensors, "exp_avg": tensors[average]} for dtype, tensors in by_dtype.items()}
        if isinstance(key, int)
        else by_dtype
        for key, by_dtype in state.items()
    }
