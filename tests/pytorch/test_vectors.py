"""Long tensors of one dimension, which are slices of many parameters rather than biases, are coded as one row."""

import pytest
import torch

from ademamix.formats import BLOCK, LEAST_VECTOR
from cases import PATHS, make

SIZE = LEAST_VECTOR + 100  # the last block is shorter


def stepped(shape, steps=2, **settings):
    generator = torch.Generator().manual_seed(1)
    param = torch.randn(SIZE, generator=generator).view(shape).requires_grad_()
    optimizer = make([param], lr=1e-2, **settings)
    for _ in range(steps):
        param.grad = torch.randn(SIZE, generator=generator).view(shape)
        optimizer.step()
    return param, optimizer


@pytest.mark.parametrize("path", ["single", "foreach", "fused"])
@pytest.mark.parametrize("state_storage", ["bf16", "compact"])
def test_a_vector_is_coded_like_a_row(path, state_storage):
    settings = {"state_storage": state_storage, **PATHS[path]}
    (vector, own), (row, others) = stepped((SIZE,), **settings), stepped((1, SIZE), **settings)
    assert torch.equal(vector, row.view(-1))
    for key, value in others.state[row].items():
        assert torch.equal(own.state[vector][key], value.view(-1) if value.shape == row.shape else value)
    assert own.state[vector]["exp_avg_slow"].dtype in (torch.bfloat16, torch.int16)


@pytest.mark.parametrize(("size", "is_coded"), [(LEAST_VECTOR, True), (LEAST_VECTOR - 1, False)])
def test_shorter_vectors_stay_fp32(size, is_coded):
    param = torch.zeros(size, requires_grad=True)
    optimizer = make([param], state_storage="compact")
    param.grad = torch.ones(size)
    optimizer.step()
    found = optimizer.diagnostics()[0]
    scales = 3 * size // BLOCK
    expected = (4 * size + scales, 0) if is_coded else (0, 12 * size)
    assert (found["reduced_bytes"], found["full_bytes"]) == expected


def test_a_compact_checkpoint_with_vectors_in_fp32_loads():
    """Earlier versions coded no vector. The values continue in codes, rounded once."""
    _, exact = stepped((SIZE,), state_storage="fp32")
    saved = exact.state_dict()
    saved["param_groups"][0]["state_storage"] = "compact"
    vector, optimizer = stepped((SIZE,), steps=0)
    optimizer.load_state_dict(saved)
    state = optimizer.state[vector]
    assert state["exp_avg_slow"].dtype == torch.int16
    assert state["exp_avg_slow_scale"].shape == (1, -(-SIZE // BLOCK))
    assert state["step"] == 2
    vector.grad = torch.ones(SIZE)
    optimizer.step()
