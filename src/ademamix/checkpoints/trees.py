"""Trees of dicts and lists, as checkpoints are: finding nodes, replacing them, and comparing trees to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Keys = tuple[Any, ...]


def find(tree: Any, is_wanted: Callable[[Any], bool], keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """List the outermost nodes that are wanted, with the keys that lead to them.

    >>> list(find({"a": [1, {"b": 2}]}, lambda node: isinstance(node, dict) and "b" in node))
    [(('a', 1), {'b': 2})]
    """
    if is_wanted(tree):
        yield keys, tree
    else:
        for key, value in _children(tree):
            yield from find(value, is_wanted, (*keys, key))


def replaced(tree: Any, keys: Keys, node: Any) -> Any:
    """Return `tree` with another node at `keys`. What does not lead there is shared.

    >>> replaced({"a": [1, 2], "b": 3}, ("a", 1), "new")
    {'a': [1, 'new'], 'b': 3}
    """
    if not keys:
        return node
    inner = replaced(tree[keys[0]], keys[1:], node)
    if isinstance(tree, tuple):
        items = [inner if i == keys[0] else item for i, item in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    changed = copy.copy(tree)
    changed[keys[0]] = inner
    return changed


def label(keys: Keys) -> str:
    """Write keys as one would in Python.

    >>> label(("optimizer_states", 0)), label(())
    ('optimizer_states[0]', '')
    """
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def difference(old: Any, new: Any, keys: Keys = ()) -> str | None:
    """Return where two trees differ in a bit of an array or in another value, or None if they do not.

    >>> difference({"a": [1.0, float("nan")]}, {"a": [1.0, float("nan")]})
    >>> difference({"a": [1, 2]}, {"a": [1, 3]})
    'a[1]'
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if old.keys() != new.keys():
            return label(keys) or "the outermost level"
        rows = [(old[key], new[key], (*keys, key)) for key in old]
    elif _is_list(old) and _is_list(new):
        if len(old) != len(new):
            return label(keys) or "the outermost level"
        rows = [(*row, (*keys, i)) for i, row in enumerate(zip(old, new, strict=True))]
    else:
        return None if _same_leaf(old, new) else label(keys) or "the outermost level"
    return next(filter(None, (difference(*row) for row in rows)), None)


def _children(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        yield from tree.items()
    elif _is_list(tree):
        yield from enumerate(tree)


def _is_list(node: Any) -> bool:
    return isinstance(node, Sequence) and not isinstance(node, (str, bytes))


def _same_leaf(old: Any, new: Any) -> bool:
    if hasattr(old, "dtype") and hasattr(old, "shape"):
        same_kind = getattr(new, "dtype", None) == old.dtype and tuple(new.shape) == tuple(old.shape)
        return same_kind and (_same_tensor(old, new) if hasattr(old, "untyped_storage") else _same_array(old, new))
    if type(old) is not type(new):
        return False
    return bool(old == new) or old != old or repr(old) == repr(new)  # NaN; objects without a comparison


def _same_tensor(old: Any, new: Any) -> bool:
    """Compare bits: NaN is like itself, and 0 is not like -0."""
    import torch

    if any(tensor.layout != torch.strided or tensor.is_meta for tensor in (old, new)):  # without bits to compare
        return repr(old) == repr(new)
    old, new = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (old, new))
    return torch.equal(old, new)


def _same_array(old: Any, new: Any) -> bool:
    import numpy as np

    old, new = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (old, new))
    return bool(np.array_equal(old, new))
