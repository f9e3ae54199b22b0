"""Checkpoints are read without running code, and are whole or not there at all."""

from __future__ import annotations

import argparse
import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ademamix.checkpoints import CheckpointError, containers, convert, distributed_folders, inspect
from fixtures.foreign import write_foreign as foreign
from written_by import ROWS, state

PARAMETERS = 3_000_000  # enough for writing to take a while


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


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


CUT = "it is cut off or changed"
NOT_ORBAX = "'_METADATA' describes no arrays"
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty: whatever wrote it was interrupted"),
    "short text": (b"epoch: 3\n", r"not a file of torch.save: it begins with b'epoch: 3\n'. Name the file"),
    "long text": (b"not a checkpoint\n" * 100, r"it begins with b'not a checkpoint\nnot a c'"),
    "pickle": (pickle.dumps({"lr": 1.0}, 2), f"a file of torch.save (Invalid magic number; corrupt file?): {CUT}"),
    "archive": (b"PK\x03\x04" + bytes(200), f"failed finding central directory): {CUT}"),
}
FOLDERS: dict[str, tuple[str, bytes, str]] = {
    "nothing": ("other", b"", "there is no optimizer state in"),
    "distributed, text": (".metadata", b"nothing", "in it is cut off or changed (invalid load key, 'n')"),
    "distributed, empty": (
        ".metadata",
        b"",
        "'.metadata' or a file of values in it is cut off or changed (Ran out of input)",
    ),
    "distributed, other": (".metadata", pickle.dumps({"lr": 1.0}), "does not describe a checkpoint: name a folder"),
    "orbax, other": ("_METADATA", b"{}", NOT_ORBAX),
    "orbax, text": ("_METADATA", b"nothing", NOT_ORBAX),
    "orbax, empty": ("_METADATA", b"", NOT_ORBAX),
    "orbax, alone": ("_METADATA", b'{"tree_metadata": {}}', "files are missing or changed"),
    "trainer": ("optimizer.pt", b"", "is empty"),
}


def refusal(path: Path) -> str:
    """Return why a checkpoint is not read; it names the file."""
    with pytest.raises(CheckpointError) as raised:
        containers.read(path)
    said = str(raised.value)
    assert repr(str(path))[:-1] in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize("damage", FILES)
def test_a_file_that_cannot_be_read_is_said_in_a_sentence(tmp_path: Path, damage: str) -> None:
    content, expected = FILES[damage]
    (tmp_path / "file.pt").write_bytes(content)
    assert expected in refusal(tmp_path / "file.pt")


@pytest.mark.parametrize("damage", FOLDERS)
def test_a_folder_that_cannot_be_read_is_said_in_a_sentence(tmp_path: Path, damage: str) -> None:
    name, content, expected = FOLDERS[damage]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_bytes(content)
    assert expected in refusal(tmp_path / "folder")


def test_what_is_cut_off_or_missing_is_said(tmp_path: Path) -> None:
    file = ROWS["plain"].begin(tmp_path)
    file.write_bytes(file.read_bytes()[:2000])
    assert CUT in refusal(file)
    folder = ROWS["distributed"].begin(tmp_path)
    (values,) = folder.glob("*.distcp")
    values.write_bytes(values.read_bytes()[:1500])
    assert "a file of values in it is cut off or changed" in refusal(folder)
    values.unlink()
    assert f"its file '{values.name}' is missing" in refusal(folder)


def test_a_model_of_torchscript_is_named(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(2)), tmp_path / "model.pt")
    assert "is a model of torch.jit.save, which has no optimizer state" in refusal(tmp_path / "model.pt")


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: 99 bytes. Error 12"
)
LITTLE_MEMORY: dict[str, tuple[BaseException, str]] = {
    "Python": (MemoryError(), "(MemoryError)"),
    "torch": (RuntimeError(ALLOCATOR), "(DefaultCPUAllocator: can't allocate memory: 99 bytes)"),
    "mmap": (RuntimeError("unable to mmap 9 bytes: Cannot allocate memory (12)"), "(unable to mmap 9 bytes: Cannot"),
}
PLACES = {"plain": (torch, "load"), "distributed": (distributed_folders._Reader, "read_data")}


