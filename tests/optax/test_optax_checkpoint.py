"""Orbax: a run that is saved and restored has the same bits as an uninterrupted one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from test_optax import equal, every_format, make, params_of, signature


@every_format
def test_save_restore_continue(format, tmp_path):
    optimizer = make(format)
    params = params_of()
    del params["empty"]  # Orbax does not save arrays without elements

    def steps(params, state, seeds):
        for seed in seeds:
            updates = params_of(seed=seed)
            del updates["empty"]
            params, state = advance(params, state, updates)
        return params, state

    @jax.jit
    def advance(params, state, gradients):
        updates, state = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    halfway = steps(params, optimizer.init(params), range(5))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "checkpoint", halfway)
        checkpointer.wait_until_finished()
        like = jax.tree.map(jnp.zeros_like, (params, optimizer.init(params)))
        restored = checkpointer.restore(tmp_path / "checkpoint", like)
    assert signature(restored) == signature(halfway)
    assert equal(restored, halfway)
    assert equal(steps(*restored, range(5, 10)), steps(*halfway, range(5, 10)))
    assert not np.array_equal(restored[0]["matrix"], params["matrix"])
