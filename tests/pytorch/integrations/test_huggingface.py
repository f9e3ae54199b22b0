"""Hugging Face's Trainer: the horizon is the number of its steps, and a resumed run has the numbers of another."""

from __future__ import annotations

import math

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from ademamix import AdEMAMix
from ademamix.checkpoints import convert
from ademamix.pytorch.integrations.huggingface import log_diagnostics, read_optim_args, use_ademamix

EXAMPLES = 24


class Regression(torch.nn.Module):
    """A model with a matrix, which has weight decay, and biases, which have none."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.largest_batch = EXAMPLES

    def forward(self, inputs, labels):
        if len(inputs) > self.largest_batch:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")  # what Trainer looks for
        return {"loss": torch.nn.functional.mse_loss(self.layers(inputs).squeeze(1), labels)}


def examples():
    inputs = torch.randn(EXAMPLES, 8, generator=torch.Generator().manual_seed(1))
    return [{"inputs": row, "labels": row.sum()} for row in inputs]


class Stream(IterableDataset):
    """Data whose length nobody knows."""

    def __iter__(self):
        return iter(examples())


def trainer_in(folder, dataset=None, callbacks=None, **arguments):
    set_seed(0)
    usual = {"per_device_train_batch_size": 4, "save_strategy": "no", "learning_rate": 1e-2, "report_to": "none"}
    args = TrainingArguments(str(folder), disable_tqdm=True, use_cpu=True, **{**usual, **arguments})
    return Trainer(Regression(), args, train_dataset=dataset or examples(), callbacks=callbacks)


def groups_of(trainer):
    return trainer.optimizer.param_groups


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"num_train_epochs": 2}, 12),
        ({"num_train_epochs": 2, "gradient_accumulation_steps": 4}, 4),  # the last 2 of 6 batches are a step as well
        ({"num_train_epochs": 1.5}, 9),
        ({"max_steps": 7, "num_train_epochs": 50}, 7),
        ({"max_steps": 5, "dataset": Stream()}, 5),
        ({"num_train_epochs": 2, "dataloader_drop_last": True, "per_device_train_batch_size": 5}, 8),
    ],
    ids=["epochs", "accumulation", "part of an epoch", "max_steps", "stream", "drop_last"],
)
def test_the_horizon_is_what_the_trainer_counts(tmp_path, arguments, steps):
    trainer = trainer_in(tmp_path, **arguments)
    use_ademamix(trainer)
    trainer.train()
    assert trainer.state.global_step == steps
    schedule = trainer.optimizer.optimizer.schedule()  # under Accelerate's wrapper
    assert [group["total_steps"] for group in groups_of(trainer)] == [steps] * 2
    assert [state["slow_step"] for state in schedule] == [steps] * 2
    assert [state["alpha"] for state in schedule] == [5.0] * 2  # the end of its warm-up


def test_the_settings_are_those_of_the_training_arguments(tmp_path):
    trainer = trainer_in(
        tmp_path,
        max_steps=2,
        learning_rate=3e-3,
        adam_beta1=0.8,
        adam_beta2=0.95,
        adam_epsilon=1e-7,
        weight_decay=0.3,
        lr_scheduler_type="constant",
        optim="ademamix",  # that of bitsandbytes, which is not used
        optim_args="alpha=8,beta3=0.99,t_alpha=1e3,t_beta3=500,state_storage=compact",
    )
    use_ademamix(trainer, alpha=6.0)
    with pytest.warns(UserWarning, match="the slow average outlives the run"):
        trainer.train()
    decayed, others = groups_of(trainer)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    for group in (decayed, others):
        assert group["lr"] == 3e-3
        assert group["betas"] == (0.8, 0.95, 0.99)
        assert group["eps"] == 1e-7
        assert group["alpha"] == 6.0
        assert (group["total_steps"], group["alpha_warmup"], group["beta3_warmup"]) == (2, 1000, 500)
        assert group["state_storage"] == "compact"


def test_by_class_and_arguments(tmp_path):
    """The Trainer's own way, for those who know the number of steps, comes to the same."""
    ours = trainer_in(tmp_path, max_steps=6)
    use_ademamix(ours, alpha=4.0)
    ours.train()
    set_seed(0)
    settings = {"lr": 1e-2, "alpha": 4.0, "total_steps": 6}
    args = ours.args
    theirs = Trainer(Regression(), args, train_dataset=examples(), optimizer_cls_and_kwargs=(AdEMAMix, settings))
    theirs.train()
    assert_same_parameters(ours, theirs)


