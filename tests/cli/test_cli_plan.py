"""`ademamix plan`: its numbers, the table that the documentation has of them, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ademamix.cli import main
from ademamix.cli.plan import parameters

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
COLUMNS = ("adamw", "fp32", "bf16", "compact", "compact-beta1-0")


def planned(capsys, *arguments):
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_sum_is_that_of_its_parts_and_the_question_is_repeated(capsys):
    found = planned(capsys, "--params", "8B", "--devices", "64", "--shard", "zero2", "--precision", "bf16")
    assert {**found, "per_device": None} == {
        "params": 8 * 10**9,
        "devices": 64,
        "shard": "zero2",
        "precision": "bf16",
        "per_device": None,
    }
    for device in found["per_device"].values():
        assert device["memory"] == sum(device[part] for part in ("parameters", "gradients", "master", "state"))


def test_the_text_has_the_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["plan", "--params", "70B", "--devices", "1024", "--shard", "fsdp"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("70,000,000,000 parameters on 1,024 devices\n")
    assert re.search(r"^AdEMAMix, compact +0 +0\.273 +0\.273 +0\.275 +0\.822$", said, flags=re.MULTILINE)
    assert said.endswith("alike: all-gather 280 GB, reduce-scatter 280 GB.\n")


def test_one_device_sends_nothing(capsys):
    assert main(["plan"]) == 0
    assert capsys.readouterr().out.endswith("One device sends nothing.\n")


def row(capsys, size, devices, shard):
    """A row of the table in the documentation."""
    found = planned(capsys, "--params", size, "--devices", devices, "--shard", shard)["per_device"]
    cells = [f"{found[state]['state'] / 1e9:.3g} / {found[state]['memory'] / 1e9:.3g}" for state in COLUMNS]
    sent = sum(found["fp32"][kind] for kind in ("all_gather", "reduce_scatter", "all_reduce")) / 1e9
    return [size, devices, shard, *cells, f"{sent:.3g}"]


def test_the_table_in_the_documentation(capsys):
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    assert {line[0] for line in lines} == {"1.3B", "8B", "70B"}
    for line in lines:
        assert line == row(capsys, *line[:3])


@pytest.mark.parametrize("text", ["0", "-1B", "1.5", "B", "", "nan", "infB", "1.2.3M", "1e99", "9" * 400, "²"])
def test_what_is_no_size_is_refused(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", f"--params={text}"])
    assert ended.value.code == 2
    assert "must be a number of parameters such as 124M, 1.3B or 70B" in capsys.readouterr().err


def test_sizes_may_have_a_fraction():
    assert parameters("0.5k") == 500
    assert parameters("1.37B") == 1_370_000_000


def test_sizes_may_be_written_in_other_ways():
    assert parameters("1e9") == parameters("1b") == parameters("1,000,000,000") == 10**9
