"""Hand optimizers tensors that they cannot work with, thousands of them. `python fuzz_inputs.py FIRST COUNT`.

Each case is a function of its number, which is printed before the case begins: if the process dies, the last number is
the case to look at. Exceptions are fine; what must not happen is that the process ends.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from ademamix import AdEMAMix
from ademamix.pytorch.core import CORE_STORAGES

PATHS: list[dict[str, Any]] = [
    {},
    {"foreach": False, "fused": False},
    {"foreach": True},
    {"fused": True},
    {"fused": True, "capturable": True},
    {"foreach": True, "capturable": True},
]
DTYPES = [torch.float32] * 4 + [torch.bfloat16, torch.float16, torch.float64, torch.complex64]
OTHER_DTYPES = [*DTYPES, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.float8_e5m2]
SHAPES = [(), (1,), (0,), (7,), (3, 5), (64, 100), (80, 128), (2, 3, 4), (4, 3, 2, 2), (3, 0), (5000,), (1, 20_000)]


class Wrapper(torch.Tensor):
    """A tensor whose elements are in another one."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = tree_map_only(Wrapper, lambda x: x.inner, (args, kwargs or {}))
        result = tree_map_only(torch.Tensor, Wrapper, function(*unwrapped[0], **unwrapped[1]))
        return return_and_correct_aliasing(function, args, kwargs or {}, result)


class Subclass(torch.Tensor):
    """A tensor of another class that has its own memory."""


def faked(tensor: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(tensor.shape, dtype=tensor.dtype)


def resized(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


# What a tensor may be replaced by.
KINDS: list[Callable[[torch.Tensor, random.Random], Any]] = [
    lambda x, r: torch.ones(r.choice(SHAPES), dtype=x.dtype),
    lambda x, r: torch.ones(r.choice(SHAPES), dtype=r.choice(OTHER_DTYPES)),
    lambda x, r: torch.ones(x.shape, dtype=r.choice(OTHER_DTYPES)),
    lambda x, r: x.detach().clone().as_subclass(Subclass),
    lambda x, r: x.detach().to_sparse(),
    lambda x, r: x.detach().to_sparse_csr(),
    lambda x, r: x.detach().to_mkldnn() if x.is_floating_point() else x,  # torch corrupts memory with integers
    lambda x, r: torch.ones((), dtype=x.dtype).expand(x.shape),
    lambda x, r: torch.ones(*x.shape, 3, dtype=x.dtype)[..., 1],
    lambda x, r: torch.ones(x.shape[::-1], dtype=x.dtype).permute(*range(x.dim())[::-1]),
    lambda x, r: torch.ones(x.shape, dtype=torch.complex64).conj().imag,
    lambda x, r: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    lambda x, r: torch.full(x.shape, r.choice([float("nan"), float("inf"), -3e38, 1e-45]), dtype=x.dtype),
    lambda x, r: torch.randint(0, 2, x.shape).to(x.dtype) * r.choice([0.0, 1.0, 1e30]),
    lambda x, r: r.choice([None, 0.5, 3, "text", [1.0], {}, object()]),
    lambda x, r: x.detach().numpy(),
]
# The same, without memory.
HOLLOW: list[Callable[[torch.Tensor, random.Random], Any]] = [
    lambda x, r: torch.ones(x.shape, dtype=x.dtype, device="meta"),
    lambda x, r: faked(x),
    lambda x, r: Wrapper(x.detach().clone()),
    lambda x, r: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    lambda x, r: resized(x),
]
SETTINGS = {
    "betas": [(0.9, 0.999), (0.9, 0.999, 2.0), None, 0.9, ("a", "b", "c"), (0.0, 0.0, 0.0)],
    "lr": [float("nan"), -1.0, None, "fast", torch.ones(3), torch.tensor(1e-3), 1e300],
    "alpha": [None, "much", float("inf"), -3.0],
    "eps": [0.0, None, float("nan")],
    "alpha_warmup": [-1, None, 2.5, 10**30],
    "state_storage": [*CORE_STORAGES, "int4", None],
    "fused": [True, False, None],
    "foreach": [True, False, None],
    "nonfinite": ["skip", "propagate", "explode"],
    "capturable": [True, False],
    "rounding_seed": [-1, 2**70, None],
    "params": [[], None],
}


def optimizer_of(r: random.Random) -> AdEMAMix:
    dtype = r.choice(DTYPES)
    params = [torch.ones(r.choice(SHAPES), dtype=dtype) for _ in range(r.randint(1, 3))]
    if r.random() < 0.2 and params[0].dim() == 4:
        params[0] = params[0].contiguous(memory_format=torch.channels_last)
    return AdEMAMix(
        [torch.nn.Parameter(param) for param in params],
        betas=(r.choice([0.9, 0.0]), 0.999),
        total_steps=100,
        state_storage=r.choice(CORE_STORAGES),
        nonfinite=r.choice(["propagate", "skip"]),
        **r.choice(PATHS),
    )


def spoil(optimizer: AdEMAMix, r: random.Random, kinds: list[Callable[[torch.Tensor, random.Random], Any]]) -> None:
    """Do something to the parameters, gradients, state or settings that should not be done."""
    group = optimizer.param_groups[0]
    param = r.choice(group["params"])
    state = optimizer.state[param]
    match r.randint(0, 7):
        case 0:
            param.grad = r.choice(kinds)(param, r)
        case 1:
            param.grad.data = r.choice(kinds)(param, r)
        case 2:
            param.data = r.choice(kinds)(param, r)
        case 3 | 4:
            key = r.choice(list(state))
            state[key] = r.choice(kinds)(state[key], r)
        case 5:
            key = r.choice(list(state))
            state[key].data = r.choice(kinds)(state[key], r)
        case 6:
            state.pop(r.choice(list(state)))
        case 7:
            key = r.choice(list(SETTINGS))
            group[key] = r.choice(SETTINGS[key])
    if r.random() < 0.1 and len(group["params"]) > 1:  # what two tensors share
        other = group["params"][0]
        r.choice([param, param.grad, *state.values()]).data = r.choice([other, other.grad]).data


def use(optimizer: AdEMAMix, r: random.Random) -> None:
    """Do what is done with an optimizer."""
    match r.randint(0, 9):
        case 0:
            optimizer.diagnostics()
        case 1:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        case 2:
            optimizer.reset_slow()
        case 3:
            optimizer.to_adamw()  # whose own steps may end the process: torch does not check sizes
        case _:
            optimizer.step()


def case(number: int) -> None:
    r = random.Random(number)
    optimizer = optimizer_of(r)
    for param in optimizer.param_groups[0]["params"]:
        param.grad = torch.full_like(param, 0.5)
    if r.random() < 0.8:
        optimizer.step()
    if r.random() < 0.2:
        # Of a tensor that has lost its memory nothing but a step is asked: other operations of torch end the process.
        attempt(lambda: spoil(optimizer, r, HOLLOW))
        attempt(optimizer.step)
        return
    for _ in range(r.randint(1, 2)):
        attempt(lambda: spoil(optimizer, r, KINDS))
        attempt(lambda: use(optimizer, r))


def attempt(action: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):
        action()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    first, count = map(int, sys.argv[1:])
    for number in range(first, first + count):
        print(number, flush=True)
        case(number)
