"""Models by name, at the paper's sizes and at small ones."""

from __future__ import annotations

from ademamix.lab.config import GPT, Mamba, Model, ViT

PRESETS: dict[str, Model] = {
    "gpt-nano": GPT(kind="gpt", width=32, layers=2, heads=2, context=64),
    "gpt-tiny": GPT(kind="gpt", width=64, layers=3, heads=2, context=128),
    "gpt-mini": GPT(kind="gpt", width=128, layers=4, heads=4, context=128),
    "gpt-110m": GPT(kind="gpt", width=768, layers=12, heads=12, context=1024),
    "gpt-330m": GPT(kind="gpt", width=1024, layers=24, heads=16, context=1024),
    "gpt-1.3b": GPT(kind="gpt", width=2048, layers=24, heads=16, context=1024),
    "mamba-tiny": Mamba(kind="mamba", width=64, layers=2, context=64),
    "mamba-168m": Mamba(kind="mamba", width=768, layers=24, state=16, expansion=2, context=1024),
    "vit-tiny": ViT(kind="vit", width=64, layers=2, heads=2, patch=2, image=8, channels=1),
    "vit-24m": ViT(kind="vit", width=384, layers=12, heads=6, patch=16, image=224, dropout=0.1),
    "vit-86m": ViT(kind="vit", width=768, layers=12, heads=12, patch=16, image=224, dropout=0.1),
}
"""Models by name. The sizes in the names are the paper's (appendix B); `vit-tiny` is for scikit-learn's digits."""
