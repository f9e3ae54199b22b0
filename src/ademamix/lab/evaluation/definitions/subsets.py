"""Parts of RewardBench, as its own table has them."""

from __future__ import annotations

from typing import Any

REASONING = {"math-prm", "hep-cpp", "hep-go", "hep-java", "hep-js", "hep-python", "hep-rust"}


def reasoning(pairs: Any) -> Any:
    """Return the pairs about mathematics and programs, of the `datasets.Dataset` of all."""
    return pairs.filter(lambda pair: pair["subset"] in REASONING)
