"""Hugging Face's Trainer and its subclasses, such as those of TRL: the horizon is what the trainer works out itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ademamix.pytorch.monitoring import SHARE, DelayedRows
from ademamix.pytorch.optimizer import AdEMAMix
from ademamix.schedules import OPEN

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import Trainer, TrainingArguments


def use_ademamix(trainer: Trainer, **settings: Any) -> None:
    """Let `trainer` train with AdEMAMix, whose ``total_steps`` is the number of steps that the trainer works out.

    That number counts epochs, ``max_steps``, gradient accumulation and processes. It is read when training begins, or
    is resumed. Call this once, before ``trainer.train()``:

    .. code-block:: python

        trainer = Trainer(model, TrainingArguments("out", num_train_epochs=3), train_dataset=dataset)
        use_ademamix(trainer, alpha=8.0)
        trainer.train()

    Learning rate, beta1, beta2, epsilon and weight decay are those of the ``TrainingArguments``. ``optim_args`` is
    understood as well, see :func:`read_optim_args`; ``optim`` is ignored.

    A resumed run whose slow average began after its first step, as ``ademamix convert`` leaves it, keeps the horizon of
    its checkpoint: the trainer's steps are not those of the slow average. Pass ``total_steps`` to change it.

    Args:
        trainer: a ``transformers.Trainer`` or one of a subclass.
        settings: arguments of :class:`ademamix.AdEMAMix`, which win over ``optim_args``. ``lr`` and ``weight_decay``
            are refused, since the trainer sets them for each group.
    """
    for name, argument in {"lr": "learning_rate", "weight_decay": "weight_decay"}.items():
        if name in settings:
            raise ValueError(f"{name} is set by the trainer: pass TrainingArguments({argument}={settings[name]!r})")
    if trainer.optimizer is not None:
        raise ValueError(
            "the trainer has an optimizer already: call use_ademamix before train(), and without optimizers="
        )
    create = partial(type(trainer).create_optimizer, trainer)  # of the class: a second call replaces the first

    def create_with_horizon(*args: Any, **kwargs: Any) -> Optimizer:
        if trainer.optimizer is not None and not trainer.optimizer.state:
            trainer.optimizer = None  # made for a batch that did not fit into memory: a smaller one takes more steps
        arguments = _arguments(trainer.args, settings)
        is_stated = "total_steps" in arguments
        arguments.setdefault("total_steps", trainer.state.max_steps)
        if not arguments["total_steps"]:
            raise ValueError("the trainer knows its number of steps in train() only: call that, or pass total_steps")
        trainer.optimizer_cls_and_kwargs = (AdEMAMix, arguments)
        optimizer = create(*args, **kwargs)
        if not is_stated:
            optimizer.register_load_state_dict_pre_hook(_keep_horizon_of_switch)
        return optimizer

    trainer.create_optimizer = create_with_horizon  # type: ignore[method-assign]


def _keep_horizon_of_switch(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """Let the checkpoint's horizon win if its slow average began later than the run. A pre-hook of load_state_dict."""
    clocks = [
        entries for entries in state_dict["state"].values() if isinstance(entries, dict) and "slow_step" in entries
    ]
    late = int(max((float(entries["step"]) - float(entries["slow_step"]) for entries in clocks), default=0))
    if not late:
        return
    kept, total = state_dict["param_groups"][0].get("total_steps"), optimizer.param_groups[0]["total_steps"]
    for group in optimizer.param_groups:
        group["given"] = [name for name in group["given"] if name != "total_steps"]
    if kept not in (OPEN, total - late):
        warnings.warn(
            f"the slow average of this checkpoint began at step {late:,}, and keeps its total_steps = {kept}, although "
            f"the trainer's {total:,} steps leave it {total - late:,}. For those, use_ademamix(trainer, "
            f"total_steps={total - late}).",
            stacklevel=2,
        )


