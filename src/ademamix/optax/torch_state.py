"""Carrying a run from our PyTorch optimizer into Optax and back, by its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ademamix.formats import SLOW
from ademamix.optax.convert import adopt, nodes
from ademamix.optax.transform import ScaleByAdemamixState
from ademamix.state_keys import FAST_KEY, MOMENT_KEYS, SCALE_KEYS, SLOW_KEY, SLOW_STEP_KEY, SQUARE_KEY, STEP_KEY

Name = str | int


def from_torch(state_dict: Mapping[str, Any], fresh: Any, names: Any = None) -> Any:
    r"""Continue a run of :class:`ademamix.AdEMAMix` in Optax, from the optimizer's ``state_dict()``.

    .. math:: (t, t_{slow}, m_1, m_2, \nu) \leftarrow (t, t_{slow}, m_1, m_2, \nu)_{torch}

    Moments of every ``state_storage`` are read; 16-bit codes stay as they are if the slow average is also coded here.
    Counts of updates in `fresh`, those of schedules and of wrappers such as ``optax.MultiSteps``, are set to t. A
    ``state_dict`` of ``torch.optim.AdamW`` is a switch.

    >>> import torch
    >>> from ademamix import AdEMAMix
    >>> from ademamix.optax import ademamix
    >>> model = torch.nn.Linear(3, 1)
    >>> run = AdEMAMix(model.named_parameters(), lr=1e-3, total_steps=1000, foreach=True)
    >>> model(torch.ones(1, 3)).sum().backward()
    >>> run.step()
    >>> params = {name: jnp.array(value.detach().numpy()) for name, value in model.named_parameters()}
    >>> state = from_torch(run.state_dict(), ademamix(1e-3, total_steps=1000).init(params))
    >>> int(state[0].count), round(float(state[0].mu["weight"][0, 0]), 6)
    (1, 0.1)

    Args:
        state_dict: as torch gives it.
        fresh: ``optimizer.init(params)`` of an :func:`ademamix` with the settings of the run, weight decay included:
            PyTorch's default is 1e-2, Optax's 1e-4.
        names: a tree like that of the parameters, with the name of the torch parameter at each leaf, or its position
            in the optimizer. None takes the path of each leaf, joined by dots. Names need an optimizer that was made
            from ``named_parameters()``. Shapes must agree: transpose moments where a parameter is transposed.

    Reference: none; ours.
    """
    from ademamix.pytorch.parameter_state import with_one_clock

    position_of = _positions(state_dict)
    group_at = {key: group for group in state_dict["param_groups"] for key in group["params"]}

    def is_ours(node: Any) -> bool:
        return isinstance(node, ScaleByAdemamixState)

    def entry_at(path: Any) -> Mapping[str, Any]:
        name = _name_at(path, names)
        position = position_of(name)
        entry: Mapping[str, Any] | None = state_dict["state"].get(position)
        if not entry:
            raise ValueError(f"the torch optimizer has not stepped the parameter {name!r}: it has no state")
        return with_one_clock(entry, group_at[position])

    state = jax.tree.map(lambda node: _filled(node, entry_at) if is_ours(node) else node, fresh, is_leaf=is_ours)
    filled = nodes(state, ScaleByAdemamixState)
    if not filled:
        raise ValueError("`fresh` has no state of ademamix in it: pass optimizer.init(params)")
    return _with_clocks_at(state, max((node.count for node in filled), key=int))


def to_torch(state: Any, state_dict: Mapping[str, Any], names: Any = None) -> dict[str, Any]:
    r"""Continue a run of :func:`ademamix` in PyTorch: return a ``state_dict`` for :class:`ademamix.AdEMAMix` to load.

    .. math:: (t, t_{slow}, m_1, m_2, \nu)_{torch} \leftarrow (t, t_{slow}, m_1, m_2, \nu)

    >>> import torch
    >>> from ademamix import AdEMAMix
    >>> from ademamix.optax import ademamix
    >>> params = {"weight": jnp.ones((1, 3)), "bias": jnp.ones(1)}
    >>> optimizer = ademamix(1e-3, total_steps=1000)
    >>> _, state = optimizer.update(params, optimizer.init(params), params)
    >>> model = torch.nn.Linear(3, 1)
    >>> run = AdEMAMix(model.named_parameters(), lr=1e-3, total_steps=1000, foreach=True)
    >>> run.load_state_dict(to_torch(state, run.state_dict()))
    >>> run.schedule()[0]["step"]
    1

    Args:
        state: state of :func:`ademamix`. It is not changed.
        state_dict: of a newly made torch optimizer with the settings of the run; its groups are returned as they are.
        names: as in :func:`from_torch`.

    Reference: none; ours.
    """
    position_of = _positions(state_dict)
    found = nodes(state, ScaleByAdemamixState)
    if not found:
        raise ValueError("`state` has no state of ademamix in it")
    entries: dict[int, dict[str, Any]] = {}
    for node in found:
        for path, row in _rows(node):
            if jnp.iscomplexobj(row[SLOW_KEY]):
                raise TypeError(_NO_COMPLEX.format(path=jax.tree_util.keystr(path)))
            row |= {STEP_KEY: node.count.astype(jnp.float32), SLOW_STEP_KEY: node.slow_count.astype(jnp.float32)}
            entries[position_of(_name_at(path, names))] = {key: _to_torch(value) for key, value in row.items()}
    return {**state_dict, "state": entries}


_NO_COMPLEX = (
    "the parameter {path} is complex, and its state cannot be converted: Optax has one second moment for a complex "
    "number, PyTorch one for each of its two parts"
)


def _filled(node: ScaleByAdemamixState, entry_at: Callable[[Any], Mapping[str, Any]]) -> ScaleByAdemamixState:
    """Return a newly initialised state with the moments and clocks of torch's entries."""
    from ademamix.pytorch import block_codes
    from ademamix.pytorch.parameter_state import values_of

    entries, rows = [], []
    for path, row in _rows(node):
        entry = entry_at(path)
        _check_entry(jax.tree_util.keystr(path), row, entry)
        entries.append(entry)
        values = {key: values_of(entry, key) for key in row if key in entry and key in MOMENT_KEYS.values()}
        if SCALE_KEYS["slow"] in row and SLOW_KEY in values:
            if entry[SLOW_KEY].dtype == block_codes.dtype_of(SLOW):
                codes, scale = entry[SLOW_KEY], entry[SCALE_KEYS["slow"]]
            else:
                codes, scale = block_codes.encode(values[SLOW_KEY], SLOW)
            values |= {SLOW_KEY: codes, SCALE_KEYS["slow"]: scale}
        rows.append(
            {key: _place(values[key].cpu().numpy(), like) if key in values else like for key, like in row.items()}
        )
    structure: Any = jax.tree.structure(node.nu)

    def column(key: str, like: Any) -> Any:
        return None if like is None else structure.unflatten([row.get(key) for row in rows])

    return ScaleByAdemamixState(
        count=_clock(STEP_KEY, entries, node.count),
        slow_count=_clock(SLOW_STEP_KEY, entries, node.slow_count),
        mu=column(FAST_KEY, node.mu),
        nu=column(SQUARE_KEY, node.nu),
        slow=column(SLOW_KEY, node.slow),
        slow_scale=column(SCALE_KEYS["slow"], node.slow_scale),
        slow_block=node.slow_block,
    )


