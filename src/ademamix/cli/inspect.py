"""`ademamix inspect`."""

from __future__ import annotations

from ademamix.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Describe the command."""
