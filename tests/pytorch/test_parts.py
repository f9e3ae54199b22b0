"""Parts of a parameter take the steps of the whole: the same random words, blocks and codes, bit for bit."""

import pytest
import torch

from ademamix import formats
from ademamix.pytorch.coefficients import Settings
from ademamix.pytorch.parameter_state import adopt, form_of
from ademamix.pytorch.rounding import Rounding
from ademamix.pytorch.step import Flags, ademamix_step
from ademamix.pytorch.tensors import Place, Tensors
from cases import FUSED_REDUCED, PATHS, STORAGES, on_paths

SETTINGS = Settings(0.1, (0.9, 0.99, 0.999), 5.0, 0, 0, 0.9, 1e-8, 0.01)

# The shape of a parameter, where a part begins and ends in each dimension, and the storages that it may have: where a
# block is cut, the moments are not coded.
CUTS = [
    ((64, 300), [(0, 16), (0, 300)], STORAGES),
    ((64, 300), [(3, 20), (128, 300)], STORAGES),
    ((64, 300), [(0, 64), (128, 256)], STORAGES),
    ((64, 300), [(5, 5), (0, 300)], STORAGES),
    ((64, 300), [(0, 64), (300, 300)], STORAGES),
    ((64, 300), [(5, 20), (37, 211)], ("fp32",)),
    ((1000,), [(512, 1000)], STORAGES),
    ((1000,), [(13, 600)], ("fp32",)),
    ((6, 4, 64), [(2, 5), (2, 4), (0, 64)], STORAGES),
    ((6, 7, 8), [(1, 5), (0, 7), (2, 5)], ("fp32",)),
    ((6, 7, 8), [(1, 5), (2, 5), (2, 5)], ("fp32",)),
    ((5, 4, 6, 8), [(1, 5), (1, 4), (2, 3), (2, 5)], ("fp32",)),
]


def stepped(tensors, place, storage, path, monkeypatch):
    """Return a parameter and its state after two steps with the gradients that follow it in `tensors`."""
    monkeypatch.setattr(formats, "is_large", lambda shape: True)
    group = {"state_storage": storage, "betas": (0.9,), "capturable": False, "nonfinite": "skip", "master": None}
    param, *grads = tensors
    state = adopt({}, param, group)
    keys = form_of(None if storage == "fp32" else storage, has_fast=True, skips=True).keys
    columns = {column: [state[key]] for column, key in keys.items()}
    for grad in grads:
        all_tensors = Tensors.none()._replace(places=[place], params=[param], grads=[grad], **columns)
        ademamix_step(all_tensors, SETTINGS, Rounding(5, True), Flags(**PATHS[path]))
    return {"param": param, **state}


@pytest.mark.parametrize("path", ["single", "foreach", "fused", "fused-capturable"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "cut", "storages"), CUTS, ids=str)
def test_parts_take_the_steps_of_the_whole(shape, cut, storages, dtype, path, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    window = tuple(slice(*bounds) for bounds in cut)
    place = Place(3, tuple(start for start, _ in cut), shape)
    for _, storage in on_paths([path], storages):
        parts = [tensor[window].clone(memory_format=torch.contiguous_format) for tensor in tensors]
        part = stepped(parts, place, storage, path, monkeypatch)
        whole = stepped([tensor.clone() for tensor in tensors], Place(3), storage, path, monkeypatch)
        for key in ("param", "exp_avg", "exp_avg_slow", "exp_avg_sq"):
            assert torch.equal(part[key], whole[key][window]), (storage, key)
        assert part["step"] == whole["step"] == 2


def test_a_vector_is_decoded_piece_by_piece(monkeypatch):
    """What a step takes beyond the state is bounded: pieces of a long vector have the codes that it has as a whole."""
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(1000, generator=generator) for _ in range(3)]
    whole = stepped([tensor.clone() for tensor in tensors], Place(3), "compact", "single", monkeypatch)
    monkeypatch.setattr("ademamix.pytorch.step.DECODED_ELEMENTS", 256)
    pieces = stepped([tensor.clone() for tensor in tensors], Place(3), "compact", "single", monkeypatch)
    assert all(torch.equal(whole[key], pieces[key]) for key in whole)


@pytest.mark.parametrize("storage", FUSED_REDUCED)
def test_elements_are_numbered_beyond_32_bits(storage, monkeypatch):
    """A row of 300 begins 196 elements before number 2^32, which is therefore passed inside a block."""
    row = 2**32 // 300
    place = Place(3, (row, 0), (row + 8, 300))
    generator = torch.Generator().manual_seed(1)
    tensors = [torch.randn(4, 300, generator=generator).bfloat16() for _ in range(3)]
    alone, fused = (
        stepped([t.clone() for t in tensors], place, storage, path, monkeypatch) for path in ("single", "fused")
    )
    for name, tensor in alone.items():
        assert torch.equal(tensor, fused[name]), name
