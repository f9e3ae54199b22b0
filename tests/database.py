"""AdamW's entry of torch's own optimizer test database, as cases for AdEMAMix.

The database (`torch.testing._internal.common_optimizers`) comes with torch; the tests that torch runs over it
(TestOptimRenewed in its test_optim.py) do not, so their checks are written anew, mostly as equalities, in
test_torch_database.py and test_torch_database_state.py.
"""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.testing._internal import common_optimizers

from ademamix import AdEMAMix
from cases import make

OURS = copy.copy(next(info for info in common_optimizers.optim_db if info.optim_cls is torch.optim.AdamW))
OURS.optim_cls = AdEMAMix

# What the entry lists and AdEMAMix does not do: a word of the description, how it is refused, and the reason.
EXCLUDED_INPUTS = {
    "amsgrad": (ValueError, "amsgrad=True is not possible", "AdEMAMix has no maximum of second moments"),
}
# Error cases that are no error here: the description and the reason. `test_errors` shows that they work.
ACCEPTED_ERRORS = {
    "lr as Tensor doesn't work with foreach & not capturable": "a tensor lr works on every path",
    "betas must be either both floats or both Tensors": "betas become numbers: 1 - beta is computed in double",
    r"betas\[0\] as a Tensor is not supported for capturable=False and foreach=True": "likewise",
}
# Error cases of the same exception type whose message names the argument and the value in our words.
OUR_WORDS = {
    "beta1 should be between 0 and 1": r"beta1 must be a number in \[0, 1\), got 1.0",
    "weight_decay should > 0": "weight_decay must be a finite number >= 0, got -1",
}
# Checks of TestOptimRenewed with nothing to run on here: several devices, peak memory and 64-bit indices on CUDA, the
# eps of 0.1 that fp16 needs there (moments are fp32 here), and sparse gradients (the entry has supports_sparse=False).

# AdamW has capturable inputs on CUDA alone, a tensor lr on MPS and no foreach on CPU; here all of it runs on CPU.
with (
    mock.patch.object(common_optimizers, "CUDA_CONFIG_GPUS", ["cpu", "mps"]),
    mock.patch.object(common_optimizers, "_get_foreach_kernels_supported_devices", return_value=["mps"]),
):
    BASE_INPUTS = OURS.optim_inputs_func("mps")
    LISTED = [
        *BASE_INPUTS,  # no path stated: the optimizer's own choice
        *common_optimizers._get_optim_inputs_including_global_cliquey_kwargs("mps", torch.float32, OURS),
    ]
    ERRORS = OURS.optim_error_inputs_func("cpu", torch.float32)
OFFICIAL_ON_CPU = common_optimizers._get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, OURS)


def _is_excluded(entry):
    return any(word in entry.desc for word in EXCLUDED_INPUTS)


def _label(entry):
    return entry.desc + ("" if "fused" in entry.kwargs else " & own choice")


INPUTS = [pytest.param(entry.kwargs, id=_label(entry)) for entry in LISTED if not _is_excluded(entry)]
EXCLUDED = [pytest.param(entry, id=_label(entry)) for entry in LISTED if _is_excluded(entry)]
BASES = [pytest.param(entry.kwargs, id=entry.desc) for entry in BASE_INPUTS if not _is_excluded(entry)]

every_input = pytest.mark.parametrize("kwargs", INPUTS)
every_base = pytest.mark.parametrize("kwargs", BASES)


def build(params, kwargs, **more):
    return make(params, **{**copy.deepcopy(kwargs), **more})


def parameters(kwargs, *tensors):
    """Parameters for an optimizer with these arguments; one that is differentiable cannot update leaves in place."""
    return [tensor.detach().clone().requires_grad_(not kwargs.get("differentiable", False)) for tensor in tensors]


def random_like(shape, dtype, generator):
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide, generator=generator).to(dtype)


def params_of(*shapes, dtype=torch.float32):
    """Parameters of given shapes, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(random_like(shape, dtype, generator)) for shape in shapes]


def set_gradients(params, seed):
    """Gradients with a mean, so that the averages over them do not cancel out."""
    mean, noise = torch.Generator().manual_seed(1000), torch.Generator().manual_seed(seed)
    for param in params:
        param.grad = random_like(param.shape, param.dtype, mean) + 0.3 * random_like(param.shape, param.dtype, noise)


def run(params, optimizer, steps=range(5)):
    for seed in steps:
        set_gradients(params, seed)
        optimizer.step()


def model(dtype=torch.float32):
    """Weight, bias and the loss over them that TestOptimRenewed uses."""
    generator = torch.Generator().manual_seed(0)
    weight, bias, data = (random_like(shape, dtype, generator) for shape in ((10, 5), (10,), (5,)))
    return weight, bias, lambda weight, bias: (weight.mv(data) + bias).pow(2).sum()


def closure_for(params, loss):
    """A closure that also serves parameters that are not leaves, or do not require a gradient."""

    def closure():
        leaves = [param.detach().requires_grad_() for param in params]
        value = loss(*leaves)
        for param, grad in zip(params, torch.autograd.grad(value, leaves), strict=True):
            param.grad = grad
        return value.detach()

    return closure


def assert_same(left, right):
    """Equal to the bit, in type and in dtype, through dicts and lists; keys may stand in another order."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, Tensor):
        assert_close(left.detach(), right.detach(), rtol=0, atol=0, equal_nan=True)
    else:
        assert left == right


def difference(actual, expected):
    """Norm of the difference over the norm of what is expected."""
    assert actual.dtype == expected.dtype
    wide = torch.complex128 if expected.is_complex() else torch.float64
    actual, expected = actual.detach().to(wide), expected.detach().to(wide)
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-30))