def assert_same_parameters(first, second):
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


class StopAt(TrainerCallback):
    """Ends a run early, as a signal would."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


@pytest.mark.parametrize("length", [{"num_train_epochs": 4}, {"max_steps": 7}], ids=["epochs", "max_steps"])
@pytest.mark.parametrize("storage", ["fp32", "compact"])
def test_a_resumed_run_has_the_same_numbers(tmp_path, length, storage):
    arguments = {
        **length,
        "gradient_accumulation_steps": 2,
        "save_strategy": "steps",
        "save_steps": 4,
        "lr_scheduler_type": "cosine",
        "save_only_model": False,
    }

    def run(folder, callbacks=None, resume=None):
        trainer = trainer_in(tmp_path / folder, callbacks=callbacks, **arguments)
        use_ademamix(trainer, state_storage=storage)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run("whole")
    stopped = run("stopped", [StopAt(5)])
    assert stopped.state.global_step == 5
    resumed = run("stopped", resume=True)  # from its step 4
    assert resumed.state.global_step == whole.state.global_step
    assert groups_of(resumed)[0]["total_steps"] == whole.state.global_step
    assert_same_parameters(whole, resumed)


def test_a_run_is_extended_by_resuming_it(tmp_path):
    first = trainer_in(tmp_path, max_steps=4, save_strategy="steps", save_steps=4)
    use_ademamix(first)
    first.train()
    longer = trainer_in(tmp_path, max_steps=10)
    use_ademamix(longer)
    with pytest.warns(UserWarning, match="total_steps"):  # alpha and beta3 before and after
        longer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert groups_of(longer)[0]["total_steps"] == 10


def test_a_run_that_was_switched_keeps_its_horizon(tmp_path):
    """AdamW up to step 4, then converted for the 6 that are left; resumed twice, the second time to be longer."""
    saving = {"save_strategy": "steps", "save_steps": 4}

    def resume(checkpoint, steps, **settings):
        trainer = trainer_in(tmp_path / "ours", max_steps=steps, **saving)
        use_ademamix(trainer, **settings)
        trainer.train(resume_from_checkpoint=str(tmp_path / checkpoint))
        return groups_of(trainer)

    trainer_in(tmp_path / "adamw", max_steps=4, **saving).train()
    assert torch.load(tmp_path / "adamw" / "checkpoint-4" / "optimizer.pt")["param_groups"][0]["fused"] is True
    convert(tmp_path / "adamw" / "checkpoint-4", tmp_path / "converted", total_steps=6)
    for groups in (resume("converted", 10), resume("ours/checkpoint-8", 10)):
        assert [(group["total_steps"], group["fused"]) for group in groups] == [(6, None), (6, None)]
        assert [(group["alpha"], group["alpha_warmup"], group["beta3_warmup"]) for group in groups] == [(2.0, 0, 0)] * 2
    with pytest.warns(UserWarning, match=r"began at step 4, and keeps its total_steps = 6.*total_steps=8\)"):
        assert resume("ours/checkpoint-8", 12)[0]["total_steps"] == 6
    assert resume("ours/checkpoint-8", 12, total_steps=8)[0]["total_steps"] == 8


def test_a_batch_that_did_not_fit_into_memory(tmp_path):
    """The Trainer halves it, which doubles the number of steps; diagnostics are those of the second optimizer."""
    trainer = trainer_in(tmp_path, num_train_epochs=1, auto_find_batch_size=True)
    trainer.model.largest_batch = 2
    use_ademamix(trainer)
    log_diagnostics(trainer, every=3, share=math.inf)
    trainer.train()
    looks = [row["step"] for row in trainer.state.log_history if "ademamix/0/alpha" in row]
    assert looks == list(range(3, trainer.state.global_step + 1, 3))
    assert trainer.state.global_step > EXAMPLES // 4
    assert groups_of(trainer)[0]["total_steps"] == trainer.state.global_step


def test_mistakes(tmp_path):
    trainer = trainer_in(tmp_path, max_steps=4)
    with pytest.raises(ValueError, match=r"lr is set by the trainer: pass TrainingArguments\(learning_rate=0.1\)"):
        use_ademamix(trainer, lr=0.1)
    use_ademamix(trainer)
    with pytest.raises(ValueError, match=r"in train\(\) only: call that, or pass total_steps"):
        trainer.create_optimizer()
    trainer.train()
    with pytest.raises(ValueError, match="has an optimizer already"):
        use_ademamix(trainer)


def test_the_last_call_counts(tmp_path):
    trainer = trainer_in(tmp_path, max_steps=1)
    use_ademamix(trainer, alpha=8.0, beta3_start=0.5)
    use_ademamix(trainer, alpha=6.0)
    trainer.train()
    assert groups_of(trainer)[0]["alpha"] == 6.0
    assert groups_of(trainer)[0]["beta3_start"] == 0.9


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (None, {}),
        ("", {}),
        ("beta1=0, total_steps=1e4", {"beta1": 0.0, "total_steps": 1e4}),
        ("total_steps=open", {"total_steps": "open"}),
        ("t_alpha=10,t_beta3=20", {"alpha_warmup": 10.0, "beta3_warmup": 20.0}),
        ("fused=False,foreach=true,rounding_seed=3", {"fused": False, "foreach": True, "rounding_seed": 3}),
    ],
)
def test_optim_args(text, settings):
    assert read_optim_args(text) == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr=1", "has 'lr=1': write NAME=VALUE with one of alpha, beta1"),
        ("alpha", "has 'alpha': write NAME=VALUE"),
        ("alpha=large", "has 'alpha=large', whose value cannot be read"),
        ("fused=maybe", "has 'fused=maybe', whose value cannot be read"),
        ("t_alpha=1,alpha_warmup=2", "has alpha_warmup twice"),
    ],
)
def test_optim_args_with_a_mistake(text, message):
    with pytest.raises(ValueError, match=message):
        read_optim_args(text)


class TestDiagnostics:
    def test_they_go_where_the_trainer_logs(self, tmp_path):
        trainer = trainer_in(tmp_path, report_to="tensorboard", max_steps=12, logging_steps=4)
        use_ademamix(trainer)
        log_diagnostics(trainer, share=math.inf)
        trainer.train()
        (kept,) = tmp_path.rglob("events.out.tfevents.*")
        events = EventAccumulator(str(kept.parent))
        events.Reload()
        norms = events.Scalars("train/ademamix/0/update_norm")  # the Trainer has two groups
        assert [event.step for event in norms] == [4, 8, 12]
        assert all(event.value > 0 for event in norms)
        history = [row for row in trainer.state.log_history if "ademamix/1/alpha" in row]
        assert [(row["step"], row["ademamix/1/alpha"]) for row in history] == [
            (step, pytest.approx(5.0 * step / 12)) for step in (4, 8, 12)
        ]
        assert not trainer.optimizer.optimizer._optimizer_step_post_hooks

    def test_another_optimizer(self, tmp_path):
        trainer = trainer_in(tmp_path, max_steps=2)
        log_diagnostics(trainer)
        with pytest.raises(ValueError, match=r"has no AdEMAMix to follow: .* must be an ademamix\.AdEMAMix"):
            trainer.train()
