"""Hugging Face's vision transformer."""

from __future__ import annotations

from transformers import PreTrainedModel, ViTConfig, ViTForImageClassification

from ademamix.lab.config import ViT


def build(config: ViT, classes: int) -> PreTrainedModel:
    """Build a vision transformer with random weights that classifies images."""
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
