"""What an earlier version saved is read and continued: states of both frameworks, and the folders of runs.

The files are those of tests/fixtures; they stay as they are, and later versions get folders of their own.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from ademamix import AdEMAMix
from ademamix.lab.config import Run
from ademamix.lab.runs.record import open_folder
from ademamix.lab.train import Options, train
from ademamix.optax import ademamix
from fixtures.version_0_1 import write as saved

FOLDER = Path(saved.__file__).parent
KEYS: list[dict[str, Any]] = json.loads((FOLDER / "keys.json").read_text())
STATES = {name: torch.load(FOLDER / f"pytorch-{name}.pt", weights_only=True) for name in saved.PYTORCH}


def _loaded(name: str) -> tuple[list[torch.Tensor], AdEMAMix]:
    _, settings = saved.PYTORCH[name]
    params = [param.clone().requires_grad_() for param in STATES[name]["parameters"]]
    optimizer = AdEMAMix(params, 1e-2, total_steps=50, fused=True, **settings)
    optimizer.load_state_dict(STATES[name]["optimizer"])
    return params, optimizer


@pytest.mark.parametrize("name", saved.PYTORCH)
def test_a_state_of_pytorch_continues_with_the_same_bits(name: str) -> None:
    shapes, _ = saved.PYTORCH[name]
    params, optimizer = _loaded(name)
    for step in range(saved.SAVED + 1, saved.CONTINUED + 1):
        for param, gradient in zip(params, saved.numbers(shapes, step), strict=True):
            param.grad = torch.tensor(gradient, dtype=param.dtype)
        optimizer.step()
    assert saved.digest(params) == STATES[name]["continued"]


@pytest.mark.parametrize("name", saved.PYTORCH)
def test_a_state_of_pytorch_is_saved_as_it_was(name: str) -> None:
    """The keys, dtypes and values: an earlier version loads what this one saves."""
    _, optimizer = _loaded(name)
    before, after = STATES[name]["optimizer"], optimizer.state_dict()
    (group,) = after["param_groups"]
    added = {name: group[name] for name in set(group) - set(before["param_groups"][0])}
    assert added == {"slow_clip": None, "master": None}  # which an earlier version passes over
    assert set(before["param_groups"][0]) <= set(group)
    for old, new in zip(before["state"].values(), after["state"].values(), strict=True):
        assert {key: value.dtype for key, value in new.items()} == {key: value.dtype for key, value in old.items()}
        assert all(torch.equal(new[key], old[key]) for key in old)


@pytest.mark.parametrize("name", saved.OPTAX)
def test_a_state_of_optax_continues(name: str) -> None:
    """Of the same structure to the letter; the numbers differ by what XLA rounds differently on another processor."""
    shapes, settings = saved.OPTAX[name]
    optimizer = ademamix(1e-2, total_steps=50, **settings)
    params = [jnp.asarray(start, saved.dtype_of(shapes)) for start in saved.numbers(shapes, 0)]
    tree = {"params": params, "state": optimizer.init(params)}
    with np.load(FOLDER / f"optax-{name}.npz") as file:
        kept = {path: value for path, value in file.items() if not path.startswith("['continued']")}
        expected = [value for path, value in file.items() if path.startswith("['continued']")]
    assert list(saved.arrays_of(tree)) == list(kept)
    leaves = zip(kept.values(), jax.tree.leaves(tree), strict=True)
    restored = [jnp.asarray(value.view(leaf.dtype)) for value, leaf in leaves]
    params, state = jax.tree.unflatten(jax.tree.structure(tree), restored).values()
    for step in range(saved.SAVED + 1, saved.CONTINUED + 1):
        gradients = [jnp.asarray(gradient, saved.dtype_of(shapes)) for gradient in saved.numbers(shapes, step)]
        updates, state = jax.jit(optimizer.update)(gradients, state, params)
        params = optax.apply_updates(params, updates)
    for param, value in zip(params, expected, strict=True):
        wanted = np.asarray(value.view(param.dtype), np.float32)
        np.testing.assert_allclose(np.asarray(param, np.float32), wanted, rtol=float(jnp.finfo(param.dtype).eps) * 4)


@pytest.mark.parametrize("number", range(len(KEYS)))
def test_runs_have_the_keys_that_they_had(number: int) -> None:
    assert Run(**KEYS[number]["config"]).key == KEYS[number]["key"]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the text and the runs of the earlier version, as its working directory."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finished_run_is_not_trained_again(lab: Path) -> None:
    run = Run(**saved.RUN)
    folder = open_folder(lab / "finished" / "runs" / run.key)
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    assert train(run, Options(lab / "finished")) == folder.result()
    assert {path: path.read_bytes() for path in folder.path.iterdir()} == before
    assert [row["step"] for row in folder.metrics()] == [4, 8, 12, 16, 20, 24]


def test_a_stopped_run_continues(lab: Path) -> None:
    """The losses after the stop are those of the run that was not stopped, up to torch's rounding elsewhere."""
    run = Run(**saved.RUN)
    stopped, finished = (open_folder(lab / out / "runs" / run.key) for out in ("stopped", "finished"))
    before = (stopped.path / "metrics.jsonl").read_bytes()
    train(run, Options(lab / "stopped"))
    assert (stopped.path / "metrics.jsonl").read_bytes().startswith(before)
    for continued, straight in zip(stopped.metrics(), finished.metrics(), strict=True):
        assert continued == pytest.approx(straight, rel=1e-4)
