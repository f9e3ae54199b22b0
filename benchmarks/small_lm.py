"""A small byte-level transformer, and the Python standard library's sources as its text: no download, no framework."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ademamix.pytorch import storage

BYTES = 256
VALIDATION_EVERY = 10  # of the sorted files, each tenth is kept for validation
WARMUP = 100  # steps over which the learning rate rises


@dataclass(frozen=True)
class Shape:
    """The sizes of a model and of its batches."""

    width: int = 96
    layers: int = 2
    heads: int = 4
    context: int = 64
    batch: int = 8


class SmallTransformer(nn.Module):
    """A decoder-only transformer: norms before the layers, no biases, the embedding is the output layer too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        for layer in self.layers:
            for output in (layer.attention_out, layer.feedforward_out):
                nn.init.normal_(output.weight, std=0.02 / (2 * shape.layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the byte after each of `tokens`, (batch, context)."""
        x = self.embedding(tokens) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embedding.weight)

    def loss(self, window: Tensor) -> Tensor:
        """Return the mean negative log-likelihood, in nats a byte, of windows of context + 1 bytes."""
        logits = self(window[:, :-1])
        return F.cross_entropy(logits.reshape(-1, BYTES), window[:, 1:].reshape(-1))


class Layer(nn.Module):
    """Causal attention and a feed-forward network, each on a residual branch."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feedforward_in = nn.Linear(width, 4 * width, bias=False)
        self.feedforward_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        split = self.attention_in(self.attention_norm(x)).view(batch, context, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, context, width))
        return x + self.feedforward_out(F.gelu(self.feedforward_in(self.feedforward_norm(x))))


@cache
def text() -> tuple[Tensor, Tensor]:
    """Return the bytes of the files for training and of those for validation."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path.relative_to(root) for path in root.rglob("*.py"))
    ours = sorted(path.as_posix() for path in paths if not {"site-packages", "dist-packages"} & set(path.parts))
    parts = [torch.frombuffer(bytearray((root / path).read_bytes() + b"\0"), dtype=torch.uint8) for path in ours]
    validation = parts[::VALIDATION_EVERY]
    del parts[::VALIDATION_EVERY]
    return torch.cat(parts), torch.cat(validation)


def training_batches(shape: Shape, seed: int) -> Iterator[Tensor]:
    """Yield windows of the training text for ever, the same ones for the same seed."""
    train, _ = text()
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield _windows(train, torch.randint(len(train) - shape.context, (shape.batch,), generator=generator), shape)


def learning_rate_schedule(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Let the learning rate rise linearly, and fall along a cosine to 0 at the end of the run."""

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / WARMUP) * (1 + math.cos(math.pi * step / steps)) / 2

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def coded_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters whose moments ``state_storage="compact"`` stores as codes, by name."""
    compact = {"state_storage": "compact"}
    return {name: parameter for name, parameter in model.named_parameters() if storage.reduces(parameter, compact)}


def validation_loss(model: SmallTransformer, shape: Shape, windows: int) -> float:
    """Return the mean loss on `windows` windows spread evenly over the validation text, always the same ones."""
    _, validation = text()
    starts = torch.linspace(0, len(validation) - shape.context - 1, windows).long()
    with torch.no_grad():
        losses = [model.loss(_windows(validation, part, shape)) * len(part) for part in starts.split(64)]
    return torch.stack(losses).sum().item() / windows


def _windows(source: Tensor, starts: Tensor, shape: Shape) -> Tensor:
    return source[starts[:, None] + torch.arange(shape.context + 1)].long()
