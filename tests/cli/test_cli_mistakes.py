"""What is wrong with a command is said, whichever command it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ademamix.cli import main
from lab_runs import SMALL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gpt-huge"], "there is no model 'gpt-huge': choose one of gpt-nano, gpt-tiny"),
        (
            ["--model", "gpt-tiny:depth=3"],
            "model has no setting 'depth': it takes width, ",
        ),
        (["--optimizer", "sgd"], "there is no optimizer 'sgd': choose one of adamw"),
        (["--optimizer", "adamw:alpha=3", *SMALL], "optimizer 'adamw' has no setting 'alpha': it takes"),
        (["--data", "/nowhere"], "there is no text at '/nowhere'"),
        (["--out", "/dev/null"], "cannot write to the folder"),
        (["--device", "gpu"], "--device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["--device", "cuda:99"], "--device cuda:99 cannot be used here"),
        (["--data", ""], "there is no text at ''"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--steps", "20", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--config", "/nowhere.json"], "cannot read '/nowhere.json'"),
        (
            ["train", "--config", "/nowhere.json", "--seed", "0", "--validate-every", "9"],
            "so --seed, --validate-every ",
        ),
        (["compare", "--optimizers", "lion", "lion:lr=1e-4"], "lion lr=0.0001 weight_decay=0.1 is named twice"),
        (["compare", "--optimizers", "adamw", "ademamix:alpha=-1"], "alpha must be a finite number >= 0, got -1"),
        (["compare", "--parameters", "bf16", "--optimizers", "ademamix", "lion"], "optimizer 'lion': "),
        (["compare", "--optimizers", "lion", "lion:lr=1", "--tune"], "lion is named twice, with different"),
        (["compare", "--optimizers", "adamw", "adamw:steps=long"], "steps must be a whole number of at least 1, or a "),
        (["compare", "--optimizers", "adamw:steps=2"], "warm-up and decay must fit into the 2 steps of a run"),
        (["compare", "--parameters", "bf16"], "optimizer 'adamw': AdamW takes fp32 and fp64 parameters, got "),
        (["reproduce", "lm-comparison", "--device", "gpu"], "--device must be cpu, cuda or cuda:N, got 'gpu'"),
        (["compare", "--ray", "auto", "--device", "cuda:1"], "with --ray each run has a GPU that Ray chooses"),
        (["bench", "--lab", "--threads", "2"], "--threads does not go with it"),
        (["bench", "--peer", "deepspeed", "--no-peers"], "--peer and --no-peers exclude each other"),
        (["bench", "--peer", "deepspeed"], "--peer: deepspeed is not installed"),
        (["sweep"], "no optimizer is named: give one"),
        (["sweep", "ademamix"], "nothing is swept: give settings with lists or ranges"),
        (["sweep", "sgd", "lr=1,2"], "there is no optimizer 'sgd': choose one of adamw"),
        (["sweep", "adamw", "ademamix", "lr=1,2"], "a sweep is of one optimizer, got adamw, ademamix"),
        (["sweep", "adamw:lr", "lr=1,2"], "the optimizer must be NAME or NAME:SETTING=VALUE"),
        (["sweep", "ademamix", "lr=2..1"], "a range is A..B with numbers A < B, got 'lr=2..1'"),
        (["sweep", "ademamix", "depth=1,2"], "optimizer 'ademamix' has no setting 'depth'"),
        (["sweep", "ademamix", "lr=1e-3..1e-2", "--search", "grid"], "a grid needs a list of values"),
        (["sweep", "ademamix", "lr=1,2", "--search", "grid", "--trials", "9"], "--trials goes with --search tpe"),
        (["sweep", "ademamix", "warmup=1,100", "--steps", "50"], "warm-up and decay must fit into the 50 steps"),
        (["sweep", "--preset", "paper-7b"], "there is no preset 'paper-7b': choose one of paper-110m"),
        (["sweep", "lion", "--preset", "paper-110m"], "has no grid for 'lion': it has one for ademamix, adamw"),
        (["sweep", "ademamix", "lr=1,2", "--storage", "nowhere"], "--storage must be a URL"),
        (["sweep", "ademamix", "lr=1,2", "--storage", "postgresql://u@127.0.0.1:no/x"], "--storage must be a URL"),
        (["sweep", "ademamix", "lr=1,2", "--storage", "sqlite:////nowhere/at/all.db"], "unable to open database file"),
        (
            ["sweep", "ademamix", "lr=1,2", "--storage", "postgresql://u:pw@127.0.0.1:9/x"],
            "'postgresql://u:***@127.0.0.1:9/x'",
        ),
    ],
)
def test_what_does_not_fit_together_is_said_before_anything_is_trained(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize(
    "command", [["compare"], ["reproduce", "toy-rosenbrock"], ["sweep", "adamw", "lr=1,2"]], ids=" ".join
)
def test_without_ray_its_extra_is_named(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*command, "--ray", "auto", "--out", str(tmp_path)]) == 2
    told = f"ademamix: error: {command[0]} needs ray, which is not installed: pip install 'ademamix[cluster]'\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("address", ["local", "ray://host:10001", "host", ""])
def test_what_is_no_address_of_a_cluster_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--ray", address])
    assert ended.value.code == 2
    assert f"argument --ray: must be HOST:PORT or auto, got {address!r}" in capsys.readouterr().err
