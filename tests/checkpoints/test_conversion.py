"""A converted run continues: in every container, and as the optimizer that it was converted to."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ademamix import AdEMAMix, formats
from ademamix.checkpoints import CheckpointError, containers, convert, inspect, trees
from ademamix.pytorch import block_codes
from ademamix.pytorch.parameter_state import values_of
from written_by import ROWS, SETTINGS, adamw, state

TOLERANCE = 1e-6  # of parameters of about 1, after 100 steps; the arithmetic is in fp32


def ademamix(params: Any, fused: bool | None = None) -> AdEMAMix:
    """Return an optimizer without settings of its own: those of the checkpoint count."""
    return AdEMAMix(params, alpha_warmup=0, beta3_warmup=0, fused=fused)


@pytest.fixture(scope="module", params=ROWS)
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A row, and a checkpoint that it has written after steps of AdamW."""
    row = ROWS[request.param]
    return row, row.begin(tmp_path_factory.mktemp(request.param))


def beside(path: Path, name: str) -> Path:
    """Return a new name beside a checkpoint, with the same ending."""
    return path.with_name(f"{name}{path.suffix}")


@pytest.mark.filterwarnings("ignore:.*schedule was replaced")
def test_adamw_continues_as_ademamix_and_back(begun: tuple[Any, Path]) -> None:
    """With alpha = 0 AdEMAMix is AdamW, in numbers as well; the way back has the bits of the original."""
    row, source = begun
    there, back = beside(source, "there"), beside(source, "back")
    reports = convert(source, there, alpha=0.0)
    assert {report.origin for report in reports} == {"AdamW"}
    expected = row.continued(source, adamw)
    for param, other in zip(row.continued(there, ademamix), expected, strict=True):
        torch.testing.assert_close(param, other, rtol=TOLERANCE, atol=TOLERANCE)
    convert(there, back, "adamw")
    for param, other in zip(row.continued(back, adamw), expected, strict=True):
        assert torch.equal(param, other)


def test_everything_else_stays(begun: tuple[Any, Path]) -> None:
    _, source = begun
    destination = beside(source, "else")
    convert(source, destination)
    old, new = containers.read(source), containers.read(destination)
    assert [location.keys for location in new.locations] == [location.keys for location in old.locations]
    for before, after in zip(old.parts, new.parts, strict=True):
        tree = after.tree
        for location in old.locations:
            tree = trees.replaced(tree, location.keys, location.node)
        assert trees.difference(before.tree, tree) is None
    if source.is_dir() and old.parts[0].place != Path():
        converted = {part.place for part in old.parts}
        for file in (path.relative_to(source) for path in source.rglob("*") if path.is_file()):
            if file not in converted:
                assert (destination / file).read_bytes() == (source / file).read_bytes()


def test_settings_are_those_of_a_switch_unless_given(begun: tuple[Any, Path]) -> None:
    _, source = begun
    destination = beside(source, "settings")
    convert(source, destination, total_steps=5000, slow_clip=30.0)
    for location in containers.read(destination).locations:
        groups = location.node.get("param_groups") or [
            {key.rpartition(".")[2]: value for key, value in location.node.items() if ".2.bias." in key}
        ]
        for group in groups:
            assert (group["alpha"], group["alpha_warmup"], group["beta3_warmup"]) == (2.0, 0, 0)
            assert (group["total_steps"], group["slow_clip"]) == (5000, 30.0)
            assert tuple(group["betas"]) == (*SETTINGS["betas"], 1 - 1 / 200)
            assert (group["lr"], group["eps"], group["weight_decay"]) == (3e-3, 1e-7, 0.1)


NO_HORIZON = r"no total_steps was given, so beta3 = 0\.9\d+ was chosen"


@pytest.mark.parametrize(
    ("settings", "noted"),
    [
        ({}, True),
        ({"total_steps": None}, True),
        ({"total_steps": None, "beta3": None}, True),
        ({"total_steps": 50_000}, False),
        ({"total_steps": "open"}, False),
        ({"beta3": 0.999}, False),
        ({"alpha": 0.0}, False),
    ],
    ids=str,
)
def test_a_switch_without_a_length_is_noted(tmp_path: Path, settings: dict[str, Any], noted: bool) -> None:
    """In Python a setting may be None, which says as little as leaving it out."""
    torch.save(state(), tmp_path / "adamw.pt")
    (report,) = convert(tmp_path / "adamw.pt", tmp_path / "ours.pt", **settings)
    assert any(re.match(NO_HORIZON, note) for note in report.notes) is noted


