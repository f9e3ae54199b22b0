"""The tables that `ademamix bench` prints."""

from __future__ import annotations

from typing import Any

FORM = "  {:<40} {:>5}  {:<10}  {:<12} {:>6} {:>6} {:>6} {:>6} {:>6}"
HEADER = ("", "time", "low..high", "target", "ns", "state", "moved", "GB/s", "bare")
EXPLANATION = """\
time: fastest step, over that of another optimizer in the same process; median, lowest and highest of the processes.
ns, state, moved: nanoseconds of a step, bytes of state, bytes that a step reads and writes, each per parameter.
GB/s: what is moved, over the time. bare: the same of a loop over the same arrays without arithmetic, the bound."""


def scenario_table(name: str, scenario: dict[str, Any]) -> list[str]:
    """Lay out one scenario: a line per optimizer, under the one that its time is divided by."""
    counts = [_counted(scenario[key], key) for key in ("tensors", "parameters", "threads")]
    lines = [f"{name}: {scenario['title']} ({', '.join(counts)})", FORM.format(*HEADER).rstrip()]
    baseline = None
    for row in scenario["rows"]:
        if row["baseline"] != baseline:
            baseline = row["baseline"]
            lines.append(f" over {baseline}")
        lines.append(_line(row))
    return [*lines, ""]


def _counted(number: int | None, plural: str) -> str:
    """Write a number of things, which is None if nothing could be measured.

    >>> _counted(1, "tensors"), _counted(2048, "parameters"), _counted(None, "threads")
    ('1 tensor', '2,048 parameters', 'no threads')
    """
    return f"no {plural}" if number is None else f"{number:,} {plural if number != 1 else plural[:-1]}"


def _line(row: dict[str, Any]) -> str:
    if row["error"]:
        return f"  {row['name']:<40} failed: {row['error']}"
    is_base = row["name"] == row["baseline"]
    target = "" if row["target"] is None else f"{row['target']:.2f} {'met' if row['met'] else 'not met'}"
    spread = "" if is_base else f"{min(row['ratios']):.2f}..{max(row['ratios']):.2f}"
    ns, state = f"{row['ns_per_parameter']:.3f}", f"{row['state_bytes_per_parameter']:.2f}"
    speeds = [row[field] for field in ("bytes_moved", "gigabytes_per_second", "bare_gigabytes_per_second")]
    numbers = ["" if speed is None else f"{speed:.1f}" for speed in speeds]
    return FORM.format(row["name"], f"{row['ratio']:.2f}", spread, target, ns, state, *numbers).rstrip()


def import_line(measured: dict[str, Any]) -> str:
    """Say how long the import takes."""
    met = "met" if measured["met"] else "not met"
    loaded = ", ".join(measured["frameworks"]) or "no framework"
    return (
        f"import: `import ademamix` takes {1e3 * measured['seconds']:.1f} ms "
        f"(target under {1e3 * measured['target']:.0f} ms: {met}) and loads {loaded}\n"
    )


def footer(environment: dict[str, Any]) -> list[str]:
    """Explain the tables, and say where they were measured."""
    e = environment
    load = "" if e["load"] is None else f", load average {e['load']:.1f} at the start"
    torch = f", torch {e['torch']}" if "torch" in e else ""
    kernels = f", kernels for {e['instruction_set']}" if e["instruction_set"] else ""
    lines = [
        EXPLANATION,
        f"{e['cpu']}{kernels}{torch}{load}, processes: {e['processes']}",
    ]
    if e["missing_peers"]:
        missing = ", ".join(e["missing_peers"])
        lines.append(f"not installed: {missing}; `make bench` installs them, `make bench-deepspeed` DeepSpeed")
    if e["quick"]:
        lines.append("This was --quick: the tensors are too small for its ratios to mean anything.")
    return lines
