"""Checkpoints as real programs write and continue them, a row for each container of torch's states.

A row trains with AdamW, leaves a checkpoint, and continues from one with any optimizer.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

SAVED, CONTINUED = 20, 100  # steps before the checkpoint, and after it
SETTINGS: dict[str, Any] = {"lr": 3e-3, "betas": (0.8, 0.99), "eps": 1e-7, "weight_decay": 0.1}
Build = Callable[[Any], Optimizer]


class Model(nn.Module):
    """Two layers; a loss of inputs and labels, as trainers want it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(inputs).squeeze(-1), labels)}


def examples() -> list[dict[str, Tensor]]:
    """Return data that every step sees all of, so that no order matters."""
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    return [{"inputs": row, "labels": row.sum().sin()} for row in inputs]


def batch() -> dict[str, Tensor]:
    """Return all examples at once."""
    return {key: torch.stack([example[key] for example in examples()]) for key in ("inputs", "labels")}


def adamw(params: Any) -> torch.optim.AdamW:
    """Return the optimizer of all of these runs."""
    return torch.optim.AdamW(params, **SETTINGS)


def state(size: int = 3, optimizer: Any = adamw) -> dict[str, Any]:
    """Return the state of an optimizer after a step of one parameter, w."""
    param = torch.ones(size, requires_grad=True)
    made = optimizer([("w", param)])
    param.grad = torch.ones(size)
    made.step()
    saved: dict[str, Any] = made.state_dict()
    return saved


def steps(model: Model, *optimizers: Optimizer, count: int) -> None:
    """Take steps."""
    for _ in range(count):
        model.zero_grad()
        model(**batch())["loss"].backward()
        for optimizer in optimizers:
            optimizer.step()


def values(model: Model) -> list[Tensor]:
    """Return a model's parameters."""
    return [param.detach().clone() for param in model.parameters()]


class Plain:
    """The state_dict of the optimizer alone, and the model in another file."""

    def begin(self, folder: Path) -> Path:
        model = Model()
        optimizer = adamw(model.parameters())
        steps(model, optimizer, count=SAVED)
        torch.save(model.state_dict(), folder / "model.pt")
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        return folder / "optimizer.pt"

    def continued(self, path: Path, build: Build) -> list[Tensor]:
        model = Model()
        model.load_state_dict(torch.load(path.with_name("model.pt")))
        optimizer = build(model.parameters())
        optimizer.load_state_dict(torch.load(path))
        steps(model, optimizer, count=CONTINUED)
        return values(model)


class Nested:
    """Two optimizers, with names, in one file with the model, beside something that is none of both."""

    def begin(self, folder: Path) -> Path:
        model = Model()
        optimizers = self._optimizers(model, adamw)
        steps(model, *optimizers, count=SAVED)
        states = {"first": optimizers[0].state_dict(), "others": [optimizers[1].state_dict()]}
        torch.save({"model": model.state_dict(), "training": states, "epoch": 3, "note": "kept"}, folder / "run.ckpt")
        return folder / "run.ckpt"

    def continued(self, path: Path, build: Build) -> list[Tensor]:
        model, saved = Model(), torch.load(path)
        assert (saved["epoch"], saved["note"]) == (3, "kept")
        model.load_state_dict(saved["model"])
        optimizers = self._optimizers(model, build)
        optimizers[0].load_state_dict(saved["training"]["first"])
        optimizers[1].load_state_dict(saved["training"]["others"][0])
        steps(model, *optimizers, count=CONTINUED)
        return values(model)

    def _optimizers(self, model: Model, build: Build) -> list[Optimizer]:
        return [build(list(model.layers[0].named_parameters())), build(list(model.layers[2].named_parameters()))]


class Distributed:
    """A folder of torch.distributed.checkpoint."""

    options: StateDictOptions | None = None

    def begin(self, folder: Path) -> Path:
        model = Model()
        optimizer = adamw(model.parameters())
        steps(model, optimizer, count=SAVED)
        self._save_or_load(dcp.save, model, optimizer, folder / "distributed")
        return folder / "distributed"

    def continued(self, path: Path, build: Build) -> list[Tensor]:
        model = Model()
        optimizer = build(model.parameters())
        state = self._save_or_load(dcp.load, model, optimizer, path)
        set_model_state_dict(model, state["model"])
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=self.options)
        steps(model, optimizer, count=CONTINUED)
        return values(model)

    def _save_or_load(self, action: Any, model: Model, optimizer: Optimizer, path: Path) -> dict[str, Any]:
        state = {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer, options=self.options),
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            action(state, checkpoint_id=path, no_dist=True)
        return state