def test_another_horizon_is_noted_with_what_it_does(tmp_path: Path) -> None:
    saved = state(optimizer=partial(AdEMAMix, total_steps=100))
    for clock in ("step", "slow_step"):
        saved["state"][0][clock].fill_(80)
    torch.save(saved, tmp_path / "source.pt")
    (report,) = convert(tmp_path / "source.pt", tmp_path / "new.pt", total_steps=10_000)
    assert any("slow step 80, alpha(t) goes from 4 to 0.04" in note for note in report.notes)
    (report,) = convert(tmp_path / "source.pt", tmp_path / "same.pt", state_storage="bf16")
    assert not any("alpha(t)" in note for note in report.notes)


def test_what_may_be_another_optimizer_is_noted(tmp_path: Path) -> None:
    """As older torch writes both Adam and AdamW."""
    saved = state(optimizer=partial(torch.optim.Adam, weight_decay=0.1))
    del saved["param_groups"][0]["decoupled_weight_decay"]
    torch.save(saved, tmp_path / "source.pt")
    (report,) = convert(tmp_path / "source.pt", tmp_path / "new.pt", total_steps=1000)
    assert [note.partition(":")[0] for note in report.notes] == ["no group says whether its weight decay is decoupled"]
    assert inspect(tmp_path / "source.pt").states[0].notes == report.notes


def test_the_kernel_of_adamw_chooses_none_of_ours(tmp_path: Path) -> None:
    """On CUDA, fused=True would choose one that nobody has asked for."""
    torch.save(state(optimizer=partial(torch.optim.AdamW, fused=True)), tmp_path / "adamw.pt")
    convert(tmp_path / "adamw.pt", tmp_path / "ours.pt", total_steps=1000)
    assert torch.load(tmp_path / "ours.pt")["param_groups"][0]["fused"] is None
    torch.save(state(optimizer=partial(ademamix, fused=True)), tmp_path / "fused.pt")
    convert(tmp_path / "fused.pt", tmp_path / "bf16.pt", state_storage="bf16")
    assert torch.load(tmp_path / "bf16.pt")["param_groups"][0]["fused"] is True


def test_nothing_but_none_is_nothing_to_convert(tmp_path: Path) -> None:
    torch.save(state(optimizer=ademamix), tmp_path / "ours.pt")
    with pytest.raises(CheckpointError, match="nothing to convert"):
        convert(tmp_path / "ours.pt", tmp_path / "new.pt", total_steps=None)


def test_masters_keep_their_corrections_and_adamw_has_none(tmp_path: Path) -> None:
    param = torch.ones(70, 70, dtype=torch.bfloat16)
    optimizer = AdEMAMix([param], total_steps=9, state_storage="compact", master="24bit")
    for _ in range(3):
        param.grad = torch.randn(70, 70).bfloat16()
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "compact.pt")
    convert(tmp_path / "compact.pt", tmp_path / "fp32.pt", state_storage="fp32")
    stored = torch.load(tmp_path / "fp32.pt", weights_only=True)
    assert torch.equal(stored["state"][0]["correction"], optimizer.state[param]["correction"])
    other = AdEMAMix([param.clone()], total_steps=9)
    other.load_state_dict(stored)
    assert torch.equal(other.master_parameters()[0], optimizer.master_parameters()[0])

    convert(tmp_path / "compact.pt", tmp_path / "adamw.pt", "adamw")
    stored = torch.load(tmp_path / "adamw.pt", weights_only=True)
    assert stored["state"][0].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert stored["state"][0]["exp_avg"].dtype == torch.float32
    assert torch.equal(stored["state"][0]["exp_avg_sq"], values_of(optimizer.state[param], "exp_avg_sq"))


