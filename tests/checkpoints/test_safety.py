"""Checkpoints are read without running code, and are whole or not there at all."""

from __future__ import annotations

import argparse
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ademamix import AdEMAMix
from ademamix.checkpoints import CheckpointError, containers, convert, inspect
from fixtures.foreign import write_foreign as foreign
from written_by import ROWS, adamw

FOREIGN = Path(foreign.__file__).parent
Change = Callable[[dict[str, Any]], Any]
PARAMETERS = 3_000_000  # enough for writing to take a while


class Malicious:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def state(size: int = 3, optimizer: Any = adamw) -> dict[str, Any]:
    param = torch.ones(size, requires_grad=True)
    made = optimizer([("w", param)])
    param.grad = torch.ones(size)
    made.step()
    saved: dict[str, Any] = made.state_dict()
    return saved


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
    "pickle": (pickle.dumps({"lr": 1.0}), CUT),
    "archive": (b"PK\x03\x04" + bytes(200), CUT),
}
FOLDERS: dict[str, tuple[str, bytes, str]] = {
    "nothing": ("other", b"", "there is no optimizer state in"),
    "distributed, text": (".metadata", b"nothing", "'.metadata' or a file of values in it is cut off or changed"),
    "distributed, empty": (".metadata", b"", "'.metadata' or a file of values in it is cut off or changed"),
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


def test_a_device_is_no_checkpoint() -> None:
    assert "is a device or a pipe: name a file or a folder" in refusal(Path(os.devnull))


def test_a_class_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argparse, "Own", type("Own", (), {"__module__": "argparse"}), raising=False)
    torch.save({"optimizer": state(), "settings": argparse.Own()}, tmp_path / "source.pt")  # type: ignore[attr-defined]
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"names code that is not here: .*Own.*the program that wrote it"):
        containers.read(tmp_path / "source.pt", unsafe_pickle=True)


def entry(name: str, value: Any) -> Change:
    return lambda saved: saved["state"][0].update({name: value})


def setting(name: str, value: Any) -> Change:
    return lambda saved: saved["param_groups"][0].update({name: value})


def whole(key: str, value: Any) -> Change:
    return lambda saved: saved.update({key: value})


DENSE = "must be a dense tensor that has its values, got a tensor"
NUMBERS = "must have floating-point numbers, or codes with their scales, got a tensor, "
STEPS = "must count steps, with a whole number of at least 0, got"
MALFORMED: dict[str, tuple[Change, str]] = {  # whose they are does not matter
    "none": (entry("exp_avg", None), "exp_avg of parameter w must be a tensor, got None"),
    "number": (entry("exp_avg", 1.5), "exp_avg of parameter w must be a tensor, got 1.5"),
    "text": (entry("exp_avg_sq", "x"), "exp_avg_sq of parameter w must be a tensor, got 'x'"),
    "sparse": (entry("exp_avg", torch.eye(3).to_sparse()), f"exp_avg of parameter w {DENSE} as torch.sparse_coo"),
    "meta": (entry("exp_avg", torch.ones(3, device="meta")), f"exp_avg of parameter w {DENSE} without values"),
    "meta step": (entry("step", torch.ones((), device="meta")), f"step of parameter w {DENSE} without values"),
    "bool": (entry("exp_avg", torch.ones(3, dtype=torch.bool)), f"exp_avg of parameter w {NUMBERS}torch.bool"),
    "codes": (entry("exp_avg_sq", torch.ones(3, dtype=torch.uint8)), f"exp_avg_sq of parameter w {NUMBERS}torch.uint8"),
    "shape": (entry("exp_avg", torch.ones(2)), "exp_avg of parameter w must have the shape of exp_avg_sq, (3,), got"),
    "step NaN": (entry("step", math.nan), f"step of parameter w {STEPS} nan"),
    "step infinite": (entry("step", torch.tensor(math.inf)), f"step of parameter w {STEPS} inf"),
    "step text": (entry("step", "x"), f"step of parameter w {STEPS} 'x'"),
    "step none": (entry("step", None), f"step of parameter w {STEPS} None"),
    "step negative": (entry("step", -1.0), f"step of parameter w {STEPS} -1.0"),
    "steps": (entry("step", torch.ones(2)), f"step of parameter w {STEPS} a tensor, torch.float32 of shape (2,)"),
    "entries": (whole("state", {0: 1.0}), "the state of parameter w must be a dict, got 1.0"),
    "no groups": (whole("param_groups", []), "has no parameter groups, or only empty ones"),
    "params": (setting("params", None), "params of group 0 must be a list of numbers or names, got None"),
    "names": (setting("param_names", ["w", "b"]), "param_names of group 0 must be a list of 1 names"),
    "betas": (setting("betas", 0.9), "betas of group 0 must be two or three numbers, got 0.9"),
    "beta": (setting("betas", (0.9, 1.5, 0.99)), "beta2 of group 0 must be a number in [0, 1), got 1.5"),
    "lr": (setting("lr", torch.ones(2)), "lr of group 0 must be a value, or a tensor of one element"),
}
OURS = partial(AdEMAMix, total_steps=1000)
SETTING = "group 0 has a setting that no step can be taken with: "
MALFORMED_OURS: dict[str, tuple[Change, str]] = {
    "slow": (entry("exp_avg_slow", None), "exp_avg_slow of parameter w must be a tensor, got None"),
    "slow step": (entry("slow_step", math.nan), f"slow_step of parameter w {STEPS} nan"),
    "horizon": (setting("total_steps", "x"), f"{SETTING}total_steps must be an integer >= 1"),
    "warm-up": (setting("alpha_warmup", "x"), f"{SETTING}alpha_warmup must be an integer >= 0 or None, got 'x'"),
    "betas": (setting("betas", (0.9, 0.99)), f"{SETTING}betas must be (beta1, beta2, beta3)"),
    "lr": (setting("lr", "x"), f"{SETTING}lr must be a number"),
    "both": (lambda saved: saved["param_groups"][0].update(fused=True, foreach=True), f"{SETTING}`fused` and"),
    "given": (setting("given", None), "given of group 0 must be a list of settings, got None"),
}


