"""`ademamix plan --steps`: recommended settings, the calls that have them, and what it refuses."""

from __future__ import annotations

import json
from functools import partial

import optax
import pytest
import torch
from transformers import Trainer, TrainingArguments

from ademamix import AdEMAMix, recommend
from ademamix.cli import main
from ademamix.optax import ademamix
from ademamix.pytorch.integrations.huggingface import use_ademamix


def said(capsys, *arguments):
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "10000"],
        ["--steps", "10000", "--schedule", "wsd"],
        ["--steps", "20000", "--schedule", "constant"],
        ["--steps", "open", "--params", "8B"],
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


@pytest.mark.parametrize(
    ("arguments", "scheduler"),
    [
        (["--steps", "10000"], "cosine"),
        (["--steps", "10000", "--schedule", "linear"], "linear"),
        (["--steps", "20000", "--schedule", "wsd"], "warmup_stable_decay"),
        (["--steps", "500k", "--schedule", "constant"], "constant_with_warmup"),
        (["--steps", "4462", "--phase", "finetune"], "cosine"),
        (["--steps", "open", "--params", "8B"], "constant_with_warmup"),
    ],
)
def test_a_trainer_that_is_made_by_the_call_trains_as_planned(arguments, scheduler, tmp_path, capsys):
    """For the planned number of steps, with the planned schedule, whatever transformers does if it is told nothing."""
    found = json.loads(said(capsys, *arguments, "--from", "lr=1e-3,weight_decay=0.2,clip=1", "--json"))["settings"]
    call = found["calls"]["Hugging Face"].removesuffix(", with use_ademamix(trainer)")
    scope = {"TrainingArguments": partial(TrainingArguments, str(tmp_path), use_cpu=True), "decay_steps": 1000}
    made = eval(call, scope)
    assert made.lr_scheduler_type == scheduler
    is_open = found["total_steps"] == "open"
    assert made.max_steps == (-1 if is_open else found["total_steps"])
    trainer = Trainer(torch.nn.Linear(1, 1), made, train_dataset=[])
    use_ademamix(trainer)
    trainer.state.max_steps = 20 if is_open else made.max_steps  # as train() works it out
    trainer.create_optimizer_and_scheduler(trainer.state.max_steps)
    group = trainer.optimizer.param_groups[0]
    names = ("alpha", "total_steps", "alpha_warmup", "beta3_warmup")
    assert {name: group[name] for name in names} == {name: found[name] for name in names}
    assert list(group["betas"]) == found["betas"]
    assert (group["initial_lr"], made.weight_decay, made.max_grad_norm) == (found["lr"], 0.2, 1)


def test_the_text_has_each_reason_with_its_source(capsys):
    text = " ".join(said(capsys, "--steps", "48000", "--params", "720M", "--batch", "1000000").split())
    assert text.startswith("Settings for 48,000 steps 48,000,000,000 tokens, 66.7 per parameter.")
    for reason in recommend(48_000, parameters=720_000_000).reasons:
        assert str(reason) in text
    assert "720,000,000 parameters on 1 device" in text


def test_short_runs_are_told_to_stay_with_adamw(capsys):
    text = " ".join(said(capsys, "--steps", "499").split())
    assert "not tried AdEMAMix in runs of fewer than 500 steps. If you try it anyway: beta3" in text
    assert "Stay with AdamW" not in said(capsys, "--steps", "500")


def test_short_runs_are_told_so_in_the_data_as_well(capsys):
    short, long = (settings(capsys, "--steps", steps) for steps in ("300", "500"))
    assert (short["pays"], long["pays"], long["advice"]) == (False, True, None)
    assert short["advice"] == "Stay with AdamW: we have not tried AdEMAMix in runs of fewer than 500 steps."


def test_a_constant_rate_has_warmups_that_need_not_span_the_run(capsys):
    found = settings(capsys, "--steps", "500k", "--schedule", "constant", "--params", "8B")
    assert (found["alpha"], found["alpha_warmup"], found["beta3_warmup"]) == (8.0, 100_000, 100_000)
    assert "alpha_warmup=100000, beta3_warmup=100000" in found["calls"]["PyTorch"]
    reasons = {reason["setting"]: reason for reason in found["reasons"]}
    assert "they need not span the run" in reasons["warm-ups"]["why"]
    assert "Apertus" not in reasons["lr"]["source"]  # who halved a rate that was tuned for a cosine


def test_eps_of_adamw_is_kept_in_all_calls(capsys):
    found = settings(capsys, "--steps", "10k", "--from", "eps=1e-6,lr=1e-3,weight_decay=0.1")
    scope = {"AdEMAMix": AdEMAMix, "ademamix": ademamix, "model": torch.nn.Linear(1, 1)}
    assert eval(found["calls"]["PyTorch"], scope).param_groups[0]["eps"] == 1e-6
    assert "eps=1e-06, weight_decay" in found["calls"]["Optax"]
    assert isinstance(eval(found["calls"]["Optax"], scope), optax.GradientTransformation)
    assert "adam_epsilon=1e-06, weight" in found["calls"]["Hugging Face"]


def settings(capsys, *arguments):
    return json.loads(said(capsys, *arguments, "--json"))["settings"]


