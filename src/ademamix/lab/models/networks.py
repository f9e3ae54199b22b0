"""Models as networks: building them, their outputs and losses, and how they are saved."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ademamix.lab import PARAMETERS
from ademamix.lab.models import Model

if TYPE_CHECKING:  # it takes seconds to import, and nobody needs all of its models
    from transformers import PreTrainedModel

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in PARAMETERS.items()}
"""The dtypes that a run's parameters can have."""


def build_model(config: Model, outputs: int) -> PreTrainedModel:
    """Build a model with random weights, drawn from torch's current seed; `outputs` counts tokens or classes.

    >>> from ademamix.lab.models import PRESETS
    >>> model = build_model(PRESETS["gpt-tiny"], outputs=256)
    >>> model.num_parameters()
    174656
    """
    built: PreTrainedModel = sys.modules[type(config).__module__].build(config, outputs)
    return built


def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the logits of tokens (batch, length) or images (batch, channels, height, width), the outputs last."""
    result: Tensor = model(inputs).logits
    return result


def logits_per_example(config: Model, outputs: int) -> int:
    """Return how many logits a model computes for a window of text or an image.

    >>> from ademamix.lab.models import PRESETS
    >>> logits_per_example(PRESETS["gpt-tiny"], outputs=256)
    32768
    """
    return config.positions * outputs


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    r"""Return the mean cross-entropy over all positions, in fp32.

    .. math:: L = -\frac{1}{N} \sum_{i=1}^{N} \log \operatorname{softmax}(z_i)_{y_i}

    `targets` are the tokens or classes y, one for each position, or probabilities of them in one more dimension.
    """
    predicted = logits.float().flatten(0, -2)
    if targets.is_floating_point():
        return F.cross_entropy(predicted, targets.float().flatten(0, -2))
    return F.cross_entropy(predicted, targets.flatten())


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write a Hugging Face checkpoint, without the library's own progress bar."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # raised when the disk is full
        raise OSError(str(error)) from error


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in groups for an optimizer, whose own `weight_decay` then applies only to matrices.

    Biases, the weights of norms and Mamba's `A_log`, which holds decay rates and no weights, do not decay. Tied
    parameters come once.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> [(len(group["params"]), group.get("weight_decay")) for group in parameter_groups(model)]
    [(1, None), (3, 0.0)]
    """
    decay: list[nn.Parameter] = []
    stay: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decay if parameter.dim() >= 2 and not name.endswith("A_log") else stay).append(parameter)
    groups: list[dict[str, Any]] = [{"params": decay}, {"params": stay, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
