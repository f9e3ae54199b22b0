"""Checkpoints are read without running code, and are whole or not there at all."""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ademamix.checkpoints import CheckpointError, containers, convert
from written_by import ROWS, adamw

PARAMETERS = 3_000_000  # enough for writing to take a while


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def state(size: int = 3) -> dict[str, Any]:
    param = torch.ones(size, requires_grad=True)
    optimizer = adamw([param])
    param.grad = torch.ones(size)
    optimizer.step()
    return optimizer.state_dict()


def test_a_file_that_names_code_is_read_only_if_asked(tmp_path: Path) -> None:
    settings = argparse.Namespace(width=4)
    torch.save({"optimizer": state(), "settings": settings}, tmp_path / "source.pt")
    with pytest.raises(CheckpointError, match=r"holds argparse.Namespace.*--unsafe-pickle"):
        convert(tmp_path / "source.pt", tmp_path / "new.pt")
    convert(tmp_path / "source.pt", tmp_path / "new.pt", unsafe_pickle=True)
    assert torch.load(tmp_path / "new.pt", weights_only=False)["settings"] == settings


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_description_of_a_folder_runs_nothing(tmp_path: Path, protocol: int) -> None:
    source = ROWS["distributed"].begin(tmp_path)
    (source / ".metadata").write_bytes(pickle.dumps(Malicious(tmp_path / "ran"), protocol))
    with pytest.raises(CheckpointError, match=r"posix.mkdir.*--unsafe-pickle"):
        containers.read(source)
    assert not (tmp_path / "ran").exists()


def test_values_in_a_folder_run_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        tree = {"optimizer": state(), "extra": Malicious(tmp_path / "ran")}
        dcp.save(tree, checkpoint_id=tmp_path / "source", no_dist=True)
    with pytest.raises(CheckpointError, match=r"posix.mkdir.*--unsafe-pickle"):
        containers.read(tmp_path / "source")
    assert not (tmp_path / "ran").exists()
    containers.read(tmp_path / "source", unsafe_pickle=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "folder", "described", "orbax"])
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path: Path, damage: str) -> None:
    path = ROWS["plain"].begin(tmp_path)
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not a checkpoint\n" * 100)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:2000])
    else:
        path = tmp_path / "folder"
        path.mkdir()
        if damage == "described":
            (path / ".metadata").write_bytes(b"nothing")
        elif damage == "orbax":
            (path / "_METADATA").write_text("{}")
    with pytest.raises(CheckpointError) as raised:
        containers.read(path)
    assert repr(str(path)) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_older_files_of_torch_are_read(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (report,) = convert(tmp_path / "old.pt", tmp_path / "new.pt")
    assert report.label == "the whole file"


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_conversion_leaves_nothing_half_written(tmp_path: Path, stop: signal.Signals) -> None:
    torch.save(state(PARAMETERS), tmp_path / "source.pt")
    command = [sys.executable, "-m", "ademamix", "convert", str(tmp_path / "source.pt"), str(tmp_path / "new.pt")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while process.poll() is None and not list(tmp_path.glob(".new.pt.*.part")):
        time.sleep(0.001)
    process.send_signal(stop)
    _, said = process.communicate()
    assert process.returncode != 0, said
    assert not (tmp_path / "new.pt").exists()
    if stop == signal.SIGINT:
        assert [file.name for file in tmp_path.iterdir()] == ["source.pt"]


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_a_full_disk_is_named_and_nothing_stays(tmp_path: Path, size: int) -> None:
    """Files may have no more than so many bytes; where there is much to write, torch reports something else."""
    torch.save(state(size), tmp_path / "source.pt")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot write .*new.pt': File too large"):
            convert(tmp_path / "source.pt", tmp_path / "new.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [file.name for file in tmp_path.iterdir()] == ["source.pt"]