@pytest.mark.parametrize(("size", "ours"), [("110M", 0.5), ("1B", 0.1), (None, None)])
def test_a_stated_clip_wins_and_ours_is_mentioned(size, ours, capsys):
    length = ["--steps", "256k", *(["--params", size] if size else [])]
    found = settings(capsys, *length, "--from", "clip=0.75,lr=1e-3")
    assert found["clip"] == 0.75
    assert "max_grad_norm=0.75," in found["calls"]["Hugging Face"]
    (reason,) = [reason for reason in found["reasons"] if reason["setting"] == "clip"]
    assert reason["value"] == "0.75"
    assert ours is None or f"AdamW's, as stated; {ours:g} is recommended: in most published runs" in reason["why"]


def test_betas_of_adamw_are_kept_in_all_calls(capsys):
    found = settings(capsys, "--steps", "10k", "--from", "beta2=0.95,lr=1e-3,weight_decay=0.1")
    assert found["betas"] == [0.9, 0.95, 0.9975]
    assert "betas=(0.9, 0.95)," in found["calls"]["PyTorch"]
    assert "b1=0.9, b2=0.95," in found["calls"]["Optax"]
    assert "adam_beta1=0.9, adam_beta2=0.95," in found["calls"]["Hugging Face"]
    scope = {"AdEMAMix": AdEMAMix, "ademamix": ademamix, "model": torch.nn.Linear(1, 1)}
    assert eval(found["calls"]["PyTorch"], scope).param_groups[0]["betas"] == (0.9, 0.95, 0.9975)
    assert isinstance(eval(found["calls"]["Optax"], scope), optax.GradientTransformation)
    assert settings(capsys, "--steps", "300", "--from", "beta1=0.95")["betas"] == [0.95, 0.999, 0.95]


def test_tokens_are_in_the_data(capsys):
    assert "tokens" not in settings(capsys, "--steps", "1k")
    alone = settings(capsys, "--steps", "1.5M", "--batch", "2k")
    assert (alone["total_steps"], alone["tokens"]) == (1_500_000, 3 * 10**9)
    assert "tokens_per_parameter" not in alone
    assert settings(capsys, "--steps", "1.5M", "--batch", "2k", "--params", "1.5B")["tokens_per_parameter"] == 2
    assert "3,000,000,000 tokens." in said(capsys, "--steps", "1.5M", "--batch", "2k")


def test_one_step_is_no_plural(capsys):
    text = said(capsys, "--steps", "1")
    assert text.startswith("Settings for 1 step\n")
    assert "warm-ups = 1 step:" in text


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        *(("1M", 10**6), ("1.5M", 1_500_000), ("2.5k", 2500), ("700", 700), ("10K", 10**4), ("2m", 2 * 10**6)),
        *(("10,000", 10**4), ("1,000,000", 10**6), ("1e4", 10**4), ("2.5E3", 2500), (".5k", 500), ("1B", 10**9)),
    ],
)
def test_lengths_have_units(text, steps, capsys):
    assert settings(capsys, "--steps", text, "--schedule", "linear")["total_steps"] == steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "8"], "are for settings, which need the length of the run: add --steps"),
        (["--params", "1B", "--phase", "finetune"], "need the length of the run: add --steps"),
        (["--steps", "1000", "--devices", "8"], "need the size of the model: add --params"),
        (["--steps", "9" * 400], "must be at most 9,007,199,254,740,992"),
        (["--steps", "10", "--params", "1B", "--batch", "9" * 400], "must be at most 9,007,199,254,740,992"),
        (["--params", "1B", "--devices", "9" * 400], "must be at most 9,007,199,254,740,992"),
        *(
            (
                ["--steps", text],
                f"argument --steps: must be a whole number of at least 1, got '{text}' (try 500, 10k or",
            )
            for text in ("0", "1.5", "0.0001k", "1e6k", "1e-3", "1,5", "1,0000", "M", "e4", "1.2.3M", "²", "")
        ),
        (["--steps", "10", "--from", "lr=1e-3,beta9=1"], "lr, beta1, beta2, eps, weight_decay, clip, got 'beta9=1'"),
        (["--steps", "10", "--from", "lr"], "lr, beta1, beta2, eps, weight_decay, clip, got 'lr'"),
        (["--steps", "10", "--from", "lr=nan"], "lr must be a number above 0, got 'nan'"),
        (["--steps", "10", "--from", "lr=0"], "lr must be a number above 0, got '0'"),
        (["--steps", "10", "--from", "clip=-1"], "clip must be a number of at least 0, got '-1'"),
        (["--steps", "10", "--from", "eps=-1"], "eps must be a number of at least 0, got '-1'"),
        (["--steps", "10", "--from", "beta2=1"], "beta2 must be a number of at least 0 and below 1, got '1'"),
        (["--steps", "10", "--from", "lr=1, lr=2"], "lr is given twice in 'lr=1, lr=2'"),
        (["--steps", "10", "--schedule", "step"], "argument --schedule"),
        (["--steps", "open", "--schedule", "cosine"], "decays to the end of a run, which --steps open does not have"),
        (["--steps", "open", "--schedule", "linear"], "decays to the end of a run, which --steps open does not have"),
        (["--steps", "open", "--batch", "8"], "which --steps open does not tell"),
    ],
)
def test_bad_input_is_named(arguments, message, capsys):
    try:
        code = main(["plan", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err
