"""Write the tables of docs/speed.md and docs/optax.md anew from what `make speed` has measured.

A table stands between `<!-- speed: MACHINE TABLE -->` and `<!-- end of speed -->`; its numbers are in
results/speed/MACHINE.json and in the files beside it that are named after it.

    python benchmarks/speed_tables.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ademamix.lab.bench import rows
from ademamix.lab.bench.optax_steps import ADAMW, BARE_LOOPS, CONTRIB, FUSED_STEPS
from study import RESULTS, markdown

SPEED = RESULTS / "speed"
PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("speed.md", "optax.md")]
BLOCK = re.compile(r"(<!-- speed: (\S+) ([^>]+) -->\n\n).*?(\n\n<!-- end of speed -->)", re.DOTALL)

LABELS = {
    rows.ADAMW_FUSED: "torch AdamW, fused",
    rows.FUSED: "AdEMAMix",
    rows.FUSED_NO_FAST: "AdEMAMix, beta1 = 0",
    rows.BF16: "AdEMAMix, bf16 state",
    rows.COMPACT: "AdEMAMix, compact state",
    rows.COMPACT_NO_FAST: "AdEMAMix, compact state, beta1 = 0",
    rows.COMPACT_WIDE: "AdEMAMix, compact state, most blocks wide",
    rows.FUSED_CLIPPED: "AdEMAMix with slow_clip, over AdEMAMix",
    rows.COMPACT_CLIPPED: "AdEMAMix with slow_clip, compact state, over without",
    rows.ADAMW_FOREACH: "torch AdamW, foreach",
    rows.FOREACH: "AdEMAMix, foreach, over AdamW, foreach",
    rows.ADAMW_BF16: "bf16 parameters: torch AdamW, fused",
    rows.FUSED_BF16: "bf16 parameters: AdEMAMix",
    rows.BF16_BF16: "bf16 parameters: AdEMAMix, bf16 state",
    rows.COMPACT_BF16: "bf16 parameters: AdEMAMix, compact state",
    rows.COMPACT_MASTER: "bf16 parameters: AdEMAMix, compact state, 24-bit master",
    rows.CPU_ADAM: "DeepSpeed's CPUAdam, over AdamW",
    rows.OVER_CPU_ADAM: "AdEMAMix, over CPUAdam",
    rows.COMPACT_OVER_CPU_ADAM: "AdEMAMix, compact state, over CPUAdam",
}
SCENARIOS = {
    "gpt2": "GPT-2 124M",
    "large": "one tensor of 32M",
    "cache": "1M in cache, one thread",
    "small": "200 tensors of 1k",
}


def report(name: str) -> Any:
    """Return what `ademamix bench` has written."""
    return json.loads((SPEED / f"{name}.json").read_text())


def found_in(measured: Any, scenario: str) -> dict[str, Any]:
    """Return the rows of a scenario by name, those without an error."""
    return {row["name"]: row for row in measured["scenarios"][scenario]["rows"] if row["error"] is None}


def cell(row: dict[str, Any] | None, field: str, form: str) -> str:
    """Write a number of a row, nothing if the row or its number is missing."""
    return "" if row is None or row[field] is None else format(row[field], form)


def ratios(machine: str) -> str:
    """Times as ratios in all scenarios, and the bytes of state."""
    measured = report(machine)
    by_scenario = {scenario: found_in(measured, scenario) for scenario in SCENARIOS}
    lines = [
        [
            label,
            *(cell(by_scenario[scenario].get(name), "ratio", ".2f") for scenario in SCENARIOS),
            cell(by_scenario["cache"].get(name) or by_scenario["gpt2"].get(name), "state_bytes_per_parameter", ".1f"),
        ]
        for name, label in LABELS.items()
        if any(name in found for found in by_scenario.values())
    ]
    return markdown(["", *SCENARIOS.values(), "bytes of state"], lines)


def bounds(machine: str) -> str:
    """Bytes moved, and the speeds of steps and of bare loops, in memory and in cache."""
    measured = report(machine)
    memory, cache = found_in(measured, "gpt2"), found_in(measured, "cache")
    lines = [
        [
            LABELS[name],
            cell(row, "bytes_moved", ".0f"),
            *(
                cell(found.get(name), field, ".0f")
                for found in (memory, cache)
                for field in ("gigabytes_per_second", "bare_gigabytes_per_second")
            ),
            cell(row, "ns_per_parameter", ".2f"),
        ]
        for name, row in cache.items()
    ]
    header = ["", "bytes moved", "GPT-2 124M: GB/s", "bare loop", "in cache: GB/s", "bare loop", "in cache: ns"]
    return markdown(header, lines)


def instruction_sets(machine: str) -> str:
    """Nanoseconds per parameter in cache under each instruction set."""
    measured = {name: report(f"{machine}{suffix}") for name, suffix in INSTRUCTION_SETS.items()}
    found = {name: found_in(one, "cache") for name, one in measured.items()}
    assert all(one["environment"]["instruction_set"] == name for name, one in measured.items())
    shown = (name for name in LABELS if name != rows.COMPACT_WIDE)
    names = [name for name in shown if all(name in one for one in found.values())]
    lines = [[LABELS[name], *(cell(one[name], "ns_per_parameter", ".2f") for one in found.values())] for name in names]
    return markdown(["ns per parameter, in cache", *found], lines)


INSTRUCTION_SETS = {"avx512": "", "avx2": "-avx2", "portable": "-portable"}


def deepspeed(machine: str) -> str:
    """Ratios to and of DeepSpeed's CPUAdam, in memory and in cache."""
    found = {scenario: found_in(report(f"{machine}-deepspeed"), scenario) for scenario in ("gpt2", "cache")}
    lines = [[LABELS[name], *(cell(one[name], "ratio", ".2f") for one in found.values())] for name in found["gpt2"]]
    return markdown(["", *(SCENARIOS[scenario] for scenario in found)], lines)