def _rows(node: ScaleByAdemamixState) -> list[tuple[Any, dict[str, Any]]]:
    """List the path of each parameter, and its stored state under torch's names."""
    structure: Any = jax.tree.structure(node.nu)
    columns = {
        FAST_KEY: node.mu,
        SLOW_KEY: node.slow,
        SQUARE_KEY: node.nu,
        SCALE_KEYS["slow"]: node.slow_scale,
    }
    leaves = {key: structure.flatten_up_to(column) for key, column in columns.items() if column is not None}
    return [
        (path, {key: column[i] for key, column in leaves.items() if column[i] is not None})
        for i, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(node.nu))
    ]


def _with_clocks_at(state: Any, count: jax.Array) -> Any:
    """Set the clocks of schedules and wrappers, which do not belong to a parameter, to `count` updates."""

    def clock_of(node: Any) -> str | None:
        return _CLOCKS.get(type(node).__name__)

    def at(node: Any) -> Any:
        clock = clock_of(node)
        if clock is None:
            return node
        inner = type(node)(*(_with_clocks_at(field, count) for field in node))
        return inner._replace(**{clock: adopt(count, getattr(node, clock))})

    return jax.tree.map(at, state, is_leaf=lambda node: clock_of(node) is not None)


# Optax's counts of updates. By name: not all of these classes are public in every version.
_CLOCKS = {
    "ScaleByScheduleState": "count",
    "WrappedScheduleState": "count",
    "InjectHyperparamsState": "count",
    "InjectStatefulHyperparamsState": "count",
    "MultiStepsState": "gradient_step",
    "ConditionallyTransformState": "step",
    "ConditionallyMaskState": "step",
}