@pytest.mark.parametrize("container", PLACES)
@pytest.mark.parametrize("reason", LITTLE_MEMORY)
def test_too_little_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, container: str
) -> None:
    source = ROWS[container].begin(tmp_path)
    error, expected = LITTLE_MEMORY[reason]
    monkeypatch.setattr(*PLACES[container], failing(error))
    said = refusal(source)
    assert said.startswith("there is not enough memory to read ")
    assert expected in said


@pytest.mark.parametrize("container", PLACES)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_what_the_disk_says_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, container: str
) -> None:
    """Also where torch has wrapped it."""
    source = ROWS[container].begin(tmp_path)
    error = RuntimeError("wrapped")
    error.__cause__ = OSError(number, os.strerror(number), "values")
    monkeypatch.setattr(*PLACES[container], failing(error))
    with pytest.raises(OSError, match=os.strerror(number)) as raised:
        containers.read(source)
    assert (raised.value.errno, raised.value.filename) == (number, "values")


def test_too_little_memory_for_codes_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "repeat_interleave", failing(RuntimeError(ALLOCATOR)))
    with pytest.raises(CheckpointError, match="not enough memory to read the codes of this state"):
        convert(Path(foreign.__file__).with_name("bitsandbytes-8.pt"), tmp_path / "new.pt")


def test_what_holds_itself_is_said(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"optimizer": state()}
    whole["self"] = whole
    inner: dict[str, Any] = state()
    inner["param_groups"][0]["self"] = inner["param_groups"]
    for saved in (whole, inner):
        torch.save(saved, tmp_path / "cyclic.pt")
        for read in (inspect, lambda source: convert(source, tmp_path / "new.pt")):
            with pytest.raises(CheckpointError, match="a dict or list that holds itself"):
                read(tmp_path / "cyclic.pt")


def test_a_folder_of_checkpoints_names_them(tmp_path: Path) -> None:
    """Such as the output folder of a trainer."""
    for name in ("checkpoint-5", "logs"):
        (tmp_path / "out" / name).mkdir(parents=True)
    torch.save(state(), tmp_path / "out" / "checkpoint-5" / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"one of the folders in it that may have one: checkpoint-5\.$"):
        containers.read(tmp_path / "out")
    torch.save(state(), tmp_path / "out" / "logs" / "run.ckpt")
    with pytest.raises(CheckpointError, match=r"looked for in optimizer\*\.pt and .* may have one: run\.ckpt\.$"):
        containers.read(tmp_path / "out" / "logs")


def test_a_device_is_no_checkpoint() -> None:
    assert "is a device or a pipe: name a file or a folder" in refusal(Path(os.devnull))


def test_a_class_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argparse, "Own", type("Own", (), {"__module__": "argparse"}), raising=False)
    torch.save({"optimizer": state(), "settings": argparse.Own()}, tmp_path / "source.pt")  # type: ignore[attr-defined]
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"names code that is not here: .*Own.*the program that wrote it"):
        containers.read(tmp_path / "source.pt", unsafe_pickle=True)


def test_tensors_without_values_beside_a_state_are_taken_over(tmp_path: Path) -> None:
    model = {"weight": torch.ones(3, device="meta"), "embedding": torch.eye(3).to_sparse()}
    torch.save({"model": model, "optimizer": state()}, tmp_path / "source.pt")
    convert(tmp_path / "source.pt", tmp_path / "new.pt")
    written = torch.load(tmp_path / "new.pt")["model"]
    assert written["weight"].is_meta
    assert torch.equal(written["embedding"].to_dense(), torch.eye(3))


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
