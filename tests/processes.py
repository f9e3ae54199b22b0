"""Groups of processes that talk through gloo, forked from one that has all modules loaded.

``run(scenario, worlds=(1, 2))`` calls a function in each process of groups of 1 and 2: it sees a process group, and
fails the test by raising. A new interpreter takes seconds to load torch, so that scenarios go through many cases.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

SECONDS = 900  # a group that waits for one of its own must end some day, also on a busy machine


def run(*scenarios: Callable[[Path], None], worlds: tuple[int, ...], kills: bool = False) -> None:
    """Carry out scenarios, functions of a module of the tests, in groups of processes of these sizes, in turn.

    The folder that they are given is the same for all groups. If a scenario `kills` processes, that is no failure.
    """
    run_by_name(scenarios[0].__module__, *[scenario.__name__ for scenario in scenarios], worlds=worlds, kills=kills)


def run_by_name(module: str, *names: str, worlds: tuple[int, ...], kills: bool = False) -> None:
    """Do the same with scenarios of a module that is imported in those processes alone."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, module, ",".join(names), folder, *map(str, worlds)]
        environment = {
            **os.environ,
            "KILLS": str(int(kills)),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def main(module: str, names: str, folder: str, *worlds: str) -> int:
    """Fork a group of each size, and return the number of processes that failed."""
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.debug  # noqa: F401

    scenarios = [getattr(importlib.import_module(module), name) for name in names.split(",")]
    for number, world in enumerate(map(int, worlds)):
        os.environ["STORE"] = f"file://{folder}/store-{number}"
        processes = [_forked(scenarios, Path(folder), rank, world) for rank in range(world)]
        ends = {0, signal.SIGKILL} if os.environ["KILLS"] == "1" else {0}
        failures = sum(os.waitpid(process, 0)[1] not in ends for process in processes)
        if failures:
            return failures
    return 0


def _forked(scenarios: list[Callable[[Path], None]], folder: Path, rank: int, world: int) -> int:
    process = os.fork()
    if process == 0:
        code = 1
        try:
            _carry_out(scenarios, folder, rank, world)
            code = 0
        except BaseException:
            print(f"process {rank} of {world}:\n{traceback.format_exc()}", flush=True)
        os._exit(code)  # without the clean-up of what it was forked from
    return process


def _carry_out(scenarios: list[Callable[[Path], None]], folder: Path, rank: int, world: int) -> None:
    from torch import distributed

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    distributed.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=world)
    for scenario in scenarios:
        scenario(folder)
        distributed.barrier()  # so that none ends while another still needs it


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