def _name_at(path: Any, names: Any) -> Name:
    if names is None:
        return ".".join(str(_key(entry)) for entry in path)
    found = dict(jax.tree_util.tree_leaves_with_path(names))
    if path not in found:
        raise ValueError(f"names has no entry for the parameter {jax.tree_util.keystr(path)}")
    name: Name = found[path]
    return name


def _key(entry: Any) -> Any:
    """Return the key of a dict, the position in a sequence or the name of an attribute that a path goes through."""
    return next((getattr(entry, kind) for kind in ("key", "idx", "name") if hasattr(entry, kind)), entry)


def _positions(state_dict: Mapping[str, Any]) -> Callable[[Name], int]:
    """Return a function from the name or position of a parameter to its key in the state."""
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    named = all("param_names" in group for group in state_dict["param_groups"])
    names = [name for group in state_dict["param_groups"] for name in group["param_names"]] if named else []
    by_name: dict[Name, int] = {**dict(zip(names, keys, strict=bool(names))), **dict(enumerate(keys))}

    def position(name: Name) -> int:
        if isinstance(name, str) and not names:
            raise ValueError(
                "the torch state_dict has no names of parameters. Make the optimizer from model.named_parameters(), or "
                "pass `names`, a tree with the position of each parameter in the optimizer."
            )
        if name not in by_name:
            raise ValueError(
                f"the torch optimizer has no parameter {name!r}, only {', '.join(map(repr, names or keys))}"
            )
        return by_name[name]

    return position


def _check_entry(path: str, row: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
    square, shape = entry[SQUARE_KEY], row[SQUARE_KEY].shape
    if square.is_complex():
        raise TypeError(_NO_COMPLEX.format(path=path))
    if tuple(square.shape) != shape:
        raise ValueError(
            f"the parameter {path} has shape {shape} here and {tuple(square.shape)} in PyTorch. If it is transposed or "
            "reshaped, do the same to its moments in the state_dict first; torch.nn.Linear, for one, keeps its weight "
            "as (out, in) and Flax its kernel as (in, out)."
        )
    if FAST_KEY in row and FAST_KEY not in entry:
        raise ValueError(f"the torch state of {path} has no fast average, since its beta1 is 0: also pass b1=0 here")


def _clock(clock: str, entries: list[Mapping[str, Any]], like: jax.Array) -> jax.Array:
    found = sorted({int(entry.get(clock, 0)) for entry in entries})
    if len(found) > 1:
        raise ValueError(
            f"the torch parameters have different {clock} ({found[0]} to {found[-1]}), but a transformation has one "
            "clock for all of its parameters. Use optax.multi_transform with one ademamix for each clock."
        )
    return _place(np.array(found[0]), like) if found else like


def _place(value: Any, like: jax.Array) -> jax.Array:
    """Return `value` with the dtype and the sharding of `like`."""
    placed: jax.Array = jax.device_put(jnp.array(value, dtype=like.dtype), like.sharding)
    return placed


def _to_torch(value: jax.Array) -> Any:
    import torch

    array = np.array(value)
    return torch.from_numpy(array if array.dtype.name != "bfloat16" else array.astype(np.float32))
