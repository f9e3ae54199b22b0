"""`ademamix plan --steps`: recommended settings, the calls that have them, and what it refuses."""

from __future__ import annotations

import json

import optax
import pytest
import torch

from ademamix import AdEMAMix, recommend
from ademamix.cli import main
from ademamix.optax import ademamix
from ademamix.pytorch.integrations.huggingface import read_optim_args


def said(capsys, *arguments):
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "10000"],
        ["--steps", "10000", "--schedule", "wsd"],
        ["--steps", "open", "--schedule", "wsd", "--params", "8B"],
        ["--steps", "4462", "--phase", "finetune"],
    ],
)
def test_the_calls_have_the_settings(arguments, capsys):
    found = json.loads(said(capsys, *arguments, "--from", "lr=1e-3,weight_decay=0.2", "--json"))["settings"]
    params = [torch.ones(2, requires_grad=True)]
    scope = {"AdEMAMix": AdEMAMix, "ademamix": ademamix, "model": torch.nn.ParameterList(params)}
    (group,) = eval(found["calls"]["PyTorch"], scope).param_groups
    names = ("alpha", "total_steps", "alpha_warmup", "beta3_warmup")
    assert {name: group[name] for name in names} == {name: found[name] for name in names}
    assert list(group["betas"]) == found["betas"]
    assert (group["lr"], group["weight_decay"]) == (found["lr"], 0.2)
    assert isinstance(eval(found["calls"]["Optax"], scope), optax.GradientTransformation)
    optim_args = found["calls"]["Hugging Face"].split('optim_args="')[1].split('"')[0]
    for name, value in read_optim_args(optim_args).items():
        assert value == found[name]


def test_the_text_has_each_reason_with_its_source(capsys):
    text = " ".join(said(capsys, "--steps", "48000", "--params", "720M", "--batch", "1000000").split())
    assert text.startswith("Settings for 48,000 steps 66.7 tokens per parameter.")
    for reason in recommend(48_000, parameters=720_000_000).reasons:
        assert str(reason) in text
    assert "720,000,000 parameters on 1 device" in text


def test_short_runs_are_told_to_stay_with_adamw(capsys):
    assert "Stay with AdamW" in said(capsys, "--steps", "999")
    assert "Stay with AdamW" not in said(capsys, "--steps", "1000")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "8"], "are for settings, which need the length of the run: add --steps"),
        (["--params", "1B", "--phase", "finetune"], "need the length of the run: add --steps"),
        (["--steps", "1000", "--devices", "8"], "need the size of the model: add --params"),
        (["--steps", "9" * 400], "must be at most 9,007,199,254,740,992"),
        (["--steps", "0"], "argument --steps"),
        (["--steps", "10", "--from", "lr=1e-3,beta9=1"], "such as lr=1e-3,weight_decay=0.1,clip=1, got 'beta9=1'"),
        (["--steps", "10", "--from", "lr=nan"], "got 'lr=nan'"),
        (["--steps", "10", "--schedule", "linear"], "argument --schedule"),
    ],
)
def test_bad_input_is_named(arguments, message, capsys):
    try:
        code = main(["plan", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err
