"""Switching: from the state of ``optax.adamw`` and back, in the middle of a run.

Both functions take the state to continue and that of a newly initialised optimizer: the latter says which moments are
stored, in which dtypes, and how they are sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ademamix.optax.transform import ScaleByAdemamixState

INJECTED = (".hyperparams", ".hyperparams_states")  # fields of the state of optax.inject_hyperparams


def from_adamw_state(adamw_state: Any, fresh: Any) -> Any:
    r"""Switch from ``optax.adamw`` to :func:`ademamix` in the middle of a run.

    .. math:: (t, m_1, \nu) \leftarrow (t, m_1, \nu)_{AdamW}, \qquad m_2 \leftarrow 0, \quad t_{slow} \leftarrow 0

    The slow average starts empty and its clock at 0; moments, the clock of the bias corrections and everything else,
    such as the count of a learning-rate schedule, continue.

    >>> from ademamix.optax import ademamix
    >>> params = jnp.ones(3)
    >>> adamw_state = optax.adamw(1e-3).init(params)  # ... many steps later:
    >>> optimizer = ademamix(1e-3, alpha=2.0, total_steps=50_000, alpha_warmup=0, beta3_warmup=0)
    >>> state = from_adamw_state(adamw_state, optimizer.init(params))

    Args:
        adamw_state: state of ``optax.adamw``, also inside ``optax.chain``, ``inject_hyperparams``, ``MultiSteps``,
            ``multi_transform`` and the like. It is not changed.
        fresh: ``optimizer.init(params)`` of an :func:`ademamix` in the place of every ``optax.adamw``, whose
            `total_steps` are those still to come. Injected hyperparameters that AdamW also has are taken from
            `adamw_state`.

    Reference: section 4.1 of the paper, "Resume from AdamW"; it uses alpha = 2 or 1 and no warm-ups.
    """

    def switch(old: optax.ScaleByAdamState, new: ScaleByAdemamixState) -> ScaleByAdemamixState:
        return new._replace(
            count=adopt(old.count, new.count),
            mu=None if new.mu is None else adopt(old.mu, new.mu),
            nu=adopt(old.nu, new.nu),
        )

    return _converted(adamw_state, fresh, optax.ScaleByAdamState, ScaleByAdemamixState, switch)


def to_adamw_state(state: Any, fresh: Any) -> Any:
    r"""Switch from :func:`ademamix` to ``optax.adamw`` in the middle of a run: the slow average is dropped.

    .. math:: (t, m_1, \nu)_{AdamW} \leftarrow (t, m_1, \nu)

    >>> from ademamix.optax import ademamix
    >>> params = jnp.ones(3)
    >>> state = ademamix(1e-3, total_steps=1000).init(params)  # ... many steps later:
    >>> adamw_state = to_adamw_state(state, optax.adamw(1e-3).init(params))

    Args:
        state: state of :func:`ademamix`. It is not changed.
        fresh: ``optimizer.init(params)`` of an ``optax.adamw`` in the place of every :func:`ademamix`. After b1 = 0
            its fast average starts empty.

    Reference: appendix C of the paper, "Removing the second EMA mid-training".
    """

    def switch(old: ScaleByAdemamixState, new: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        return new._replace(
            count=adopt(old.count, new.count),
            mu=new.mu if old.mu is None else adopt(old.mu, new.mu),
            nu=adopt(old.nu, new.nu),
        )

    return _converted(state, fresh, ScaleByAdemamixState, optax.ScaleByAdamState, switch)


def nodes(tree: Any, kind: type) -> list[Any]:
    """List the nodes of a kind in a tree."""
    leaves: list[Any] = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def _converted(old: Any, new: Any, old_kind: type, new_kind: type, switch: Callable[[Any, Any], Any]) -> Any:
    """Return `old` in the form of `new`, `switch` having been applied to all pairs of the two kinds."""

    def merged(old: Any, new: Any, path: str) -> Any:
        if isinstance(old, old_kind) and isinstance(new, new_kind):
            return switch(old, new)
        if isinstance(old, dict) and isinstance(new, dict):
            shared = old.keys() & new.keys() if path.endswith(INJECTED) else new.keys()  # each has some of its own
            if shared <= old.keys():
                return {
                    key: merged(old[key], new[key], f"{path}[{key!r}]") if key in shared else new[key] for key in new
                }
        if isinstance(old, tuple) and type(old) is type(new) and len(old) == len(new):
            names = [f".{name}" for name in getattr(new, "_fields", ())] or [f"[{i}]" for i in range(len(new))]
            fields = [merged(*row[:2], path + row[2]) for row in zip(old, new, names, strict=True)]
            return type(new)(*fields) if hasattr(new, "_fields") else tuple(fields)
        if _same_structure(old, new) and not nodes(old, old_kind):
            return adopt(old, new)
        raise ValueError(
            f"the states differ at state{path}: {type(old).__name__} cannot be continued as {type(new).__name__}. "
            f"Both optimizers must be built in the same way, with {new_kind.__name__} in one where the other has "
            f"{old_kind.__name__} (amsgrad and others have states of their own)."
        )

    if not nodes(old, old_kind):
        raise ValueError(f"there is no {old_kind.__name__} in the state to convert")
    return merged(old, new, "")


def adopt(old: Any, new: Any) -> Any:
    """Return `old` in the dtypes of `new`, as arrays of their own, which may be donated."""

    def leaf(value: Any, like: Any) -> jax.Array:
        if jnp.shape(value) != jnp.shape(like):
            raise ValueError(f"a moment has shape {jnp.shape(value)} where {jnp.shape(like)} is expected")
        if jnp.iscomplexobj(value) and not jnp.iscomplexobj(like):
            value = value.real  # Optax keeps |g|^2 in a complex array
        return jnp.array(value, dtype=jnp.asarray(like).dtype)

    return jax.tree.map(leaf, old, new)


def _same_structure(old: Any, new: Any) -> bool:
    structure: Callable[[Any], Any] = jax.tree.structure
    return bool(structure(old) == structure(new))
