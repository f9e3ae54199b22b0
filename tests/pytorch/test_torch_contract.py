"""What torch.optim promises beyond its test database: schedulers, groups, hooks, AMP, differentiation."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler, swa_utils

from ademamix.pytorch.storage import MOMENT_DTYPES
from cases import PATHS, make, oracle_of, relative_error
from database import assert_same, params_of, random_like, run, set_gradients

BODIES = {name: PATHS[name] for name in ("single", "foreach", "fused")}
every_path = pytest.mark.parametrize("path", PATHS)


@every_path
def test_closure(path):
    (param,) = params_of((3,))
    optimizer = make([param], **PATHS[path])
    losses = []

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        losses.append(param.square().sum())
        losses[-1].backward()
        return losses[-1]

    with torch.no_grad():
        assert optimizer.step(closure) is losses[-1]
    assert len(losses) == 1
    assert optimizer.step() is None
    assert optimizer.state[param]["step"] == 2


# A constructor for each class in torch.optim.lr_scheduler.
SCHEDULERS = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda epoch: 0.9),
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, step_size=3, gamma=0.5),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, milestones=[3, 11], gamma=0.5),
    "ConstantLR": lambda opt: lr_scheduler.ConstantLR(opt, factor=0.5, total_iters=7),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, total_iters=15),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, gamma=0.9),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, total_iters=5), lr_scheduler.ExponentialLR(opt, gamma=0.9)], milestones=[5]
    ),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, total_iters=15, power=2.0),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=15),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt, factor=0.1, total_iters=4), lr_scheduler.ExponentialLR(opt, gamma=0.9)], opt
    ),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=2),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, base_lr=1e-3, max_lr=1e-1, step_size_up=6),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=6, T_mult=2),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=40),
    "SWALR": lambda opt: swa_utils.SWALR(opt, swa_lr=0.05, anneal_epochs=8),
}
CYCLING_BETA1 = ("CyclicLR", "OneCycleLR")
every_scheduler = pytest.mark.parametrize("name", SCHEDULERS)


def test_every_scheduler_has_a_row():
    classes = {
        name
        for name, value in vars(lr_scheduler).items()
        if inspect.isclass(value) and issubclass(value, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert classes - {"LRScheduler"} == SCHEDULERS.keys() - {"SWALR"}


def scheduled_run(params, optimizer, scheduler, steps):
    """Run, and return the lr and beta1 that each step was taken with."""
    taken = []
    for seed in steps:
        taken.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0]))
        run(params, optimizer, [seed])
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
    return taken


@every_scheduler
@every_path
def test_scheduler(name, path):
    params, adamw_params = (params_of((4, 3), (5,), dtype=torch.float64) for _ in range(2))
    optimizer = make(params, lr=1e-2, total_steps=1000, **PATHS[path])
    oracles = [oracle_of(param.detach().numpy(), optimizer) for param in params]
    adamw = torch.optim.AdamW(adamw_params, lr=1e-2)
    taken = scheduled_run(params, optimizer, SCHEDULERS[name](optimizer), range(20))
    assert taken == scheduled_run(adamw_params, adamw, SCHEDULERS[name](adamw), range(20))
    assert len({lr for lr, _ in taken}) > 1
    assert (len({beta1 for _, beta1 in taken}) > 1) == (name in CYCLING_BETA1)
    assert optimizer.param_groups[0]["betas"][1:] == (0.999, 0.975)
    for seed, (lr, beta1) in enumerate(taken):  # by hand, with a beta3 that starts where beta1 was at construction
        set_gradients(adamw_params, seed)
        for oracle, param in zip(oracles, adamw_params, strict=True):
            oracle.lr, oracle.betas = lr, (beta1, 0.999, 0.975)
            oracle.update(param.grad.numpy())
    assert [relative_error(*pair) < 1e-13 for pair in zip(params, (o.theta for o in oracles), strict=True)] == [
        True
    ] * 2


@every_scheduler
@pytest.mark.parametrize("total_steps", [40, 1000])
def test_a_scheduled_run_resumes_alike(name, total_steps):
    params = params_of((4, 3), (5,))
    optimizer = make(params, lr=1e-2, total_steps=total_steps)
    scheduler = SCHEDULERS[name](optimizer)
    scheduled_run(params, optimizer, scheduler, range(9))
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))

    others = [Parameter(param.detach().clone()) for param in params]
    resumed = make(others, lr=1e-2, total_steps=total_steps)
    resumed_scheduler = SCHEDULERS[name](resumed)
    resumed.load_state_dict(saved[0])
    resumed_scheduler.load_state_dict(saved[1])
    assert resumed.schedule() == optimizer.schedule()
    scheduled_run(params, optimizer, scheduler, range(9, 20))
    scheduled_run(others, resumed, resumed_scheduler, range(9, 20))
    assert_same(others, params)
    assert_same(resumed.state_dict(), optimizer.state_dict())


def test_a_scheduler_stepped_too_early_is_told_so():
    (param,) = params_of((3,))
    optimizer = make([param])
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\).* before .*optimizer.step\(\)"):
        scheduler.step()


@every_path
def test_groups_join_and_layers_freeze_with_their_own_clocks(path):
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 4).double(), torch.nn.Linear(4, 2).double()
    optimizer = make(first.named_parameters(), total_steps=1000, **PATHS[path])
    oracles = {param: oracle_of(param.detach().numpy(), optimizer) for param in first.parameters()}
    for step in range(30):
        if step == 7:
            optimizer.add_param_group({"params": second.named_parameters(), "lr": 1e-2, "alpha": 3.0})
            oracles |= {param: oracle_of(param.detach().numpy(), optimizer, 1) for param in second.parameters()}
        first.requires_grad_(not 10 <= step < 20)  # frozen and thawed
        optimizer.zero_grad()
        second(first(torch.randn(8, 3, dtype=torch.float64)).tanh()).square().sum().backward()
        for param, oracle in oracles.items():
            if param.grad is not None:
                oracle.update(param.grad.numpy())
        optimizer.step()
    for param, oracle in oracles.items():
        assert relative_error(param, oracle.theta) < 1e-13
        assert optimizer.state[param]["step"] == oracle.step
    assert [group["param_names"] for group in optimizer.state_dict()["param_groups"]] == [["weight", "bias"]] * 2
    assert [(group["step"], group["slow_step"]) for group in optimizer.schedule()] == [(20, 20), (23, 23)]


@every_path
def test_one_optimizer_for_each_parameter_in_backward_hooks(path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    twin = copy.deepcopy(model)
    optimizer = make(model.parameters(), total_steps=1000, **PATHS[path])
    optimizers = {param: make([param], total_steps=1000, **PATHS[path]) for param in twin.parameters()}

    def step_and_free(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in optimizers:
        param.register_post_accumulate_grad_hook(step_and_free)
    for _ in range(5):
        batch = torch.randn(8, 3)
        twin(batch).square().mean().backward()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    assert_same(list(twin.parameters()), list(model.parameters()))
    assert all(param.grad is None for param in optimizers)


STEP_VARIANTS = {
    "plain": {},
    "maximize": {"maximize": True},
    "skip": {"nonfinite": "skip"},
    "no m1": {"betas": (0, 0.9)},
}


@pytest.mark.parametrize("variant", STEP_VARIANTS)
@pytest.mark.parametrize("dtype", MOMENT_DTYPES, ids=str)
@every_path
def test_gradients_are_left_as_they_are_and_accumulate(path, dtype, variant):
    (param,) = params_of((4, 3), dtype=dtype)
    optimizer = make([param], **STEP_VARIANTS[variant], **PATHS[path])
    for part in range(3):
        (param * part).sum().abs().backward()
        before = param.grad.clone()
        if part:
            optimizer.step()
        assert_same(param.grad, before)
    assert optimizer.state[param]["step"] == 2


SCALED = {**BODIES, "own choice": {}, "fused-capturable": PATHS["fused-capturable"]}


@pytest.mark.parametrize("unscale_first", [False, True])
@pytest.mark.parametrize("path", SCALED)
def test_grad_scaler(path, unscale_first):
    params, expected = (params_of((4, 3), (5,)) for _ in range(2))
    optimizer, reference = (make([{"params": [p]} for p in both], **SCALED[path]) for both in (params, expected))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    assert optimizer._step_supports_amp_scaling == (path in ("fused", "fused-capturable"))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    for step in range(6):
        overflows = step in (0, 3)
        optimizer.zero_grad()
        loss = sum((param * torch.randn_like(param)).sum() for param in params)
        scaler.scale(loss).backward()
        if overflows:
            params[1].grad[0] = torch.inf
        before = copy.deepcopy((params, optimizer.state_dict()))
        if unscale_first:
            scaler.unscale_(optimizer)
        if not overflows:
            for param, other in zip(params, expected, strict=True):
                other.grad = param.grad / (1.0 if unscale_first else scaler.get_scale())
            reference.step()
        scaler.step(optimizer)
        scaler.update()
        if overflows:
            assert_same((params, optimizer.state_dict()), before)
        elif step:
            scheduler.step()
            reference.param_groups[0]["lr"], reference.param_groups[1]["lr"] = scheduler.get_last_lr()
    assert_same(params, expected)
    assert scaler.get_scale() == 256.0
    assert optimizer.state[params[0]]["step"] == 4
    assert not hasattr(optimizer, "grad_scale")


@pytest.mark.parametrize("path", ["fused", "fused-capturable"])
def test_a_first_step_that_overflows_is_no_reason_for_a_scheduler_to_warn(path):
    (param,) = params_of((3,))
    optimizer = make([param], **SCALED[path])
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(param.sum() * torch.inf).backward()
    scaler.step(optimizer)
    scheduler.step()  # warns if it believes that optimizer.step() was not called
    assert not optimizer.state


@pytest.mark.parametrize("path", ["fused", "fused-capturable"])
def test_grad_scaler_without_any_gradient(path):
    (param,) = params_of((3,))
    optimizer = make([param], **SCALED[path])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)  # torch's fused AdamW takes this as a step in which there is nothing to do
    assert not optimizer.state


DIFFERENTIATED = {
    "plain": {},
    "schedules": {"alpha_warmup": 20, "beta3_warmup": 30, "betas": (0.9, 0.99, 0.97)},
    "no beta1": {"betas": (0.0, 0.99, 0.9)},
    "maximize": {"maximize": True, "weight_decay": 0.3},
    "capturable": {"capturable": True, "alpha_warmup": 20},
    "skip": {"nonfinite": "skip"},
}


@pytest.mark.parametrize("setting", DIFFERENTIATED)
def test_differentiable(setting):
    generator = torch.Generator().manual_seed(0)
    settings = {"betas": (0.9, 0.99, 0.97), **DIFFERENTIATED[setting]}

    def step(param, grad, lr, *moments):
        param, grad = param.clone(), grad.clone()
        param.grad = grad
        optimizer = make([param], lr=lr, differentiable=True, **settings)
        names = ("exp_avg", "exp_avg_slow", "exp_avg_sq")[-len(moments) :]
        state = {name: moment.clone() for name, moment in zip(names, moments, strict=True)}
        optimizer.state[param] = state | {"step": torch.tensor(9.0), "slow_step": torch.tensor(5.0)}
        optimizer.state[param] |= {"skipped": torch.tensor(0)} if setting == "skip" else {}
        optimizer.step()
        return (param, *(state[name] for name in names))

    tensors = [random_like((3,), torch.float64, generator) for _ in range(2 if setting == "no beta1" else 3)]
    square = random_like((3,), torch.float64, generator).square() + 0.1
    lr = torch.tensor(0.05, dtype=torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (*tensors[:2], lr, *tensors[2:], tensors[0].detach() * 0.1, square)]
    assert torch.autograd.gradcheck(step, inputs)
    assert torch.autograd.gradgradcheck(step, inputs)


def test_learning_the_learning_rate():
    target = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def loss_after_training(log_lr):
        param = torch.zeros(2, dtype=torch.float64, requires_grad=True).clone()
        optimizer = make([param], lr=log_lr.exp(), differentiable=True)
        for _ in range(5):
            (param.grad,) = torch.autograd.grad((param - target).square().sum(), param, create_graph=True)
            optimizer.step()
        return (param - target).square().sum()

    log_lr = torch.tensor(-3.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss_after_training, log_lr)
    learner = torch.optim.SGD([log_lr], lr=0.1)
    losses = []
    for _ in range(10):
        learner.zero_grad()
        losses.append(loss_after_training(log_lr))
        losses[-1].backward()
        learner.step()
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]
