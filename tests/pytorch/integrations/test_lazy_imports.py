"""The glue for a trainer loads none: it is imported where no trainer, or another one, is installed."""

from __future__ import annotations

import subprocess
import sys

TRAINERS = {"accelerate", "deepspeed", "lightning", "megatron", "peft", "torchtitan", "transformers", "trl"}

PROGRAM = """
import importlib, pkgutil, sys
import ademamix.pytorch.integrations as integrations

for module in pkgutil.iter_modules(integrations.__path__):
    print(importlib.import_module(f"{integrations.__name__}.{module.name}").__name__)
print(*sys.modules)
"""


def test_no_trainer_is_loaded():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    *modules, loaded = run.stdout.splitlines()
    assert "ademamix.pytorch.integrations.huggingface" in modules
    assert not TRAINERS & set(loaded.split())
