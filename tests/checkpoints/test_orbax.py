"""Folders of Orbax: states of optax.adamw and of optax.contrib.ademamix continue as ours, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from ademamix.checkpoints import CheckpointError, convert
from ademamix.optax import ademamix

SAVED, CONTINUED = 20, 100
ADAMW: dict[str, Any] = {"b1": 0.8, "b2": 0.99, "eps": 1e-7, "weight_decay": 0.1}
AVERAGES = {**ADAMW, "b3": 0.995, "alpha": 3.0}
NO_WARMUPS = {"alpha_warmup": 0, "beta3_warmup": 0}
TOLERANCE = 3e-6  # of parameters of about 1, after 100 steps; the arithmetic is in fp32


def start() -> dict[str, Any]:
    key = jax.random.key(0)
    return {"dense": {"kernel": jax.random.normal(key, (6, 5)), "bias": jnp.ones(5)}}


def steps(optimizer: optax.GradientTransformation, params: Any, state: Any, count: int) -> tuple[Any, Any]:
    """Take steps towards points that change from step to step."""

    @jax.jit
    def step(carry: tuple[Any, Any], i: jax.Array) -> tuple[tuple[Any, Any], None]:
        params, state = carry
        gradients = jax.tree.map(lambda param: param + jnp.sin(i + jnp.arange(param.size).reshape(param.shape)), params)
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, state), jnp.arange(count))[0]


def saved(path: Path, optimizer: optax.GradientTransformation) -> tuple[Any, Any]:
    params, state = steps(optimizer, start(), optimizer.init(start()), SAVED)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, {"params": params, "opt_state": state, "epoch": 3})
    return params, state


def continued(path: Path, optimizer: optax.GradientTransformation) -> Any:
    """Restore into the structure that a program has, as Orbax advises, and take steps."""
    like = {"params": start(), "opt_state": optimizer.init(start()), "epoch": 0}
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(path, jax.tree.map(ocp.utils.to_shape_dtype_struct, like))
    assert restored["epoch"] == 3
    return steps(optimizer, restored["params"], restored["opt_state"], CONTINUED)[0]


def assert_close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=TOLERANCE, atol=TOLERANCE), found, expected)


def test_adamw_continues_as_ademamix_and_back(tmp_path: Path) -> None:
    adamw = optax.adamw(0.01, **ADAMW)
    expected = steps(adamw, *saved(tmp_path / "adamw", adamw), CONTINUED)[0]
    (report,) = convert(tmp_path / "adamw", tmp_path / "ours")
    assert (report.label, report.origin) == ("opt_state[0]", "AdamW")
    assert "convert it only if this was adam or adamw" in report.notes[0]
    assert_close(continued(tmp_path / "ours", ademamix(0.01, **{**AVERAGES, "alpha": 0.0}, **NO_WARMUPS)), expected)
    (report,) = convert(tmp_path / "ours", tmp_path / "back", "adamw")
    assert report.notes == []
    assert_close(continued(tmp_path / "back", adamw), expected)


def test_optax_contrib_continues(tmp_path: Path) -> None:
    theirs = optax.contrib.ademamix(0.01, **AVERAGES)
    expected = steps(theirs, *saved(tmp_path / "theirs", theirs), CONTINUED)[0]
    (report,) = convert(tmp_path / "theirs", tmp_path / "ours")
    assert report.origin == "optax.contrib"
    assert "one step ahead" in report.notes[0]
    assert_close(continued(tmp_path / "ours", ademamix(0.01, **AVERAGES, **NO_WARMUPS)), expected)


def test_a_step_of_a_checkpoint_manager(tmp_path: Path) -> None:
    adamw = optax.adamw(0.01, **ADAMW)
    _, state = steps(adamw, start(), adamw.init(start()), SAVED)
    with ocp.CheckpointManager(tmp_path / "run", item_names=("state", "data")) as manager:
        items = {"state": ocp.args.StandardSave(state), "data": ocp.args.JsonSave({"position": 7})}
        manager.save(SAVED, args=ocp.args.Composite(**items))
    (tmp_path / "converted").mkdir()
    (report,) = convert(tmp_path / "run" / str(SAVED), tmp_path / "converted" / str(SAVED))
    assert report.label == "state: [0]"
    ours = ademamix(0.01, **AVERAGES, **NO_WARMUPS)
    with ocp.CheckpointManager(tmp_path / "converted", item_names=("state", "data")) as manager:
        like = ocp.args.StandardRestore(ours.init(start()))
        restored = manager.restore(SAVED, args=ocp.args.Composite(state=like, data=ocp.args.JsonRestore()))
    assert restored["data"] == {"position": 7}
    assert int(restored["state"][0].count) == SAVED
    assert int(restored["state"][0].slow_count) == 0
    jax.tree.map(np.testing.assert_array_equal, restored["state"][0].nu, state[0].nu)


def test_fields_that_ademamix_stores_otherwise(tmp_path: Path) -> None:
    """Without m1 when b1 = 0: AdamW begins with an empty one."""
    ours = ademamix(0.01, b1=0.0, total_steps=1000)
    saved(tmp_path / "ours", ours)
    (report,) = convert(tmp_path / "ours", tmp_path / "adamw", "adamw")
    assert {change.what for change in report.changes if change.entry == "mu"} == {
        "new: zeros, float32 of 5",
        "new: zeros, float32 of 6x5",
    }
    continued(tmp_path / "adamw", optax.adamw(0.01, **ADAMW))


def test_what_an_optax_state_cannot_take_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "adamw", optax.adamw(0.01))
    with pytest.raises(CheckpointError, match=r"has no settings, so alpha cannot be written.*ademamix.optax.ademamix"):
        convert(tmp_path / "adamw", tmp_path / "ours", alpha=3.0)
    saved(tmp_path / "injected", optax.inject_hyperparams(optax.adamw)(learning_rate=0.01))
    with pytest.raises(CheckpointError, match="inject_hyperparams"):
        convert(tmp_path / "injected", tmp_path / "ours")
    saved(tmp_path / "sgd", optax.sgd(0.01, momentum=0.9))
    with pytest.raises(CheckpointError, match="there is no optimizer state"):
        convert(tmp_path / "sgd", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_moments_in_bf16_become_those_of_ademamix(tmp_path: Path) -> None:
    """Our slow average and second moment are fp32 or wider; m1 stays as it is stored."""
    params = jax.tree.map(lambda param: param.astype(jnp.bfloat16), start())
    adamw = optax.adamw(0.01, mu_dtype="bfloat16")
    _, state = adamw.update(params, adamw.init(params), params)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "adamw", state)
    convert(tmp_path / "adamw", tmp_path / "ours")
    like = ademamix(0.01, **AVERAGES, **NO_WARMUPS, mu_dtype="bfloat16").init(params)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "ours", like)
        plain = checkpointer.restore(tmp_path / "ours")
    assert plain[0]["mu"]["dense"]["bias"].dtype == jnp.bfloat16
    assert plain[0]["slow"]["dense"]["bias"].dtype == plain[0]["nu"]["dense"]["bias"].dtype == jnp.float32
    jax.tree.map(np.testing.assert_array_equal, restored[0].mu, state[0].mu)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y.astype(jnp.float32)), restored[0].nu, state[0].nu)
