"""Small runs for the tests of the lab, and a process that carries one out."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from ademamix.lab.config import GPT, Cosine, Optimizer, Run, Text
from ademamix.lab.probes import UpdateNorms
from ademamix.lab.runs.record import Result, RunFolder
from ademamix.lab.train import Options, train

DOCS = str(Path(__file__).parents[1] / "docs")

TINY = Run(
    model=GPT(kind="gpt", width=16, layers=1, heads=1, context=16),
    data=Text(kind="text", source=DOCS),
    optimizer=Optimizer(name="ademamix", lr=1e-2, settings={"weight_decay": 0.1}),
    schedule=Cosine(kind="cosine", warmup=4),
    steps=24,
    batch=2,
    validate_every=8,
    validation_examples=4,
    record_every=4,
)

SMALL = ["--model", "gpt-tiny:width=16,layers=1,heads=1,context=16", "--data", DOCS, "--batch", "2"]
"""Options of the commands, for a run as small as TINY."""

DELICATE = TINY.model_copy(
    update={
        "model": GPT(kind="gpt", width=64, layers=1, heads=2, context=16, dropout=0.2),
        "optimizer": Optimizer(name="ademamix", lr=4e-3, settings={"state_storage": "compact", "weight_decay": 0.1}),
        "parameters": "bf16",
        "steps": 100,
        "accumulate": 2,
        "validate_every": 25,
        "record_every": 7,
        "probes": (UpdateNorms(kind="update-norms", span=60),),
    }
)
"""All that a resume can get wrong: dropout, bf16 parameters with stochastic rounding, coded moments, half a mean, and
a probe that remembers."""


def changed(run: Run, **fields: Any) -> Run:
    return Run(**{**run.model_dump(), **fields})


def result(loss: float) -> Result:
    """Return how a run might have ended that nobody carried out; of no finite loss: diverged."""
    return Result(
        steps=100,
        validation_loss=loss,
        accuracy=None,
        seconds=1.0,
        parameters=10,
        state_bytes=80,
        diverged=not math.isfinite(loss),
    )


CONTEXT = multiprocessing.get_context("forkserver")
"""New processes are forks of one that has all modules loaded, but no thread and nothing else of this one (no JAX)."""
CONTEXT.set_forkserver_preload(["ademamix.lab.train", "transformers.models.gpt2.modeling_gpt2"])


def process(run: Run, out: Path, save_every: float) -> ForkServerProcess:
    """Start a process that carries out `run`."""
    started = CONTEXT.Process(target=_carry_out, args=(run, out, save_every))
    started.start()
    return started


def _carry_out(run: Run, out: Path, save_every: float) -> None:
    torch.set_num_threads(1)
    train(run, Options(out, save_every=save_every, save_share=1.0))


def in_training(out: Path) -> list[Path]:
    """Return the folders of runs that have recorded a step. The file is there before, with nothing yet to save."""
    return [file.parent for file in out.glob("runs/*/metrics.jsonl") if file.stat().st_size]


def kill(started: ForkServerProcess) -> None:
    assert started.pid is not None
    os.kill(started.pid, signal.SIGKILL)
    started.join()


def outcome(run: Run, out: Path) -> tuple[bytes, bytes, dict[str, Any]]:
    """Return the bytes of the model and of the metrics, and the result without its time."""
    folder = RunFolder(out / "runs", run).path
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"]
    return (folder / "model" / "model.safetensors").read_bytes(), (folder / "metrics.jsonl").read_bytes(), result
