"""Vision transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from ademamix.lab.fields import DataKind, Positive, Share, Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ViT(Transformer):
    """A vision transformer that classifies images (Hugging Face's code)."""

    trains_on: ClassVar[DataKind] = "images"

    kind: Literal["vit"]
    patch: Positive = 16
    image: Positive = 224
    channels: Positive = 3
    dropout: Share = 0.0

    @property
    def positions(self) -> int:
        """It predicts the class of an image."""
        return 1

    @model_validator(mode="after")
    def _patches_fill_image(self) -> ViT:
        if self.image % self.patch:
            raise ValueError(f"image must be a multiple of patch, got image={self.image}, patch={self.patch}")
        return self


PRESETS = {
    "vit-tiny": ViT(kind="vit", width=64, layers=2, heads=2, patch=2, image=8, channels=1),
    "vit-24m": ViT(kind="vit", width=384, layers=12, heads=6, patch=16, image=224, dropout=0.1),
    "vit-86m": ViT(kind="vit", width=768, layers=12, heads=12, patch=16, image=224, dropout=0.1),
}


def build(config: ViT, classes: int) -> PreTrainedModel:
    """Build a vision transformer with random weights that classifies images."""
    from transformers import ViTConfig, ViTForImageClassification

    settings = ViTConfig(
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        hidden_dropout_prob=config.dropout,  # not on the attention's weights, as in the ViT paper
        image_size=config.image,
        patch_size=config.patch,
        num_channels=config.channels,
    )
    settings.num_labels = classes
    return ViTForImageClassification(settings)