def test_a_storage_is_converted(tmp_path: Path) -> None:
    """From AdamW to codes, from these to bf16, and back to AdamW: rounded to nearest each time, and no more."""
    param = torch.randn(70, 70, generator=torch.Generator().manual_seed(0)).requires_grad_()
    optimizer = adamw([param])
    for _ in range(3):
        param.grad = param.detach().clone()
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "adamw.pt")
    (report,) = convert(tmp_path / "adamw.pt", tmp_path / "compact.pt", state_storage="compact")
    assert "float32 to int8 of 70x70, rounded to nearest" in {change.what for change in report.changes}
    convert(tmp_path / "compact.pt", tmp_path / "bf16.pt", state_storage="bf16")
    convert(tmp_path / "bf16.pt", tmp_path / "back.pt", "adamw")
    compact, bf16, back = (torch.load(tmp_path / f"{name}.pt")["state"][0] for name in ("compact", "bf16", "back"))
    dtypes = [compact[key].dtype for key in ("exp_avg", "exp_avg_slow", "exp_avg_sq")]
    assert dtypes == [torch.int8, torch.int16, torch.uint8]
    assert bf16["exp_avg"].dtype == torch.bfloat16
    for key, code in {"exp_avg": formats.FAST, "exp_avg_sq": formats.SQUARE}.items():
        assert torch.equal(compact[key], block_codes.encode(optimizer.state[param][key], code)[0])
        assert torch.equal(bf16[key], values_of(compact, key).bfloat16())
        assert torch.equal(back[key], bf16[key].float())
    assert back["step"] == 3


