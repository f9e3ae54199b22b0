"""The training loop: what a step does, what is recorded, and what can be asked of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ademamix import AdEMAMix
from ademamix.lab import config, data
from ademamix.lab import training as training_module
from ademamix.lab.config import ConfigError, ConstantThenLinear, Images, Mamba, Optimizer, Run, Text, ViT, read
from ademamix.lab.execution import pace
from ademamix.lab.models import networks
from ademamix.lab.optimizers.learning_rate import learning_rate
from ademamix.lab.probes import UpdateNorms
from ademamix.lab.runs.record import RunError, RunFolder
from ademamix.lab.train import Options, train
from ademamix.lab.training import Training
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


@given(st.integers(1, 10**7), st.integers(1, 4096), st.integers(1, 10**5))
def test_validations_take_a_tenth_of_the_time_or_there_is_one(steps: int, batch: int, examples: int) -> None:
    interval = config.validation_interval(steps, batch, examples)
    validations = -(-steps // interval)  # the last of them after the last step
    assert 1 <= interval <= steps
    assert validations <= config.MOST_VALIDATIONS
    assert validations == 1 or validations * config.VALIDATION_COST * examples <= 0.1 * steps * batch * (1 + 1e-9)


def test_validation_is_the_mean_over_its_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = changed(TINY, validation_examples=70)
    dataset = data.load(run.data, model=run.model, batch=run.batch, seed=0, cache=tmp_path)
    (everything,) = dataset.validation(70, chunk=70)
    for logits_at_once in (training_module.VALIDATION_LOGITS, 1):  # a chunk of 32, and of a single example
        monkeypatch.setattr(training_module, "VALIDATION_LOGITS", logits_at_once)
        training = Training(run, dataset, "cpu")
        assert training.validate()["validation_loss"] == pytest.approx(training.loss_on(everything), rel=1e-6)


def test_the_loop_is_the_bare_loop(tmp_path: Path) -> None:
    train(TINY, Options(tmp_path))
    dataset = data.load(TINY.data, model=TINY.model, batch=TINY.batch, seed=TINY.seed, cache=tmp_path / "data")
    torch.manual_seed(TINY.seed)
    model = networks.build_model(TINY.model, dataset.outputs)
    decay, stay = (group["params"] for group in networks.parameter_groups(model))
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
        outputs.append(networks.logits(training.model, batch.inputs))
    assert not torch.equal(outputs[0], outputs[1])
    training.step = 0
    training.seed_step()
    assert torch.equal(networks.logits(training.model, batch.inputs), outputs[0])


def test_a_switch_goes_on_with_the_other_optimizer(tmp_path: Path) -> None:
    adamw = changed(TINY, optimizer=Optimizer(name="adamw", lr=1e-2))
    switched = adamw.then(12, Optimizer(name="ademamix", lr=1e-2))
    before, after = _rows(adamw, tmp_path), _rows(switched, tmp_path)
    same = [row for row in before if row["step"] <= 12]
    assert same == after[: len(same)]
    assert before[-1] != after[-1]
    plain, with_slow = (train(run, Options(tmp_path)).state_bytes for run in (adamw, switched))
    assert plain < with_slow


def test_a_phase_brings_its_own_rate_and_schedule(tmp_path: Path) -> None:
    adamw = changed(TINY, optimizer=Optimizer(name="adamw", lr=1e-2))
    constant = ConstantThenLinear(kind="constant", warmup=4)
    phases = {
        "rate": adamw.then(12, Optimizer(name="adamw", lr=5e-3)),
        "schedule": adamw.then(12, schedule=constant),
        "both": adamw.then(12, Optimizer(name="adamw", lr=5e-3), constant),
    }
    plain = _rates(adamw, tmp_path)
    rates = {name: _rates(run, tmp_path) for name, run in phases.items()}
    for name, found in rates.items():
        assert {step: found[step] for step in (4, 8, 12)} == {step: plain[step] for step in (4, 8, 12)}, name
    final, share = 1e-5, (plain[16] - 1e-5) / (1e-2 - 1e-5)  # of the way that the cosine has left
    assert rates["rate"][16] == pytest.approx(final + (5e-3 - final) * share)
    assert [rates["schedule"][16], rates["both"][16]] == [1e-2, 5e-3]


def _rates(run: Run, out: Path) -> dict[int, float]:
    return {row["step"]: row["lr"] for row in _rows(run, out) if "lr" in row}


def test_a_batch_can_be_followed_and_injected(tmp_path: Path) -> None:
    follow = {"kind": "follow-batch", "batch": 0, "every": 1}
    inject = {"kind": "inject-batch", "batch": 0, "step": 12}
    base = changed(TINY, data=Text(kind="text", source=DOCS, held_out_batches=1))
    without = _rows(changed(base, probes=[follow]), tmp_path)
    with_it = _rows(changed(base, probes=[follow, inject]), tmp_path)
    losses, injected = ([row["loss_on_batch_0"] for row in rows] for rows in (without, with_it))
    assert losses[:11] == injected[:11]
    assert injected[11] < losses[11], "training on the batch lowers the loss on it"


def test_a_training_batch_is_followed_from_just_before_it(tmp_path: Path) -> None:
    probe = {"kind": "follow-training-batch", "step": 8, "every": 3, "until": 14}
    rows = _rows(changed(TINY, probes=[probe]), tmp_path)
    losses = {row["step"]: row["loss_on_training_batch_8"] for row in rows if "loss_on_training_batch_8" in row}
    assert list(losses) == [7, 10, 13]
    dataset = data.load(TINY.data, model=TINY.model, batch=TINY.batch, seed=0, cache=tmp_path / "data")
    training = Training(TINY, dataset, "cpu")
    for _ in range(7):
        training.advance()
    assert losses[7] == training.loss_on(dataset.batch(7)), "the batch that the next step trains on"


@pytest.mark.parametrize("run", [TINY, VIT], ids=["text", "images"])
def test_the_training_loss_is_measured_as_the_validation_loss_is(run: Run, tmp_path: Path) -> None:
    run = changed(run, model={**run.model.model_dump(), "dropout": 0.1})
    rows = _rows(changed(run, probes=[{"kind": "training-loss", "every": 12, "examples": 40}]), tmp_path)
    losses = {row["step"]: row["training_loss"] for row in rows if "training_loss" in row}
    assert list(losses) == [12, 24]
    dataset = data.load(run.data, model=run.model, batch=run.batch, seed=0, cache=tmp_path / "data")
    training = Training(run, dataset, "cpu")
    for _ in range(12):
        training.advance()
    (batch,) = dataset.training(40, chunk=40)
    with torch.no_grad():
        loss = networks.cross_entropy(networks.logits(training.model.eval(), batch.inputs), batch.targets)
    assert losses[12] == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("parameters", ["fp32", "bf16"])
def test_update_norms_are_those_of_the_change_over_a_span(parameters: str, tmp_path: Path) -> None:
    run = changed(TINY, parameters=parameters)
    rows = _rows(changed(run, probes=[UpdateNorms(kind="update-norms", span=5)]), tmp_path)
    norms = {row["step"]: row["norm_of_5_updates"] for row in rows if "norm_of_5_updates" in row}
    assert list(norms) == [5, 10, 15, 20]
    dataset = data.load(run.data, model=run.model, batch=run.batch, seed=0, cache=tmp_path / "data")
    training, points = Training(run, dataset, "cpu"), []
    for _ in range(11):
        points.append(torch.nn.utils.parameters_to_vector(training.model.parameters()).detach().double())
        training.advance()
    for step in (5, 10):
        assert norms[step] == pytest.approx((points[step] - points[step - 5]).norm().item(), rel=1e-5)


def test_a_batch_is_processed_in_parts_that_fit_into_the_memory_for_logits(tmp_path: Path) -> None:
    run = changed(TINY, batch=12)
    dataset = data.load(run.data, model=run.model, batch=run.batch, seed=0, cache=tmp_path)
    example = training_module.BYTES_PER_LOGIT * 16 * dataset.outputs

    def parts(examples: float, processes: int = 1, **fields: object) -> int:
        memory = int(examples * example)
        return training_module.parts_of_a_batch(changed(run, **fields), dataset.outputs, memory, processes)

    assert [parts(examples) for examples in (12, 11.9, 4, 3.9, 1, 0.1)] == [1, 2, 3, 4, 12, 12]
    assert parts(12, accumulate=3) == 3
    assert parts(2, accumulate=3) == 6
    dropout = {**run.model.model_dump(), "dropout": 0.1}
    assert parts(1, model=dropout) == 1, "other parts would drop others"
    assert [parts(examples, processes=2) for examples in (6, 5.9, 2, 1)] == [1, 2, 3, 6]
    assert [parts(12, processes=2, accumulate=accumulate) for accumulate in (2, 3, 12)] == [1, 2, 6]
    assert parts(12, processes=2, accumulate=3, model=dropout) == 3
    with pytest.raises(ConfigError, match=r"a batch of 12 cannot be divided among 5 processes: .* a multiple of 5"):
        parts(12, processes=5)
    with pytest.raises(ConfigError, match=r"among 2 processes in 4 parts .* a multiple of 8"):
        parts(12, processes=2, accumulate=4, model=dropout)


def test_parts_change_only_rounding(tmp_path: Path) -> None:
    few = {"steps": 12, "batch": 4}  # steps enlarge what rounding changes
    run = changed(TINY, **few, data=Text(kind="text", source=DOCS, held_out_batches=1))
    run = changed(run, probes=[{"kind": "follow-batch", "batch": 0, "every": 12}])
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(run, Options(whole))
    train(run, Options(parts, logits_bytes=1))
    first, second = (RunFolder(out / "runs", run).metrics() for out in (whole, parts))
    assert first != second
    assert first[-1] == pytest.approx(second[-1], rel=1e-4)


def test_saving_takes_a_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, saved = [0.0], []
    monkeypatch.setattr(pace, "now", lambda: now[0])
    advance = Training.advance

    def a_step_takes_a_second(training: Training) -> dict[str, float]:
        now[0] += 1
        return advance(training)

    def saving_takes_two(folder: RunFolder, step: int, state: object) -> None:
        now[0] += 2
        saved.append(step)

    monkeypatch.setattr(Training, "advance", a_step_takes_a_second)
    monkeypatch.setattr(RunFolder, "save_checkpoint", saving_takes_two)
    train(changed(TINY, steps=60), Options(tmp_path / "a", save_every=4, save_share=0.1))
    assert saved == [4, 22, 40, 58], "2 of 20 seconds"
    saved.clear()
    train(changed(TINY, steps=60), Options(tmp_path / "b", save_every=25, save_share=0.1))
    assert saved == [25, 50]


def test_the_time_left_counts_validations_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[float] = [0.0]
    monkeypatch.setattr(pace, "now", lambda: now[0])
    left = {}
    run = changed(TINY, steps=100, validate_every=40)  # after 40, 80 and 100
    timed = pace.Pace(run)
    for step in range(1, 101):
        with timed.measured("step"):
            now[0] += 2
        if step % 40 == 0:
            with timed.measured("validation"):
                now[0] += 30
        left[step] = timed.seconds_left(step)
    guess = pace.VALIDATION_COST * run.validation_examples / run.batch * 2
    assert left[10] == pytest.approx(180 + 3 * guess)
    assert left[50] == pytest.approx(100 + 2 * 30)
    assert left[80] == pytest.approx(40 + 30)
    assert timed.steps_per_second == pytest.approx(0.5)
    with timed.measured("save"):
        now[0] += 26
    assert timed.seconds_left(80) == pytest.approx(70 * 1.1)
    assert timed.seconds_left(100) == 0


def test_a_run_that_diverges_ends_and_says_so(tmp_path: Path) -> None:
    run = changed(TINY, optimizer=Optimizer(name="aggmo", lr=1e30), clip=None, parameters="fp32")
    result = train(run, Options(tmp_path))
    assert result.diverged
    assert result.steps < run.steps
    assert train(run, Options(tmp_path)).diverged, "it is kept"
    assert math.isnan(result.validation_loss)


def test_too_little_memory_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "build_model", lambda *_: torch.empty(1 << 60))
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
        ({"phases": [{"step": 24, "optimizer": {"name": "adamw", "lr": 1e-3}}]}, "before the last step"),
        ({"phases": [{"step": 2, "optimizer": {"name": "adamw", "lr": 1e-3}}] * 2}, "one after another"),
        ({"phases": [{"step": 2}]}, "changes nothing"),
        ({"probes": [{"kind": "follow-batch", "every": 1}]}, "raise held_out_batches"),
        ({"probes": [{"kind": "update-norms", "span": 25}]}, "would begin at step 25, after the last step, 24"),
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
    with pytest.raises(ConfigError, match=r"optimizer\.lr must be above 0, got -1"):
        read(Run, TINY.model_dump_json().replace('"lr":0.01', '"lr":-1'))
