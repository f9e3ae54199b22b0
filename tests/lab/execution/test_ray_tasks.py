"""Runs on a Ray cluster of two nodes, which are killed."""

from __future__ import annotations

import itertools
import os
import re
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
from filelock import FileLock

from ademamix.lab.execution import ray_tasks
from ademamix.lab.execution.carriers import Event, Events, Worker
from ademamix.lab.execution.interrupt import EXIT_CODE
from ademamix.lab.execution.options import Options
from ademamix.lab.execution.runner import Status, run_all
from ademamix.lab.runs.record import RunError, RunFolder
from lab_runs import SMALL, TINY, changed, in_training, outcome
from lab_text import PATIENCE

pytestmark = pytest.mark.cluster

LOOPBACK = "127.0.0.2"  # not .1, for which Ray puts the address of this machine in its network


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
        """Kill all processes of the node that trains the run in a folder, if there is one, and add another node."""
        for node in self._nodes:
            processes = _processes(node)
            if any(_trains(process, folder) for process in processes):
                for number in (signal.SIGSTOP, signal.SIGKILL):  # as one: none sees another die
                    for process in processes:
                        process.send_signal(number)
                self._nodes.remove(node)
                with self._in_no_hurry():
                    self._cluster.remove_node(node, allow_graceful=False)
                    self._nodes.append(self._added())
                return True
        return False

    @contextmanager
    def _in_no_hurry(self) -> Iterator[None]:
        """Have the other runs wait: they might end before it is their turn."""
        training = [process for node in self._nodes for process in _processes(node) if _trains(process)]
        for process in training:
            process.suspend()
        yield
        for process in training:
            process.resume()

    def shut_down_that_of(self, folder: Path) -> bool:
        """Ask the process that trains the run in a folder to end, as the shutdown of a machine does."""
        for process in itertools.chain(*map(_processes, self._nodes)):
            if _trains(process, folder):
                process.terminate()
                return True
        return False

    def shut_down(self) -> None:
        self._cluster.shutdown()


def _processes(node: Any) -> list[psutil.Process]:
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [raylet, *raylet.children(recursive=True)]


def _trains(process: psutil.Process, folder: Path | None = None) -> bool:
    """Tell whether a process trains a run, or the one in a folder."""
    try:
        locks = [Path(file.path) for file in process.open_files() if Path(file.path).name == "lock"]
    except psutil.NoSuchProcess:
        return False
    return bool(locks) if folder is None else folder / "lock" in locks


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


def _saved_steps(folder: Path) -> list[int]:
    return [int(path.stem.split("-")[0]) for path in folder.glob("checkpoints/*.pt")]


def test_runs_whose_nodes_are_killed_end_as_undisturbed_ones(
    nodes: Nodes, carrier: ray_tasks.RayTasks, tmp_path: Path
) -> None:
    moments = {"as it begins": 0, "at once": 1, "early": 100, "half way": 250, "late": 400, "shut down": 150}
    runs = {name: changed(TINY, steps=600, seed=seed) for seed, name in enumerate(moments)}
    folders = {name: RunFolder(tmp_path / "cluster" / "runs", run).path for name, run in runs.items()}
    saved: dict[str, int] = {}  # the last step that was, by run whose node was killed

    def watch(statuses: Mapping[str, Status]) -> None:
        for name in statuses.keys() - saved.keys():
            progress = statuses[name].progress
            end = nodes.shut_down_that_of if name == "shut down" else nodes.kill_that_of
            if (progress.step if progress else 0) >= moments[name] and end(folders[name]):
                saved[name] = max(_saved_steps(folders[name]), default=0)

    listener = Listener(carrier)
    always = Options(tmp_path / "cluster", save_every=0.0, save_share=1.0)
    run_all(runs, always, carrier=listener, watch=watch)

    assert saved.keys() == moments.keys()
    assert all(saved[name] >= moment - 1 for name, moment in moments.items())
    run_all(runs, Options(tmp_path / "here"))
    for name, run in runs.items():
        assert outcome(run, tmp_path / "cluster") == outcome(run, tmp_path / "here")
        steps = listener.steps(name)
        assert sorted(set(steps)) == list(range(4, 601, 4))  # reported every 4 steps: all were trained
        assert all(step > saved[name] for step, count in Counter(steps).items() if count > 1)
    kinds = Counter((name, kind) for name, message in listener.heard for kind in message)
    assert all(kinds[name, "notice"] == kinds[name, "finished"] == 1 for name in runs)
    assert not any(tmp_path.glob("cluster/.*"))  # the signs for the nodes are gone


