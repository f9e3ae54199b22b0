"""Small models, batches for them, and their gradients."""

from __future__ import annotations

import re

import torch

from ademamix.lab.config import ViT
from ademamix.lab.models import PRESETS
from ademamix.lab.models.networks import build_model, cross_entropy, logits

OUTPUTS = 32


def layers_of(model):
    """The number of layers, by the first number in the names of parameters."""
    return len({found[1] for name, _ in model.named_parameters() if (found := re.search(r"\.(\d+)\.", name))})


def built(name, dropout=0.0, seed=0, **changes):
    config = PRESETS[name]
    if not name.startswith("mamba"):
        changes["dropout"] = dropout
    torch.manual_seed(seed)
    return build_model(config.model_copy(update=changes), OUTPUTS)


def batch(name, size=3):
    generator = torch.Generator().manual_seed(1)
    config = PRESETS[name]
    if isinstance(config, ViT):
        images = torch.randn(size, config.channels, config.image, config.image, generator=generator)
        return images, torch.randint(OUTPUTS, (size,), generator=generator)
    tokens = torch.randint(OUTPUTS, (size, config.context + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_and_gradients(model, inputs, targets):
    model.zero_grad()
    loss = cross_entropy(logits(model, inputs), targets)
    loss.backward()
    return {"loss": loss.detach()} | {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def relative_errors(given, expected):
    return [((given[name] - value).norm() / value.norm()).item() for name, value in expected.items()]
