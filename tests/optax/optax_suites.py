"""Optax's own tests of its optimizers, from the installed wheel, for ours. Run by test_optax_suites.py.

Their lists of optimizers are replaced by ours while the modules are imported. Tests that have no such list are left
out: they are of Optax's optimizers alone. One of them, `test_explicit_dtype`, asks for moments of the dtype of the
parameter; ours are fp32 on purpose.
"""

from __future__ import annotations

import importlib
import unittest
from unittest import mock

import jax
import optax
from absl.testing import parameterized

from ademamix.optax import ademamix, scale_by_ademamix

# Our optimizer in every format; total_steps is the number of steps of the longest test of the suite.
FORMATS = ({}, {"b1": 0.0}, {"slow_dtype": "int16", "mu_dtype": "bfloat16"}, {"slow_dtype": "bfloat16"})


def rows_for(total_steps: int, **wrapper: None) -> list[dict[str, object]]:
    settings = {"learning_rate": 1e-2, "total_steps": total_steps, "alpha": 2.0}
    return [{"opt_name": "ademamix", "opt_kwargs": {**settings, **format}, **wrapper} for format in FORMATS]


def imported(module: str, rows: list[dict[str, object]]):
    """Import tests, with `rows` in the place of every list of optimizers, and without tests that have none."""
    product = parameterized.product

    def of_ours(*sequences, **named):
        return product(rows, **named) if sequences else lambda test: None

    with mock.patch.object(parameterized, "product", of_ours):
        return importlib.import_module(module)


def imported_with_names(module: str, rows: list[tuple[object, ...]]):
    """Import tests whose lists of optimizers begin with names."""
    named_parameters = parameterized.named_parameters

    def of_ours(*lists):
        return named_parameters(*rows) if len(lists) == 1 else lambda test: None

    with mock.patch.object(parameterized, "named_parameters", of_ours):
        return importlib.import_module(module)


alias_test = imported("optax._src.alias_test", rows_for(10_000))
common_test = imported("optax.contrib._common_test", rows_for(30_000, wrapper_name=None, wrapper_kwargs=None))
SETTINGS = {"total_steps": 10}
float64_test = imported_with_names(
    "optax._src.float64_test",
    [
        ("scale_by_ademamix", scale_by_ademamix, SETTINGS),
        *((f"ademamix{i}", ademamix, {"learning_rate": 0.1, **SETTINGS, **format}) for i, format in enumerate(FORMATS)),
    ],
)
sharding_test = imported_with_names(
    "optax._src.sharding_test",
    [(f"ademamix{i}", ademamix(1.0, **SETTINGS, **format)) for i, format in enumerate(FORMATS)],
)


class OursAsOptaxs(unittest.TestCase):
    """Optax's tests look their optimizers up by name."""

    def setUp(self):
        for module in (optax._src.alias, optax.contrib):
            self.enterContext(mock.patch.object(module, "ademamix", ademamix, create=True))
        # Schedules are tested if the annotation is this object; ours is text.
        self.enterContext(mock.patch.dict(ademamix.__annotations__, learning_rate=optax.ScalarOrSchedule))


class AliasTest(OursAsOptaxs, alias_test.AliasTest):
    # For b1 = 0: a b1 that is traced may become more than 0, so that its fast average is stored.
    test_optimizers_can_be_wrapped_in_inject_hyperparams1 = None


class ContribTest(OursAsOptaxs, common_test.ContribTest):
    test_optimizers_can_be_wrapped_in_inject_hyperparams1 = None  # as above


class Float64Test(float64_test.Float64Test):
    pass


class ShardingTest(sharding_test.ShardingTest):
    def setUp(self):
        # They compare versions as text, by which 0.10 is older than 0.7, and leave their tests out.
        self.enterContext(mock.patch.object(jax, "__version__", "1"))
