"""Small texts, their tokens, and processes, for the tests of the lab's text; a test file names the fixtures it uses."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ademamix.lab.config import GPT, Data, Model, Text
from ademamix.lab.data import Dataset, load, text
from ademamix.lab.data.tokens import TokenFiles, Tokens, token_files

PATIENCE = 900
"""Seconds to wait for a process, on a machine that does much else."""

MODEL = GPT(kind="gpt", width=16, layers=1, heads=1, context=16)


def read(config: Data, cache: Path, *, batch: int = 2, seed: int = 0, model: Model = MODEL) -> Dataset:
    return load(config, model=model, batch=batch, seed=seed, cache=cache)


def tokens_of(source: Path | str, cache: Path, **settings: Any) -> TokenFiles:
    return token_files(Text(kind="text", source=str(source), **settings), cache)


def bytes_of(tokens: Tokens) -> bytes:
    return tokens.astype(np.uint8).tobytes()


def words(count: int, seed: int = 0) -> str:
    generator = np.random.default_rng(seed)
    return " ".join(f"{word:05d}" for word in generator.integers(100_000, size=count))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def standard_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache for all test files: the tokens of the standard library take a while."""
    return tmp_path_factory.getbasetemp() / "standard_library"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "texts"
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prose") / "prose.txt"
    path.write_text("\n".join(Path(text.__file__).with_name(name).read_text() for name in ("text.py", "tokens.py")))
    return path


def in_process(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that it is killed at the end of its test, if it is still there
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return output
