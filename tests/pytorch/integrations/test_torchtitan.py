"""torchtitan's container of optimizers has AdEMAMix where it builds AdamW, with the horizon of the job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ademamix import AdEMAMix

pytestmark = [
    pytest.mark.triton,  # torchtitan imports it
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # of torch's own compiler
]


@pytest.fixture
def titan():
    """The parts of torchtitan that are needed here, imported when a test is run."""
    from torchtitan.config import JobConfig
    from torchtitan.protocols.train_spec import get_train_spec

    job = JobConfig()
    job.training.steps = 500
    job.optimizer.implementation = "foreach"
    job.lr_scheduler.warmup_steps = 2
    return SimpleNamespace(spec=get_train_spec("llama3"), job=job)


def built(titan, parts=1, **settings):
    from ademamix.pytorch.integrations.torchtitan import with_ademamix

    spec, job = with_ademamix(titan.spec, **settings), titan.job
    models = [torch.nn.Linear(3, 2) for _ in range(parts)]
    parallel = SimpleNamespace(ep_enabled=False, pp_enabled=False)
    optimizers = spec.build_optimizers_fn(models, job.optimizer, parallel)
    schedulers = spec.build_lr_schedulers_fn(optimizers, job.lr_scheduler, job.training.steps)
    return models, optimizers, schedulers


def test_the_settings_are_those_of_the_job(titan):
    titan.job.optimizer.lr = 3e-3
    titan.job.optimizer.weight_decay = 0.2
    _, optimizers, _ = built(titan, parts=2)
    assert len(optimizers) == 2
    for optimizer in optimizers:
        assert type(optimizer) is AdEMAMix
        (group,) = optimizer.param_groups
        assert group["initial_lr"] == 3e-3
        assert group["weight_decay"] == 0.2
        assert group["betas"] == (0.9, 0.95, 0.95)  # beta3 for 500 steps
        assert (group["total_steps"], group["alpha_warmup"], group["beta3_warmup"]) == (500, 500, 500)
        assert (group["alpha"], group["foreach"]) == (5.0, True)
        assert not group["fused"]


def test_settings_of_ademamix(titan):
    _, optimizers, _ = built(titan, alpha=8.0, beta3=0.99, alpha_warmup=10, state_storage="compact")
    (group,) = next(iter(optimizers)).param_groups
    assert (group["alpha"], group["betas"][2], group["alpha_warmup"]) == (8.0, 0.99, 10)
    assert group["state_storage"] == "compact"


def test_the_horizon_follows_that_of_the_learning_rate(titan):
    titan.job.lr_scheduler.total_steps = 2000
    _, optimizers, _ = built(titan)
    assert next(iter(optimizers)).param_groups[0]["total_steps"] == 2000
    _, optimizers, _ = built(titan, total_steps=900)
    assert next(iter(optimizers)).param_groups[0]["total_steps"] == 900


def test_steps_and_schedulers_reach_it(titan):
    (model,), optimizers, schedulers = built(titan)
    before = model.weight.detach().clone()
    for _ in range(3):
        optimizers.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizers.step()
        schedulers.step()
    assert next(iter(optimizers)).schedule()[0]["slow_step"] == 3
    assert not torch.equal(model.weight, before)
    assert next(iter(optimizers)).param_groups[0]["lr"] == schedulers.schedulers[0].get_last_lr()[0]


def test_what_is_refused(titan):
    titan.job.optimizer.name = "Adam"
    with pytest.raises(ValueError, match="this is Adam with L2 weight decay"):
        built(titan)
    titan.job.optimizer.name = "AdamW"
    titan.job.optimizer.early_step_in_backward = True
    with pytest.raises(ValueError, match=r"Set optimizer\.early_step_in_backward to false"):
        built(titan)