def optax(machine: str) -> str:
    """Times of the fused step in JAX over optax.adamw, and those of bare loops."""
    compilations = report(machine)["optax"]["compilations"].values()
    names = [name for pair in zip(FUSED_STEPS, BARE_LOOPS, strict=True) for name in pair]
    lines = [[f"`{name}`", *(f"{one['ratios'][name][ADAMW]:.2f}" for one in compilations)] for name in names]
    return markdown([f"to `{ADAMW}`", "time", "time, with the flag"], lines)


def transformation(machines: str) -> str:
    """Times of the transformation in JAX over optax.adamw, on several machines."""
    ratios = {
        f"{MACHINES[machine]}{flag}": one["ratios"]
        for machine in machines.split(",")
        for flag, one in zip(("", ", with the flag"), report(machine)["optax"]["compilations"].values(), strict=True)
    }
    others = {ADAMW, *FUSED_STEPS, *BARE_LOOPS}
    names = [CONTRIB, *(name for name in next(iter(ratios.values())) if name not in {CONTRIB, *others})]
    lines = [[f"`{name}`", *(f"{one[name][ADAMW]:.2f}" for one in ratios.values())] for name in names]
    return markdown([f"to `{ADAMW}`", *ratios], lines)


MACHINES = {"zen5": "Zen 5", "zen4": "Zen 4", "intel": "Intel Xeon"}


TABLES: dict[str, Callable[[str], str]] = {
    "ratios": ratios,
    "bounds": bounds,
    "instruction sets": instruction_sets,
    "deepspeed": deepspeed,
    "optax": optax,
    "transformation": transformation,
}


def filled(page: str) -> str:
    """Return a page with its tables written anew."""
    return BLOCK.sub(lambda block: block[1] + TABLES[block[3]](block[2]) + block[4], page)


def main() -> None:
    for path in PAGES:
        path.write_text(filled(path.read_text()))


if __name__ == "__main__":
    main()