def _command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ademamix", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _in_training(command: subprocess.Popen[str], out: Path) -> None:
    while len(in_training(out)) < 2:
        assert command.poll() is None, command.communicate()[1]
        time.sleep(0.1)


def test_ctrl_c_saves_and_the_same_command_continues(nodes: Nodes, tmp_path: Path) -> None:
    arguments = ["compare", *SMALL, "--optimizers", "adamw", "ademamix", "--steps", "2k"]
    arguments += ["--ray", nodes.address, "--out", str(tmp_path)]
    with _command(*arguments) as comparison:
        _in_training(comparison, tmp_path)
        comparison.send_signal(signal.SIGINT)
        _, told = comparison.communicate(timeout=PATIENCE)
    assert comparison.returncode == EXIT_CODE, told
    assert told.endswith("ademamix: stopped, and saved. The same command continues from here.\n")
    assert all(map(_saved_steps, (tmp_path / "runs").iterdir()))
    with _command(*arguments) as comparison:
        report, told = comparison.communicate(timeout=PATIENCE)
    assert comparison.returncode == 0, told
    assert "AdEMAMix" in report
    assert "aylet" not in report + told  # Ray keeps its own affairs to itself
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 2


def test_runs_stop_when_the_command_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    arguments = ["compare", *SMALL, "--steps", "100k", "--ray", nodes.address, "--out", str(tmp_path)]
    with _command(*arguments) as comparison:
        _in_training(comparison, tmp_path)
        comparison.kill()
    for run in (tmp_path / "runs").iterdir():
        with FileLock(run / "lock", timeout=PATIENCE):  # no process holds it
            assert not (run / "result.json").exists()


def test_trials_of_a_sweep_are_tasks(nodes: Nodes, tmp_path: Path) -> None:
    settings = ["lr=1e-3,1e-2", *SMALL, "--steps", "50"]
    with _command("sweep", "adamw", *settings, "--ray", nodes.address, "--out", str(tmp_path)) as sweep:
        report, told = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, told
    assert report.startswith("2 trials of AdamW, seed 0: 2 finished.")
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 2


def test_a_run_that_no_node_has_room_for_is_refused(carrier: ray_tasks.RayTasks) -> None:
    assert carrier.at_once("cpu", 1) == 2
    for device, threads, needs in (("cpu", 2, "2 cores"), ("cuda", 1, "1 core (--threads) and a GPU")):
        with pytest.raises(RunError, match=re.escape(f"needs {needs}")):
            carrier.at_once(device, threads)


def test_a_run_that_fails_on_its_node_says_why(carrier: ray_tasks.RayTasks, tmp_path: Path) -> None:
    nowhere = changed(TINY, data={"kind": "text", "source": str(tmp_path / "nowhere")})
    with pytest.raises(RunError, match="lost: there is no text at "):
        run_all({"lost": nowhere}, Options(tmp_path), carrier=carrier)


def test_an_address_that_nobody_answers_is_told_in_one_sentence(tmp_path: Path) -> None:
    address = f"{LOOPBACK}:1"
    with _command("compare", "--ray", address, "--out", str(tmp_path)) as comparison:
        report, told = comparison.communicate(timeout=PATIENCE)
    assert comparison.returncode == 2
    assert report == ""
    assert told.startswith(f"ademamix: error: cannot connect to a Ray cluster at '{address}' (")
    assert len(told.splitlines()) == 1


def test_a_node_without_the_folder_is_told_in_one_sentence(tmp_path: Path) -> None:
    order = ray_tasks.Order(Options(tmp_path), 1, sign=tmp_path / "sign", working_directory=tmp_path)
    (message,) = ray_tasks.carry_out(TINY, [], order)
    assert f"does not see the folder {str(tmp_path)!r}" in message["failed"]
    assert not any(tmp_path.iterdir())
