"""The training loop: what a step does, what is recorded, and what can be asked of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ademamix import AdEMAMix
from ademamix.lab import data, models
from ademamix.lab import train as train_module
from ademamix.lab.config import ConfigError, Images, Mamba, Optimizer, Run, Switch, Text, UpdateNorms, ViT, read
from ademamix.lab.learning_rate import learning_rate
from ademamix.lab.record import RunError, RunFolder
from ademamix.lab.train import Options, Training, train
from lab_runs import DOCS, TINY, changed, outcome

MAMBA = changed(TINY, model=Mamba(kind="mamba", width=16, layers=1, state=4, context=16))
VIT = changed(
    TINY,
    model=ViT(kind="vit", width=16, layers=1, heads=1, patch=4, image=8, channels=1),
    data=Images(kind="images"),
    batch=16,
)


def _rows(run: Run, out: Path) -> list[dict[str, float]]:
    train(run, Options(out))
    return RunFolder(out / "runs", run).metrics()


@pytest.mark.parametrize("run", [TINY, MAMBA, VIT], ids=["gpt", "mamba", "vit"])
def test_every_kind_of_model_learns(run: Run, tmp_path: Path) -> None:
    rows = _rows(changed(run, steps=60, validate_every=20), tmp_path)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 15
    assert losses[-1] < losses[0]
    validations = [row for row in rows if "validation_loss" in row]
    assert [row["step"] for row in validations] == [20, 40, 60]
    assert ("accuracy" in validations[-1]) == (run is VIT)


@pytest.mark.parametrize("run", [TINY, VIT], ids=["text", "images"])
def test_the_training_batch_does_not_change_what_validates(run: Run, tmp_path: Path) -> None:
    scores = []
    for batch, seed in [(1, 0), (8, 5)]:
        dataset = data.load(run.data, model=run.model, batch=batch, seed=seed, cache=tmp_path)
        scores.append(Training(changed(run, batch=batch, validation_examples=70), dataset, "cpu").validate())
    assert scores[0] == scores[1]


def test_validation_is_the_mean_over_its_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = changed(TINY, validation_examples=70)
    dataset = data.load(run.data, model=run.model, batch=run.batch, seed=0, cache=tmp_path)
    (everything,) = dataset.validation(70, chunk=70)
    for logits_at_once in (train_module.VALIDATION_LOGITS, 1):  # a chunk of 32, and of a single example
        monkeypatch.setattr(train_module, "VALIDATION_LOGITS", logits_at_once)
        training = Training(run, dataset, "cpu")
        assert training.validate()["validation_loss"] == pytest.approx(training.loss_on(everything), rel=1e-6)


def test_the_loop_is_the_bare_loop(tmp_path: Path) -> None:
    train(TINY, Options(tmp_path))
    dataset = data.load(TINY.data, model=TINY.model, batch=TINY.batch, seed=TINY.seed, cache=tmp_path / "data")
    torch.manual_seed(TINY.seed)
    model = models.build_model(TINY.model, dataset.outputs)
    decay, stay = (group["params"] for group in models.parameter_groups(model))
    optimizer = AdEMAMix(
        [{"params": decay, "weight_decay": 0.1}, {"params": stay, "weight_decay": 0.0}], total_steps=TINY.steps
    )
    for step in range(TINY.steps):
        batch = dataset.batch(step)
        logits = model(batch.inputs).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(TINY.schedule, 1e-2, step + 1, TINY.steps)
        optimizer.step()
        optimizer.zero_grad()
    from transformers import AutoModelForCausalLM

    trained = AutoModelForCausalLM.from_pretrained(RunFolder(tmp_path / "runs", TINY).path / "model")
    for mine, theirs in zip(model.parameters(), trained.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_accumulation_changes_only_rounding(tmp_path: Path) -> None:
    whole, parts = (_rows(changed(TINY, batch=4, accumulate=n), tmp_path) for n in (1, 4))
    assert [row["step"] for row in whole] == [row["step"] for row in parts]
    assert parts[-1]["loss"] == pytest.approx(whole[-1]["loss"], rel=1e-4)


@pytest.mark.parametrize("fields", [{"autocast": True}, {"parameters": "bf16"}, {"clip": None}])
def test_other_precisions_and_no_clipping(fields: dict[str, object], tmp_path: Path) -> None:
    rows = _rows(changed(TINY, **fields), tmp_path)
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert ("gradient_norm" in rows[0]) == ("clip" not in fields)


def test_dropout_differs_from_step_to_step(tmp_path: Path) -> None:
    run = changed(TINY, model={**TINY.model.model_dump(), "dropout": 0.5})
    dataset = data.load(run.data, model=run.model, batch=run.batch, seed=0, cache=tmp_path)
    training, batch = Training(run, dataset, "cpu"), dataset.batch(0)
    outputs = []
    for step in range(3):
        training.step = step
        training.seed_step()
        outputs.append(models.logits(training.model, batch.inputs))
    assert not torch.equal(outputs[0], outputs[1])
    training.step = 0
    training.seed_step()
    assert torch.equal(models.logits(training.model, batch.inputs), outputs[0])


def test_a_switch_goes_on_with_the_other_optimizer(tmp_path: Path) -> None:
    adamw = changed(TINY, optimizer=Optimizer(name="adamw", lr=1e-2))
    switched = changed(adamw, switch=Switch(step=12, optimizer=Optimizer(name="ademamix", lr=1e-2)))
    before, after = _rows(adamw, tmp_path), _rows(switched, tmp_path)
    same = [row for row in before if row["step"] <= 12]
    assert same == after[: len(same)]
    assert before[-1] != after[-1]
    plain, with_slow = (train(run, Options(tmp_path)).state_bytes for run in (adamw, switched))
    assert plain < with_slow


def test_a_batch_can_be_followed_and_injected(tmp_path: Path) -> None:
    follow = {"kind": "follow-batch", "batch": 0, "every": 1}
    inject = {"kind": "inject-batch", "batch": 0, "step": 12}
    base = changed(TINY, data=Text(kind="text", source=DOCS, held_out_batches=1))
    without = _rows(changed(base, probes=[follow]), tmp_path)
    with_it = _rows(changed(base, probes=[follow, inject]), tmp_path)
    losses, injected = ([row["loss_on_batch_0"] for row in rows] for rows in (without, with_it))
    assert losses[:11] == injected[:11]
    assert injected[11] < losses[11], "training on the batch lowers the loss on it"


def test_update_norms_are_those_of_the_change(tmp_path: Path) -> None:
    rows = _rows(changed(TINY, probes=[UpdateNorms(kind="update-norms", first=3, last=5)]), tmp_path)
    norms = {row["step"]: row["update_norm"] for row in rows if "update_norm" in row}
    assert list(norms) == [3, 4, 5]
    dataset = data.load(TINY.data, model=TINY.model, batch=TINY.batch, seed=0, cache=tmp_path / "data")
    training = Training(TINY, dataset, "cpu")
    for _ in range(3):
        before = torch.nn.utils.parameters_to_vector(training.model.parameters()).detach()
        training.advance()
    after = torch.nn.utils.parameters_to_vector(training.model.parameters()).detach()
    assert norms[3] == pytest.approx((after - before).norm().item(), rel=1e-5)


def test_a_run_that_diverges_ends_and_says_so(tmp_path: Path) -> None:
    run = changed(TINY, optimizer=Optimizer(name="aggmo", lr=1e30), clip=None, parameters="fp32")
    result = train(run, Options(tmp_path))
    assert result.diverged
    assert result.steps < run.steps
    assert train(run, Options(tmp_path)).diverged, "it is kept"
    assert math.isnan(result.validation_loss)


def test_too_little_memory_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "build_model", lambda *_: torch.empty(1 << 60))
    with pytest.raises(RunError, match=r"not enough memory \(.*allocate.*\): give a smaller model or batch"):
        train(TINY, Options(tmp_path))


def test_tensorboard_has_the_same_numbers(tmp_path: Path) -> None:
    rows = _rows(TINY, tmp_path)
    events = EventAccumulator(str(RunFolder(tmp_path / "runs", TINY).path / "tensorboard"))
    events.Reload()
    recorded = [(event.step, event.value) for event in events.Scalars("validation_loss")]
    expected = [(row["step"], row["validation_loss"]) for row in rows if "validation_loss" in row]
    assert [step for step, _ in recorded] == [step for step, _ in expected]
    assert [value for _, value in recorded] == pytest.approx([value for _, value in expected])


def test_seeds_differ_and_repeat(tmp_path: Path) -> None:
    train(TINY, Options(tmp_path / "a"))
    train(TINY, Options(tmp_path / "b"))
    train(changed(TINY, seed=1), Options(tmp_path / "a"))
    assert outcome(TINY, tmp_path / "a") == outcome(TINY, tmp_path / "b")
    assert outcome(changed(TINY, seed=1), tmp_path / "a") != outcome(TINY, tmp_path / "a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"batch": True}, "a number, not a truth value"),
        ({"model": {"kind": "gpt", "width": 16, "heads": True, "layers": 1}}, "a number, not a truth value"),
        ({"model": {"kind": "gpt", "width": 16, "heads": 1, "layers": 1, "dropout": False}}, "a number, not a truth"),
        ({"optimizer": {"name": "adamw", "lr": True}}, "a number, not a truth value"),
        ({"schedule": {"kind": "cosine", "final": True}}, "a number, not a truth value"),
        ({"model": {"kind": "gpt", "width": 10, "heads": 3, "layers": 1}}, "multiple of heads"),
        ({"data": {"kind": "images"}}, "cannot be trained on images"),
        ({"batch": 3, "accumulate": 2}, "multiple of accumulate"),
        ({"switch": {"step": 24, "optimizer": {"name": "adamw", "lr": 1e-3}}}, "before the last step"),
        ({"switch": {"step": 2, "optimizer": {"name": "lion", "lr": 1e-3}}}, "got ademamix to lion"),
        ({"probes": [{"kind": "follow-batch", "every": 1}]}, "raise held_out_batches"),
        ({"probes": [{"kind": "update-norms", "first": 99, "last": 99}]}, "would begin at step 99 of 24"),
        ({"probes": [{"kind": "update-norms", "first": 9, "last": 8}]}, "must not be before the first"),
        ({"dropout": 0.1}, "dropout"),
        ({"seed": 2**64}, "seed"),
        ({"schedule": {"kind": "cosine", "warmup": 25}}, "must fit into the 24 steps"),
        ({"schedule": {"kind": "constant", "warmup": 5, "decay": 20}}, "got 5 \\+ 20"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        changed(TINY, **fields)


def test_a_mistake_in_a_file_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.lr: Input should be greater than 0, got -1"):
        read(Run, TINY.model_dump_json().replace('"lr":0.01', '"lr":-1'))
