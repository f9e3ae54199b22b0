"""What every test can rely on, wherever the tests are started: signals, processes, threads, and the cases drawn.

On a CI machine property tests draw the same cases every time; elsewhere they look for new ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is loaded; threads that wait do not take a core
# What JAX has compiled is kept, by content: tests compile thousands of small programs, many of them more than once.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL would report its use over the network, in a thread

import pytest
import torch
from hypothesis import settings

import worker_forks

if TYPE_CHECKING:  # of the lab, which the tests of Triton do without
    from ademamix.lab.execution.options import Options

# Tests of others and inputs for a process of their own: `test_optax_suites.py` and `test_fuzz.py` run them.
# So does `processes.py` with scenarios that import trainers of an environment of their own.
collect_ignore = [
    "optax/optax_suites.py",
    "pytorch/fuzz_inputs.py",
    "pytorch/distributed/megatron_slices.py",
    "pytorch/distributed/zero_stages.py",
]

THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else torch.get_num_threads()  # several workers have the cores

settings.register_profile("ci", derandomize=True, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a killed child had started becomes a child of the tests


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_not_ignored() -> Iterator[None]:
    """Let SIGINT act, here and in what is started from here; nohup and background jobs of scripts have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _threads() -> None:
    """Undo what a test before this one has chosen, as `ademamix train` does for its process."""
    torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    """Kill what a test has left: processes of multiprocessing, and those with a session of their own."""
    yield
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it ends by itself at this moment
            if os.getsid(pid) == pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[str]:
    """A process that forks workers; the path of its socket."""
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket must be short
        path = f"{folder}/socket"
        command = [sys.executable, worker_forks.__file__, "serve", path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield path


@pytest.fixture
def quick_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes that carry out runs forked, for tests of something else than how they are started."""
    from ademamix.lab.execution import worker

    command = worker.command

    def quick(options: Options, *, threads: int) -> list[str]:
        socket = request.getfixturevalue("fork_server")  # only here, for it takes seconds
        return worker_forks.forked(socket, "runs", command(options, threads=threads)[-1])

    monkeypatch.setattr(worker, "command", quick)


MARKS_TO_ASK_FOR = {
    "cluster": "ADEMAMIX_TEST_CLUSTER",
    "deepspeed": "ADEMAMIX_TEST_DEEPSPEED",
    "distributed": "ADEMAMIX_TEST_DISTRIBUTED",
    "programs": "ADEMAMIX_TEST_PROGRAMS",
    "triton": "TRITON_INTERPRET",
}
"""Marks of tests that need more than a Python environment, and the variables with which the Makefile asks for them."""


def pytest_collection_modifyitems(config, items):
    """Deselect the tests that were not asked for; `make test-triton`, for one, asks.

    Not by `-m` in pyproject.toml, which any `-m` of the command line would override.
    """
    unasked = [mark for mark, variable in MARKS_TO_ASK_FOR.items() if os.environ.get(variable) != "1"]
    deselected = [item for item in items if any(map(item.get_closest_marker, unasked))]
    items[:] = [item for item in items if item not in deselected]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # these first: no worker ends with one alone
    config.hook.pytest_deselected(items=deselected)
