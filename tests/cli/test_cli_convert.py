"""`ademamix convert` and `ademamix inspect`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
import torch

from ademamix import beta3_at
from ademamix.cli import main
from ademamix.optax import ademamix

FOREIGN = Path(__file__).parents[1] / "fixtures" / "foreign"


@pytest.fixture
def adamw(tmp_path: Path) -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=3e-3)
    for _ in range(5):
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "adamw.pt")
    return tmp_path / "adamw.pt"


def test_adamw_is_converted_and_inspected(adamw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = adamw.with_name("ours.pt")
    assert main(["convert", str(adamw), str(ours), "--total-steps", "10k"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "optimizer: AdamW, 4 parameters, becomes AdEMAMix: the slow average begins empty" in said
    assert f"read again to compare: {ours}" in said
    assert main(["inspect", str(ours)]) == 0
    said = capsys.readouterr().out
    assert "optimizer: AdEMAMix, 4 parameters with a state" in said
    rows = {line.split("  ")[0]: line for line in said.splitlines()}
    assert rows["of the run"].endswith("0.0% of 10,000 steps")
    assert rows["slow average filled"].endswith("0.0%")
    assert rows["0.weight"].split()[1] == "3x4"


def test_settings_reach_the_file(adamw: Path) -> None:
    ours = adamw.with_name("ours.pt")
    options = "--alpha 3 --beta3 0.998 --alpha-warmup 2k --beta3-warmup 0 --slow-clip 20 --state-storage bf16"
    assert main(["convert", str(adamw), str(ours), "--total-steps", "open", *options.split()]) == 0
    (group,) = torch.load(ours)["optimizer"]["param_groups"]
    assert (group["total_steps"], group["alpha"], group["betas"]) == ("open", 3.0, (0.9, 0.999, 0.998))
    assert (group["alpha_warmup"], group["beta3_warmup"], group["slow_clip"]) == (2000, 0, 20.0)
    assert (group["state_storage"], group["lr"]) == ("bf16", 3e-3)


NO_HORIZON = (
    "note: no total_steps was given, so beta3 = 0.9999 was chosen, with alpha = 2: it remembers about 10,000 steps. If "
    "fewer than about 20,000 are still to come, give --total-steps"
)


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ("", True),
        ("--alpha-warmup 2k", True),
        ("--total-steps 10k", False),
        ("--total-steps open", False),
        ("--beta3 0.999", False),
        ("--alpha 0", False),
        ("--to adamw", False),
    ],
)
def test_a_beta3_chosen_without_a_horizon_is_noted(
    adamw: Path, capsys: pytest.CaptureFixture[str], options: str, noted: bool
) -> None:
    source = adamw
    if options == "--to adamw":
        source = adamw.with_name("source.pt")
        main(["convert", str(adamw), str(source), "--total-steps", "open"])
    assert main(["convert", str(source), str(adamw.with_name("ours.pt")), *options.split()]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (NO_HORIZON in said) is noted
    assert ("note:" in said) is noted


def test_advice_on_beta3_fits_a_checkpoint(adamw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has a beta3 of its own, so that leaving the option out changes nothing; what is advised does."""
    open_run, short, lowered = (str(adamw.with_name(f"{name}.pt")) for name in ("open", "short", "lowered"))
    main(["convert", str(adamw), open_run, "--total-steps", "open"])
    main(["convert", open_run, short, "--total-steps", "1k"])
    said = " ".join(capsys.readouterr().out.split())
    assert "note: beta3 = 0.9999 remembers about 10,000 steps, more than half of total_steps = 1,000" in said
    assert "Convert with --beta3 0.975 (in Python: beta3=0.975), which fits." in said
    assert main(["convert", open_run, lowered, "--total-steps", "1k", "--beta3", "0.975"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "remembers about" not in said
    assert "beta3(t) from 0.9999 to 0.975" in said


def test_explain_says_what_became_of_each_tensor(
    adamw: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    main(["convert", str(adamw), str(adamw.with_name("ours.pt")), "--explain"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "0.weight exp_avg exp_avg the same bits, float32 of 3x4" in lines
    assert "0.weight exp_avg_slow - new: zeros, float32 of 3x4" in lines
    assert "0.weight step step 5" in lines
    assert "0.weight slow_step - new: 0" in lines
    assert "group 0 betas 0.9, 0.999 0.9, 0.999, 0.9999" in lines
    assert "group 0 amsgrad False dropped" in lines
    main(["convert", str(FOREIGN / "bitsandbytes-8.pt"), str(adamw.with_name("8.pt")), "--explain"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "0 exp_avg_slow state1[1] read from 8-bit codes, float32 of 64x65" in lines
    assert "1 exp_avg_slow state1[1] the same bits, float32 of 5" in lines
    main(["convert", str(FOREIGN / "heavyball-risen.pt"), str(adamw.with_name("h.pt")), "--explain", "--to", "adamw"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "0 exp_avg update_by_ademamix_exp_avg_fast_0 times 1 - beta1^t, float32 of 8x4" in lines
    assert "0 - update_by_ademamix_exp_avg_slow_0 dropped" in lines


def test_json_has_what_the_table_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FOREIGN / "pytorch_optimizer.pt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (state,) = found["states"]
    assert (found["container"], state["origin"]) == ("torch.save file", "pytorch_optimizer")
    assert state["groups"][0]["slow_step"] == 120
    assert state["groups"][0]["filled"] == pytest.approx(0.924, abs=1e-3)
    assert [parameter["shape"] for parameter in state["parameters"]] == [[8, 4], [5]]


def test_a_state_of_optax_is_placed_by_what_is_stated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params = {"w": jnp.ones(3)}
    optimizer = ademamix(1e-3, total_steps=1000)
    _, state = optimizer.update(params, optimizer.init(params), params)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run", state)
    assert main(["inspect", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "alpha(t)  " not in said
    assert "note: a state of Optax has no settings in it" in said
    options = "--total-steps 1k --alpha 8 --beta1 0.8 --beta2 0.99 --beta3 0.97 --alpha-warmup 10 --beta3-warmup 20"
    more = "--slow-clip 0.02 --eps 1e-7"
    assert main(["inspect", str(tmp_path / "run"), *options.split(), *more.split(), "--json"]) == 0
    (state,) = json.loads(capsys.readouterr().out)["states"]
    (group,) = state["groups"]
    assert (group["alpha"], group["alpha_end"], group["alpha_warmup"]) == (0.8, 8.0, 10)
    assert (group["beta3_end"], group["beta3_warmup"], group["total_steps"]) == (0.97, 20, 1000)
    assert group["beta3"] == pytest.approx(beta3_at(1, 0.97, 0.8, 20))
    assert (group["largest_slow_step"], state["notes"]) == (0.02, [])


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    picture = tmp_path / f"norms.{ending}"
    assert main(["inspect", str(FOREIGN / "authors-risen.pt"), "--picture", str(picture)]) == 0
    assert capsys.readouterr().out.endswith(f"picture: {picture}\n")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    assert [file.name for file in tmp_path.iterdir()] == [picture.name]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_tables_fit_the_terminal(
    adamw: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(adamw.parent)
    assert main(["inspect", adamw.name]) == 0
    assert main(["convert", adamw.name, "ours.pt", "--explain"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no file": (["convert", "missing.pt", "new.pt"], "there is no file or folder 'missing.pt'"),
    "not a checkpoint": (["convert", "text.txt", "new.pt"], "'text.txt' is not a file of torch.save: it begins with"),
    "nothing to read": (["inspect", "text.txt"], "'text.txt' is not a file of torch.save: it begins with"),
    "a device": (["inspect", "/dev/null"], "'/dev/null' is a device or a pipe: name a file or a folder"),
    "malformed": (["inspect", "malformed.pt"], "exp_avg of parameter 0.weight must be a tensor, got None"),
    "malformed too": (
        ["convert", "malformed.pt", "new.pt"],
        "exp_avg of parameter 0.weight must be a tensor, got None",
    ),
    "exists": (["convert", "adamw.pt", "text.txt"], "'text.txt' exists, and is not written over"),
    "already": (["convert", "adamw.pt", "new.pt", "--to", "adamw"], "a state of AdamW already"),
    "of AdEMAMix": (["convert", "adamw.pt", "new.pt", "--to", "adamw", "--alpha", "2"], "AdamW has no alpha"),
    "storage": (["convert", "adamw.pt", "new.pt", "--state-storage", "int4"], "invalid choice: 'int4'"),
    "beta3": (["convert", "adamw.pt", "new.pt", "--beta3", "1"], "must be a number of at least 0 and below 1"),
    "warm-up": (["convert", "adamw.pt", "new.pt", "--alpha-warmup", "-3"], "must be a whole number of at least 1"),
    "settings of torch": (["inspect", "adamw.pt", "--alpha", "2"], "has its settings in it: leave alpha out"),
    "picture": (["inspect", "adamw.pt", "--picture", "norms.gif"], "must end with .png or .svg, got 'norms.gif'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(
    adamw: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    arguments, message = MISTAKES[mistake]
    monkeypatch.chdir(adamw.parent)
    Path("text.txt").write_text("not a checkpoint\n")
    saved = torch.load("adamw.pt")
    saved["optimizer"]["state"][0]["exp_avg"] = None
    torch.save(saved, "malformed.pt")
    code: Any
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert said[-1].startswith("ademamix")
    assert not Path("new.pt").exists()


def test_a_picture_is_not_written_over(adamw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = adamw.with_name("norms.svg")
    assert main(["inspect", str(adamw), "--picture", str(picture)]) == 0
    before = picture.read_bytes()
    with pytest.raises(SystemExit):
        main(["inspect", str(adamw), "--picture", str(picture)])
    assert "exists, and is not written over" in capsys.readouterr().err
    assert picture.read_bytes() == before


def test_others_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    param = torch.ones(3, requires_grad=True)
    saved = {"adamw": torch.optim.AdamW([param]).state_dict(), "sgd": torch.optim.SGD([param]).state_dict()}
    torch.save(saved, tmp_path / "two.pt")
    options = ["--only", "adamw", "--total-steps", "1k", "--explain"]
    assert main(["convert", str(tmp_path / "two.pt"), str(tmp_path / "new.pt"), *options]) == 0
    assert "sgd: left as it is." in capsys.readouterr().out