def log_diagnostics(trainer: Trainer, *, every: int | None = None, share: float = SHARE) -> None:
    """Let `trainer` log the diagnostics of AdEMAMix as it logs the loss, and warn at signs of trouble.

    They go wherever ``report_to`` says, TensorBoard or Weights & Biases, under names such as
    ``train/ademamix/0/update_norm``, and into ``trainer.state.log_history``:

    .. code-block:: python

        trainer = Trainer(model, TrainingArguments("out", report_to="tensorboard"), train_dataset=dataset)
        use_ademamix(trainer)
        log_diagnostics(trainer)
        trainer.train()

    Args:
        trainer: a ``transformers.Trainer`` or one of a subclass.
        every: the number of steps between two looks, at least; by default the trainer's ``logging_steps``.
        share: of the time of training that looks may take; see :class:`ademamix.pytorch.monitoring.Monitor`.
    """
    from transformers import TrainerCallback

    class Diagnostics(TrainerCallback):
        rows: DelayedRows | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
            self._close()  # a batch that did not fit into memory begins training again
            self.rows = DelayedRows([optimizer], every or max(1, int(state.logging_steps)), share)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.rows is not None and (values := self.rows.take()):
                trainer.log(values)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._close()

        def _close(self) -> None:
            if self.rows is not None:
                self.rows.close()

    trainer.add_callback(Diagnostics())


def read_optim_args(optim_args: str | None) -> dict[str, Any]:
    """Return the settings in ``TrainingArguments.optim_args``, by the names of :class:`ademamix.AdEMAMix`.

    Betas are named one by one. The names of bitsandbytes, ``t_alpha`` and ``t_beta3``, mean the warm-ups.

    >>> read_optim_args("alpha=8, beta3=0.999, t_alpha=1000, state_storage=compact")
    {'alpha': 8.0, 'beta3': 0.999, 'alpha_warmup': 1000.0, 'state_storage': 'compact'}
    """
    settings: dict[str, Any] = {}
    for item in filter(None, map(str.strip, (optim_args or "").split(","))):
        stated, equals, text = map(str.strip, item.partition("="))
        name = _NAMES_OF_BITSANDBYTES.get(stated, stated)
        if not equals or name not in _READERS:
            known = ", ".join([*_READERS, *_NAMES_OF_BITSANDBYTES])
            raise ValueError(f"optim_args has {item!r}: write NAME=VALUE with one of {known}")
        if name in settings:
            raise ValueError(f"optim_args has {name} twice: {optim_args!r}")
        try:
            settings[name] = _READERS[name](text)
        except ValueError:
            raise ValueError(f"optim_args has {item!r}, whose value cannot be read") from None
    return settings


def _arguments(args: TrainingArguments, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of AdEMAMix for `args` and `settings`, where the trainer has no better knowledge."""
    stated = read_optim_args(args.optim_args)
    betas = [stated.pop("beta1", args.adam_beta1), stated.pop("beta2", args.adam_beta2)]
    if "beta3" in stated:
        betas.append(stated.pop("beta3"))
    return {"lr": args.learning_rate, "betas": tuple(betas), "eps": args.adam_epsilon, **stated, **settings}


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


_NAMES_OF_BITSANDBYTES = {"t_alpha": "alpha_warmup", "t_beta3": "beta3_warmup"}
_READERS: dict[str, Callable[[str], Any]] = {
    "alpha": float,
    "beta1": float,
    "beta2": float,
    "beta3": float,
    "total_steps": lambda text: text if text == OPEN else float(text),  # numbers of steps may be written 1e4
    "alpha_warmup": float,
    "beta3_warmup": float,
    "beta3_start": float,
    "eps": float,
    "state_storage": str,
    "master": str,
    "stochastic_rounding": _truth,
    "rounding_seed": int,
    "nonfinite": str,
    "slow_clip": float,
    "foreach": _truth,
    "fused": _truth,
}