class Flattened(Distributed):
    """The same with a state that is flattened."""

    options = StateDictOptions(flatten_optimizer_state_dict=True)


class StringKeys:
    """A folder of torch.distributed.checkpoint with the plain state_dict, whose keys torch makes strings of."""

    def begin(self, folder: Path) -> Path:
        model = Model()
        optimizer = adamw(model.parameters())
        steps(model, optimizer, count=SAVED)
        _alone(dcp.save, model, optimizer, folder / "plain")
        return folder / "plain"

    def continued(self, path: Path, build: Build) -> list[Tensor]:
        model = Model()
        optimizer = build(model.parameters())
        steps(model, optimizer, count=1)  # so that there is a state to load into
        state = _alone(dcp.load, model, optimizer, path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        steps(model, optimizer, count=CONTINUED)
        return values(model)


def _alone(action: Any, model: Model, optimizer: Optimizer, path: Path) -> dict[str, Any]:
    """Save the states as they are in one process, or load into them."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        action(state, checkpoint_id=path, no_dist=True)
    return state


class Lightning:
    """A checkpoint of Lightning."""

    def begin(self, folder: Path) -> Path:
        self._trained(SAVED, adamw).save_checkpoint(folder / "lightning.ckpt")
        return folder / "lightning.ckpt"

    def continued(self, path: Path, build: Build) -> list[Tensor]:
        return values(self._trained(SAVED + CONTINUED, build, path).lightning_module.model)

    def _trained(self, count: int, build: Build, path: Path | None = None) -> Any:
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = Model()

            def training_step(self, data: Any) -> Tensor:
                return self.model(**data)["loss"]

            def configure_optimizers(self) -> Optimizer:
                return build(self.model.parameters())

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        trainer = lightning.Trainer(
            max_steps=count,
            max_epochs=-1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of workers for the data, and of checkpoints in the middle of an epoch
            data = torch.utils.data.DataLoader(examples(), batch_size=8)
            trainer.fit(Module(), data, ckpt_path=path)
        return trainer


class HuggingFace:
    """A folder of the Hugging Face Trainer, with files beside the optimizer's."""

    def begin(self, folder: Path) -> Path:
        self._trainer(folder, SAVED, adamw).train()
        return folder / f"checkpoint-{SAVED}"

    def continued(self, path: Path, build: Build) -> list[Tensor]:
        assert {"optimizer.pt", "scheduler.pt", "trainer_state.json"} <= {file.name for file in path.iterdir()}
        trainer = self._trainer(path.parent / "continued", SAVED + CONTINUED, build)
        trainer.train(resume_from_checkpoint=str(path))
        shutil.rmtree(path.parent / "continued", ignore_errors=True)
        return values(trainer.model)

    def _trainer(self, folder: Path, count: int, build: Build) -> Any:
        from transformers import Trainer, TrainingArguments

        arguments = TrainingArguments(
            str(folder),
            max_steps=count,
            save_steps=SAVED,
            save_strategy="steps" if count == SAVED else "no",
            per_device_train_batch_size=8,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        model = Model()
        constant = torch.optim.lr_scheduler.LambdaLR
        optimizer = build(model.parameters())
        return Trainer(
            model,
            arguments,
            train_dataset=examples(),
            optimizers=(optimizer, constant(optimizer, lambda step: 1.0)),
        )


class Accelerate:
    """A folder of Accelerate's save_state."""

    def begin(self, folder: Path) -> Path:
        model, optimizer, accelerator = self._prepared(adamw)
        steps(model, optimizer, count=SAVED)
        accelerator.save_state(str(folder / "accelerate"))
        return folder / "accelerate"

    def continued(self, path: Path, build: Build) -> list[Tensor]:
        model, optimizer, accelerator = self._prepared(build)
        accelerator.load_state(str(path))
        steps(model, optimizer, count=CONTINUED)
        return values(model)

    def _prepared(self, build: Build) -> tuple[Any, Any, Any]:
        from accelerate import Accelerator

        accelerator, model = Accelerator(cpu=True), Model()
        return *accelerator.prepare(model, build(model.parameters())), accelerator


ROWS: dict[str, Any] = {
    "plain": Plain(),
    "nested": Nested(),
    "distributed": Distributed(),
    "flattened": Flattened(),
    "string keys": StringKeys(),
    "lightning": Lightning(),
    "huggingface": HuggingFace(),
    "accelerate": Accelerate(),
}
