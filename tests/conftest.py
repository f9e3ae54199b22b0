"""On a CI machine property tests draw the same cases every time; elsewhere they look for new ones."""

from __future__ import annotations

import os

import torch
from hypothesis import settings

# Tests of others and inputs for a process of their own: `test_optax_suites.py` and `test_fuzz.py` run them.
collect_ignore = ["optax/optax_suites.py", "pytorch/fuzz_inputs.py"]

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers have the cores; threads that wait for work would spin on them

settings.register_profile("ci", derandomize=True, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_collection_modifyitems(config, items):
    """Deselect the tests of Triton kernels outside of Triton's interpreter: `make test-triton` runs them in it.

    Not by `-m` in pyproject.toml, which any `-m` of the command line would override.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        deselected = [item for item in items if item.get_closest_marker("triton")]
        items[:] = [item for item in items if item not in deselected]
        config.hook.pytest_deselected(items=deselected)
