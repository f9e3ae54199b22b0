"""The models of the lab: a module has the config of its kind, the sizes by name, and the function that builds it.

This module loads no framework: a config is checked against it, and `--help` lists it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ademamix.lab.models import gpt, mamba, vit
from ademamix.lab.models.gpt import GPT as GPT
from ademamix.lab.models.mamba import Mamba as Mamba
from ademamix.lab.models.vit import ViT as ViT

Model = Annotated[GPT | Mamba | ViT, Field(discriminator="kind")]
"""Every kind that a config can name."""

PRESETS: dict[str, Model] = {**gpt.PRESETS, **mamba.PRESETS, **vit.PRESETS}
"""Models by name. The sizes in the names are the paper's (appendix B)."""