@pytest.mark.parametrize(
    ("origin", "to", "message"),
    [
        ("adamw", "adamw", "a state of AdamW already"),
        ("ademamix", "ademamix", "a state of ademamix already"),
        ("sgd", "ademamix", "at optimizer: this is the state of another optimizer"),
        ("amsgrad", "ademamix", "amsgrad=True is not possible"),
        ("nothing", "ademamix", "there is no optimizer state in"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_a_sentence(tmp_path: Path, origin: str, to: str, message: str) -> None:
    param = torch.ones(3, requires_grad=True)
    optimizers = {
        "adamw": torch.optim.AdamW([param]),
        "ademamix": AdEMAMix([param], total_steps=100),
        "sgd": torch.optim.SGD([param], momentum=0.9),
        "amsgrad": torch.optim.AdamW([param], amsgrad=True),
    }
    param.grad = torch.ones(3)
    saved: dict[str, Any] = {"model": {"w": param.detach()}}
    if origin in optimizers:
        optimizers[origin].step()
        saved["optimizer"] = optimizers[origin].state_dict()
    torch.save(saved, tmp_path / "source.pt")
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path / "source.pt", tmp_path / "new.pt", to)
    assert [file.name for file in tmp_path.iterdir()] == ["source.pt"]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    source = ROWS["plain"].begin(tmp_path)
    before = source.read_bytes()
    (tmp_path / "other").mkdir()
    (tmp_path / "loose").symlink_to(tmp_path / "nowhere")
    for existing in (source, tmp_path / "model.pt", tmp_path / "other", tmp_path / "loose"):
        with pytest.raises(CheckpointError, match="exists, and is not written over"):
            convert(source, existing)
    with pytest.raises(CheckpointError, match="there is no folder"):
        convert(source, tmp_path / "missing" / "new.pt")
    shutil.copytree(tmp_path, tmp_path.parent / "trainer", symlinks=True)
    with pytest.raises(CheckpointError, match="is inside of"):
        convert(tmp_path.parent / "trainer", tmp_path.parent / "trainer" / "new")
    assert source.read_bytes() == before


@pytest.mark.parametrize("row", ["plain", "distributed"])
def test_what_got_the_name_in_the_meantime_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    """A file that appears after the last look, just before what was written gets its name."""
    destination = tmp_path / "new"

    def appearing(action: Callable[..., Any]) -> Callable[..., Any]:
        def act(*paths: Path) -> Any:
            if not destination.exists():
                destination.write_text("precious")
            return action(*paths)

        return act

    source = ROWS[row].begin(tmp_path)
    before = {*tmp_path.iterdir(), destination}
    monkeypatch.setattr(os, "link", appearing(os.link))
    monkeypatch.setattr(Path, "rename", appearing(Path.rename))
    with pytest.raises(CheckpointError, match="exists, and is not written over"):
        convert(source, destination)
    assert destination.read_text() == "precious"
    assert set(tmp_path.iterdir()) == before


def test_a_file_system_without_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    source = ROWS["plain"].begin(tmp_path)
    monkeypatch.setattr(os, "link", refused)
    convert(source, tmp_path / "new.pt")
    assert {file.name for file in tmp_path.iterdir()} == {"model.pt", "optimizer.pt", "new.pt"}


def test_what_is_not_as_it_should_be_never_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses a bit, as it were."""
    from ademamix.checkpoints import torch_files

    write = torch_files.write

    def losing(path: Path, tree: Any) -> None:
        write(path, tree)
        damaged = torch.load(path)
        damaged["state"][1]["exp_avg"][2] += 1e-6
        torch.save(damaged, path)

    source = ROWS["plain"].begin(tmp_path)
    monkeypatch.setattr(torch_files, "write", losing)
    with pytest.raises(CheckpointError, match=r"differs from what was to be written, at state\[1\].exp_avg"):
        convert(source, tmp_path / "new.pt")
    assert {file.name for file in tmp_path.iterdir()} == {"model.pt", "optimizer.pt"}


def test_a_distributed_checkpoint_inside_of_a_trainers_folder(tmp_path: Path) -> None:
    """As the Hugging Face Trainer has it after FSDP."""
    (tmp_path / "checkpoint-20").mkdir()
    inner = ROWS["distributed"].begin(tmp_path)
    inner.rename(tmp_path / "checkpoint-20" / "optimizer_0")
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text("{}")
    (report,) = convert(tmp_path / "checkpoint-20", tmp_path / "converted")
    assert report.label == "optimizer_0: optimizer"
    assert (tmp_path / "converted" / "trainer_state.json").read_text() == "{}"
    found = containers.read(tmp_path / "converted")
    assert found.title == "Hugging Face Trainer folder"
    assert "exp_avg_slow" in found.locations[0].node["state"]["layers.0.weight"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_other_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    """Moments are fp32 or wider, with the values that they had, and go back as they came."""
    param = torch.ones(5, dtype=dtype, requires_grad=True)
    optimizer = adamw([param])
    param.grad = torch.arange(5).to(dtype)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["param_groups"][0]["capturable"] = True  # on a GPU
    torch.save(saved, tmp_path / "adamw.pt")
    (report,) = convert(str(tmp_path / "adamw.pt"), str(tmp_path / "ours.pt"))
    expected = "bfloat16 to float32 of 5, the same values" if dtype == torch.bfloat16 else "the same bits"
    assert any(change.what.startswith(expected) for change in report.changes if change.entry == "exp_avg")
    convert(tmp_path / "ours.pt", tmp_path / "back.pt", "adamw")
    ours, back = (torch.load(tmp_path / f"{name}.pt") for name in ("ours", "back"))
    assert ours["param_groups"][0]["capturable"] is back["param_groups"][0]["capturable"] is True
    for key in ("exp_avg", "exp_avg_sq"):
        before = saved["state"][0][key]
        assert ours["state"][0][key].dtype == (torch.float32 if dtype == torch.bfloat16 else before.dtype)
        assert torch.equal(ours["state"][0][key].to(dtype), before)
        assert torch.equal(back["state"][0][key].to(dtype), before)
    assert ours["state"][0]["exp_avg_slow"].dtype == ours["state"][0]["exp_avg"].dtype


def test_keys_beside_the_state_stay(tmp_path: Path) -> None:
    """Some programs keep more in a state_dict, or in its state, than torch does."""
    param = torch.ones(3, requires_grad=True)
    optimizer = adamw([param])
    param.grad = torch.ones(3)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["seen"], saved["state"]["all"] = 5, {"seen": 7}
    saved["param_groups"][0]["name"] = "matrices"
    torch.save(saved, tmp_path / "adamw.pt")
    convert(tmp_path / "adamw.pt", tmp_path / "ours.pt")
    ours = torch.load(tmp_path / "ours.pt")
    assert (ours["seen"], ours["state"]["all"], ours["param_groups"][0]["name"]) == (5, {"seen": 7}, "matrices")


def test_groups_without_parameters_and_parameters_without_a_state(tmp_path: Path) -> None:
    """Of a group without parameters, torch.distributed.checkpoint keeps nothing else."""
    used, unused = (torch.ones(3, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [unused, used]}, {"params": []}], lr=3e-3)
    torch.save(optimizer.state_dict(), tmp_path / "before.pt")
    used.grad = torch.ones(3)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["param_groups"][1] = {"params": []}
    torch.save(saved, tmp_path / "adamw.pt")
    for name, keys in {"before": [], "adamw": [1]}.items():
        convert(tmp_path / f"{name}.pt", tmp_path / "ours.pt")
        ours = torch.load(tmp_path / "ours.pt")
        assert list(ours["state"]) == keys
        assert [group["params"] for group in ours["param_groups"]] == [[0, 1], []]
        assert ours["param_groups"][0]["lr"] == 3e-3
        continued = ademamix([{"params": [unused, used]}, {"params": []}])
        continued.load_state_dict(ours)
        (tmp_path / "ours.pt").unlink()