@pytest.mark.parametrize(
    ("optimizer", "change"),
    [
        *[pytest.param(torch.optim.AdamW, row, id=f"AdamW-{name}") for name, row in MALFORMED.items()],
        *[pytest.param(OURS, row, id=f"ours-{name}") for name, row in (MALFORMED | MALFORMED_OURS).items()],
    ],
)
def test_a_malformed_state_is_refused_with_its_place(
    tmp_path: Path, optimizer: Any, change: tuple[Change, str]
) -> None:
    """By both commands, in the same words, whatever torch or the optimizer would have said of it."""
    apply, expected = change
    saved = state(optimizer=optimizer)
    apply(saved)
    torch.save({"optimizer": saved}, tmp_path / "source.pt")
    for read in (inspect, lambda source: convert(source, tmp_path / "new.pt", total_steps=1000)):
        with pytest.raises(CheckpointError) as raised:
            read(tmp_path / "source.pt")
        said = str(raised.value)
        assert said.startswith("at optimizer: ")
        assert expected in said
        assert "\n" not in said
    assert [file.name for file in tmp_path.iterdir()] == ["source.pt"]


WRAPPER = "__bnb_optimizer_quant_state__"
MALFORMED_OF_OTHERS: dict[str, tuple[str, Change, str]] = {
    "wrapper": ("bitsandbytes-8", entry(WRAPPER, None), f"{WRAPPER} of parameter 0 must be a dict, got None"),
    "table": (
        "bitsandbytes-8",
        lambda saved: saved["state"][0][WRAPPER].update(qmap1=torch.ones(7)),
        "the codes of this state do not fit its scales or its table of values",
    ),
    "clock": ("heavyball-risen", setting("step_count", "x"), f"step_count of group 0 {STEPS} 'x'"),
    "m1": ("authors-risen", entry("exp_avg_fast", 1.5), "exp_avg_fast of parameter 0 must be a tensor, got 1.5"),
}


@pytest.mark.parametrize("name", MALFORMED_OF_OTHERS)
def test_a_malformed_state_of_another_ademamix_is_refused(tmp_path: Path, name: str) -> None:
    file, apply, expected = MALFORMED_OF_OTHERS[name]
    saved = torch.load(FOREIGN / f"{file}.pt")
    apply(saved["optimizer"])
    torch.save(saved, tmp_path / "source.pt")
    with pytest.raises(CheckpointError) as raised:
        inspect(tmp_path / "source.pt")
    assert expected in str(raised.value)


@pytest.mark.parametrize("other", [torch.optim.RAdam, torch.optim.NAdam, torch.optim.Adamax])
def test_other_adams_are_refused(tmp_path: Path, other: Any) -> None:
    torch.save(state(optimizer=other), tmp_path / "source.pt")
    with pytest.raises(CheckpointError, match=r"the state of (another optimizer|torch\.optim\.RAdam)"):
        convert(tmp_path / "source.pt", tmp_path / "new.pt")


def test_a_group_of_nothing_is_no_mistake(tmp_path: Path) -> None:
    """torch.distributed.checkpoint keeps no settings of a group without parameters."""
    saved = state(optimizer=OURS)
    del saved["param_groups"][0]["param_names"]  # nor names
    saved["param_groups"].append({"params": []})
    torch.save(saved, tmp_path / "source.pt")
    (found,) = inspect(tmp_path / "source.pt").states
    assert [parameter.name for parameter in found.parameters] == ["0"]


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
