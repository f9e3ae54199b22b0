"""What a step takes on GPUs that are not here: the Triton kernel compiled for them, and times computed from that.

For compute capability 8.0, 9.0 and 10.0 and for AMD's gfx942: registers, spills, shared memory, the width of accesses,
bytes per element, occupancy; and the least time of a step on four cards, by their published bandwidth. torch's AdamW
is beside it, as Inductor compiles it. All of it is computed and nothing measured: for that there is gpu.py.

    make .venv-triton/.installed
    export PYTHONPATH=src
    .venv-triton/bin/python benchmarks/gpu_compiled.py            # minutes: prints the tables of docs/gpu.md
    .venv-triton/bin/python benchmarks/gpu_compiled.py --write    # also writes them there
    .venv-triton/bin/python benchmarks/gpu_compiled.py --every    # hours: all instances, not a choice of them
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import gpu_inductor
from ademamix.lab.bench.rows import gpt2_shapes
from ademamix.pytorch.step_triton import VECTOR_BYTES, Bucket, Variant, threads
from gpu_bounds import CARDS, SETTINGS, Card, Setting
from gpu_instances import ELEMENTS_PER_PROGRAM, Case, compile_all, covering, every_case
from gpu_machine_code import TARGETS, MachineCode
from study import markdown

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
SHAPES = gpt2_shapes()
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SLOWS = {"fp32": torch.float32, "bf16": torch.bfloat16, "compact": torch.int16}
OURS = [setting for setting in SETTINGS if setting.state != "adamw"]
Codes = Mapping[tuple[Setting, str], MachineCode]  # by target


def case_of(setting: Setting, target: str) -> Case:
    """Return the instance that large parameters of a setting have by default, when addresses are multiples of 16."""
    dtype = DTYPES[setting.dtype]
    storage, _, no_fast = setting.state.partition("-")
    variant = Variant(
        not no_fast,
        skips=False,
        stochastic_params=dtype == torch.bfloat16,
        maximize=False,
        corrected=setting.precision == "24bit",
    )
    return Case(target, Bucket(dtype, dtype, SLOWS[storage], VECTOR_BYTES), variant, scaled=False)


def adamw_codes() -> dict[tuple[Setting, str], MachineCode]:
    """Return the machine code of torch's AdamW; Inductor is asked for NVIDIA's GPUs alone."""
    return {
        (setting, target): gpu_inductor.compile_adamw(DTYPES[setting.precision], target)
        for setting in SETTINGS
        if setting.state == "adamw"
        for target in gpu_inductor.MULTIPROCESSORS
    }


def tables(codes: Codes) -> dict[str, str]:
    """Return what was compiled, and the times that follow, as tables."""
    compiled, times = [], []
    for setting in SETTINGS:
        names = [setting.precision, setting.title]
        traffic = f"{setting.traffic([(1024, 1024)]) / 1024**2:.4g}"
        compiled.append([*names, traffic, *[_cell(codes, setting, target) for target in TARGETS]])
        times.append([*names, *[_time(codes, setting, card) for card in CARDS]])
    names = ["parameters", "optimizer, state"]
    cards = [card.name for card in CARDS]
    return {"compiled": markdown([*names, "bytes", *TARGETS], compiled), "times": markdown([*names, *cards], times)}


def per_element(setting: Setting, target: str, code: MachineCode) -> float:
    """Return the instructions of an element."""
    if setting.state == "adamw":
        return code.instructions * gpu_inductor.THREADS / gpu_inductor.ELEMENTS / gpu_inductor.COUNT
    case = case_of(setting, target)
    return code.instructions * threads(case.bucket, case.variant) / ELEMENTS_PER_PROGRAM


def _cell(codes: Codes, setting: Setting, target: str) -> str:
    code = codes.get((setting, target))
    return f"{code.registers}, {code.occupancy:.0%}, {per_element(setting, target, code):.0f}" if code else ""


def _time(codes: Codes, setting: Setting, card: Card) -> str:
    """Return milliseconds, and the ratio to AdamW."""
    seconds, by_instructions = _seconds(codes, setting, card)
    ratio = seconds / _seconds(codes, setting.adamw, card)[0]
    return f"{1e3 * seconds:.2f}{'*' if by_instructions else ''} ({ratio:.2f})"


def _seconds(codes: Codes, setting: Setting, card: Card) -> tuple[float, bool]:
    """Return the larger of the two bounds of a step on GPT-2, and whether it is that of the instructions."""
    code = codes.get((setting, card.target))
    instructions = per_element(setting, card.target, code) * sum(map(math.prod, SHAPES)) if code else 0.0
    moving, issuing = card.bounds(setting.traffic(SHAPES), instructions)
    return max(moving, issuing), issuing > moving


def summary(cases: Sequence[Case], codes: Sequence[MachineCode]) -> str:
    """Return a table of what the instances of each target take at most."""
    existing = Counter(case.target for case in every_case())
    rows = []
    for target in TARGETS:
        own = [code for case, code in zip(cases, codes, strict=True) if case.target == target]
        numbers = [len(own), existing[target], sum(code.spills > 0 for code in own)]
        numbers += [max(code.registers for code in own), max(code.shared for code in own)]
        rows.append([target, *map(str, numbers), f"{min(code.occupancy for code in own):.0%}"])
    return markdown(["", "compiled", "of", "that spill", "most registers", "most shared", "least occupancy"], rows)


def written_into(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with these tables between the marks that have their names."""
    for name, text in tables.items():
        before, begin, rest = page.partition(f"<!-- table: {name} -->\n")
        _, end, after = rest.partition("<!-- end of table -->")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


def record(case: Case, code: MachineCode) -> dict[str, Any]:
    """Return a case and its code for a JSON file."""
    described = {"target": case.target, **case.bucket._asdict(), **case.variant._asdict(), "scaled": case.scaled}
    return {"case": described, "code": code._asdict()}


def main() -> None:
    """Compile, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/gpu.md")
    parser.add_argument("--every", action="store_true", help="compile all instances, and tell what they take at most")
    parser.add_argument("--processes", type=int, default=2, help="that compile (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was compiled, and what was found, there")
    options = parser.parse_args()
    if options.every and options.write:
        parser.error("--write is for the tables of docs/gpu.md, which --every does not make")
    shown = [(setting, target) for setting in OURS for target in TARGETS]
    cases = list(every_case())
    if not options.every:
        cases = [*itertools.starmap(case_of, shown), *covering(cases)]
    codes = compile_all(cases, options.processes)
    report: dict[str, Any] = {
        "instances": list(map(record, cases, codes)),
        "tables": {"instances": summary(cases, codes)},
    }
    if not options.every:
        adamw = adamw_codes()
        report["adamw"] = [{"precision": key[0].precision, "code": code._asdict()} for key, code in adamw.items()]
        report["tables"] |= tables({**dict(zip(shown, codes, strict=False)), **adamw})
    print("\n\n".join(report["tables"].values()))
    if options.write:
        PAGE.write_text(written_into(PAGE.read_text(), report["tables"]))
    if options.json:
        options.json.write_text(json.dumps(report, default=str))  # dtypes by their names


if __name__ == "__main__":
    main()
