"""Runs on a Ray cluster of two nodes, which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from ademamix.lab.config import Run
from ademamix.lab.runs import ray_tasks
from ademamix.lab.runs.carriers import Event, Events, Worker
from ademamix.lab.runs.execution import Options
from ademamix.lab.runs.interrupt import EXIT_CODE
from ademamix.lab.runs.record import RunError, RunFolder
from ademamix.lab.runs.runner import Status, run_all
from lab_runs import SMALL, TINY, changed, outcome
from lab_text import PATIENCE

pytestmark = pytest.mark.cluster

LOOPBACK = "127.0.0.2"  # not .1, for which Ray puts the address of this machine in its network
QUICK = changed(TINY, steps=1000)


class Nodes:
    """A Ray cluster on this machine: a head without cores, and nodes with one core each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._settings = {"node_ip_address": LOOPBACK, "object_store_memory": 100 << 20, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args={**self._settings, "num_cpus": 0})
        self.address = self._cluster.address
        self._nodes = [self._added(), self._added()]

    def _added(self) -> Any:
        return self._cluster.add_node(**self._settings, num_cpus=1)

    def kill_that_of(self, folder: Path) -> bool:
        """Kill all processes of the node that trains the run in a folder, and add another node."""
        for node in self._nodes:
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            processes = [raylet, *raylet.children(recursive=True)]
            if any(str(folder / "lock") in _open_files(process) for process in processes):
                for number in (signal.SIGSTOP, signal.SIGKILL):  # as one: none sees another die
                    for process in processes:
                        process.send_signal(number)
                self._cluster.remove_node(node, allow_graceful=False)
                self._nodes.remove(node)
                self._nodes.append(self._added())
                return True
        return False

    def shut_down(self) -> None:
        self._cluster.shutdown()


def _open_files(process: psutil.Process) -> list[str]:
    try:
        return [file.path for file in process.open_files()]
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    os.environ.update(ray_tasks.SETTINGS)
    started = Nodes()
    yield started
    started.shut_down()


@pytest.fixture
def carrier(nodes: Nodes) -> Iterator[ray_tasks.RayTasks]:
    import ray

    yield ray_tasks.connect(nodes.address)
    ray.shutdown()


@dataclass(frozen=True)
class Listener:
    """Hears what the workers of a carrier say."""

    carrier: ray_tasks.RayTasks
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def at_once(self, device: str, threads: int) -> int:
        return self.carrier.at_once(device, threads)

    def devices(self, device: str) -> list[str]:
        return self.carrier.devices(device)

    def started(self, options: Options, threads: int, events: Events) -> AbstractContextManager[Worker]:
        return self.carrier.started(options, threads, _Passing(events, self.heard))

    def steps(self, name: str) -> list[int]:
        """Return the steps that a run reported, in the order in which they were trained."""
        return [told["progress"]["step"] for run, told in self.heard if run == name and "progress" in told]


@dataclass(frozen=True)
class _Passing:
    events: Events
    heard: list[tuple[str, dict[str, Any]]]

    def put(self, event: Event) -> None:
        assert event.worker.run is not None
        self.heard.append((event.worker.run, event.message))
        self.events.put(event)


def test_runs_whose_nodes_are_killed_end_as_undisturbed_ones(
    nodes: Nodes, carrier: ray_tasks.RayTasks, tmp_path: Path
) -> None:
    moments = {"as it begins": 0, "at once": 1, "early": 200, "half way": 500, "late": 700}
    runs = {name: changed(QUICK, seed=seed) for seed, name in enumerate(moments)}
    folders = {name: RunFolder(tmp_path / "cluster" / "runs", run) for name, run in runs.items()}
    continued: dict[str, int] = {}  # from which step, by run whose node was killed

    def watch(statuses: Mapping[str, Status]) -> None:
        for name, status in statuses.items():
            step = status.progress.step if status.progress else 0
            if name not in continued and not status.ended and step >= moments[name]:
                if nodes.kill_that_of(folders[name].path):
                    saved = folders[name].load_checkpoint()
                    continued[name] = saved[0] if saved else 0

    listener = Listener(carrier)
    options = Options(tmp_path / "cluster", save_every=0.02, save_share=1.0)
    run_all(runs, options, carrier=listener, watch=watch)

    run_all(runs, Options(tmp_path / "here"))
    for name, run in runs.items():
        assert outcome(run, tmp_path / "cluster") == outcome(run, tmp_path / "here")
        steps = listener.steps(name)
        again = [step for step, count in Counter(steps).items() if count > 1]
        assert sorted(set(steps)) == list(range(4, 1001, 4))  # reported every 4 steps: all were trained
        assert all(step > continued[name] for step in again)  # none twice of those that were saved
    assert continued.keys() == moments.keys()
    assert continued["late"] > continued["half way"] > continued["early"] > 0
    kinds = Counter((name, kind) for name, message in listener.heard for kind in message)
    assert all(kinds[name, "notice"] == kinds[name, "finished"] == 1 for name in runs)
    assert not any(tmp_path.glob("cluster/.*"))  # the signs for the nodes are gone
