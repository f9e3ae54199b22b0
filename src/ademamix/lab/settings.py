"""A run with other settings: how recipes, searches and sweeps all derive one run from another."""

from __future__ import annotations

from typing import Any

from ademamix.hyperparameters import BETAS
from ademamix.lab.config import Optimizer, Run
from ademamix.lab.optimizers import OPTIMIZERS


def changed(run: Run, **changes: Any) -> Run:
    """Return a run with other fields, another `lr`, or other settings of its optimizer.

    `beta1`, `beta2` and `beta3` are settings as well, and take the place of those in `betas`. `warmup` is that of the
    learning rate, whose `schedule` may also be a kind alone: the warm-up stays.

    >>> from ademamix.lab.comparison.defaults import DEFAULT
    >>> run = changed(DEFAULT, lr=1e-3, steps=500, beta1=0.99, warmup=50)
    >>> run.optimizer.described, run.schedule.warmup
    ('adamw lr=0.001 weight_decay=0.1 betas=[0.99, 0.99]', 50)
    >>> changed(DEFAULT, schedule="constant").schedule
    ConstantThenLinear(kind='constant', warmup=200, decay=0, final=0.0)
    """
    changes = _with_schedule(run, changes)
    fields = {name: value for name, value in changes.items() if name in Run.model_fields}
    settings = {**run.optimizer.settings, **{name: value for name, value in changes.items() if name not in fields}}
    lr = settings.pop("lr", run.optimizer.lr)
    if "beta1" in settings:
        settings["betas"] = [settings.pop("beta1"), *settings.get("betas", BETAS)[1:]]
    if "beta2" in settings:
        _set_beta2(settings, run.optimizer.name)
    if "beta3" in settings and len(settings.get("betas", BETAS)) > len(BETAS):
        settings["betas"] = [*settings["betas"][: len(BETAS)], settings.pop("beta3")]
    optimizer = Optimizer(name=run.optimizer.name, lr=lr, settings=settings)
    return Run(**{**dict(run), "optimizer": optimizer, **fields})


def _set_beta2(settings: dict[str, Any], optimizer: str) -> None:
    """Move `beta2` into `betas`; those that this makes the constructor's are not written out."""
    beta2, default = settings.pop("beta2"), OPTIMIZERS[optimizer].betas or BETAS
    beta1, before, *others = settings.get("betas", default)
    if beta2 == before:
        return
    settings.pop("betas", None)
    if (beta1, beta2, *others) != default:
        settings["betas"] = [beta1, beta2, *others]


def _with_schedule(run: Run, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes with a whole `schedule` in place of its kind and of `warmup`."""
    changes = dict(changes)
    if isinstance(kind := changes.get("schedule"), str):
        same = kind == run.schedule.kind
        changes["schedule"] = run.schedule if same else {"kind": kind, "warmup": run.schedule.warmup}
    if "warmup" in changes:
        schedule = changes.get("schedule", run.schedule)
        changes["schedule"] = {**dict(schedule), "warmup": changes.pop("warmup")}
    return changes
