"""A checkpoint for a terminal and as a picture."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ademamix.checkpoints.inspection import MOMENTS, Group, Inspection, Parameter, State
from ademamix.output.tables import in_rows, laid_out, wrapped
from ademamix.state_keys import CORRECTION_KEY

MOST_NAMES = 40  # below a picture; more parameters are shown by layer


def text(inspection: Inspection, width: int) -> str:
    """Return all that was found, for so many columns."""
    parts = [wrapped(f"{inspection.path}: {inspection.container}", width)]
    for state in inspection.states:
        parts.append(wrapped(_title(state), width))
        parts.append(_groups(state, width))
        stored = [part for part in (*MOMENTS, CORRECTION_KEY) if state.bytes.get(part)]
        rows = [[part, ", ".join(state.dtypes[part]), f"{state.bytes[part]:,}"] for part in stored]
        parts.append(in_rows(["state", "stored as", "bytes"], rows, width))
        parts.append(_norms(state, width))
        parts += [wrapped(f"note: {note}", width, indent="  ") for note in state.notes]
        parts += [wrapped(f"warning: {warning}", width, indent="  ") for warning in state.warnings]
    parts += [wrapped(f"not read: {error}", width) for error in inspection.unread.values()]
    return "\n\n".join(parts)


def _title(state: State) -> str:
    whose = {"AdamW": "AdamW", "ademamix": "AdEMAMix"}.get(state.origin, f"the AdEMAMix of {state.origin}")
    return f"{state.label}: {whose}, {len(state.parameters)} parameters with a state"


ROWS: dict[str, Callable[[Group], str]] = {
    "step": lambda group: f"{group.step:,}",
    "slow step": lambda group: _number(group.slow_step),
    "of the run": lambda group: _position(group.slow_step, group.total_steps),
    "alpha(t)": lambda group: _scheduled(group.alpha, group.alpha_end, group.slow_step, group.alpha_warmup),
    "beta3(t)": lambda group: _scheduled(group.beta3, group.beta3_end, group.slow_step, group.beta3_warmup),
    "slow average filled": lambda group: "-" if group.filled is None else f"{group.filled:.1%}",
    "largest slow step": lambda group: "-" if group.largest_slow_step is None else f"{group.largest_slow_step:.3g} lr",
}


def _groups(state: State, width: int) -> str:
    cells = {label: [cell(group) for group in state.groups] for label, cell in ROWS.items()}
    known = [label for label, row in cells.items() if set(row) != {"-"}]  # AdamW has no schedule
    columns = [(f"group {number}", [cells[label][number] for label in known]) for number in range(len(state.groups))]
    return laid_out(known, columns, width)


def _number(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _position(step: int | None, total: int | str | None) -> str:
    if step is None or total is None:
        return "-"
    return "open" if isinstance(total, str) else f"{step / total:.1%} of {total:,} steps"


def _scheduled(now: float | None, end: float | None, step: int | None, warmup: int | None) -> str:
    if now is None or step is None:
        return "-"
    return f"{now:.6g}, on the way to {end:.6g} at {warmup:,}" if warmup and step < warmup else f"{now:.6g}"


class Row(NamedTuple):
    """The norms of a parameter, or of the parameters of a layer together."""

    name: str
    size: str
    norms: dict[str, float]


def rows_of(parameters: list[Parameter]) -> list[Row]:
    """Return a row for each parameter, or for each layer of many that have names."""
    if not _has_layers(parameters):
        return [Row(p.name, "x".join(map(str, p.shape)) or "1", p.norms) for p in parameters]
    layers: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        layers.setdefault(layer_of(parameter.name), []).append(parameter)
    return [
        Row(
            name,
            f"{sum(math.prod(p.shape) for p in found):,}",
            {m: math.hypot(*(p.norms[m] for p in found if m in p.norms)) for m in MOMENTS if m in found[0].norms},
        )
        for name, found in layers.items()
    ]


def layer_of(name: str) -> str:
    """Return the layer of a parameter: its name up to the first number, or else without its last part.

    >>> layer_of("transformer.h.3.attn.weight"), layer_of("params.Block_3.Dense_0.kernel"), layer_of("lm_head.weight")
    ('transformer.h.3', 'params.Block_3', 'lm_head')
    """
    numbered = re.match(r"(?:[^.]+\.)*?(?:[^.]*_)?\d+(?=\.)", name)
    return numbered[0] if numbered else name.rpartition(".")[0] or name


def _has_layers(parameters: list[Parameter]) -> bool:
    return len(parameters) > MOST_NAMES and not all(parameter.name.isdecimal() for parameter in parameters)


def _norms(state: State, width: int) -> str:
    headers = ["layer", "elements"] if _has_layers(state.parameters) else ["parameter", "shape"]
    rows = [
        [row.name, row.size, *(f"{row.norms[m]:.3g}" if m in row.norms else "-" for m in MOMENTS)]
        for row in rows_of(state.parameters)
    ]
    return in_rows([*headers, *(f"norm of {moment}" for moment in MOMENTS)], rows, width)


def picture(inspection: Inspection, path: Path) -> None:
    """Draw the norms of the moments as the table has them, a panel for each optimizer, into a PNG or SVG file."""
    from ademamix.lab.report import figures
    from ademamix.lab.report.charts import Lines, Series

    kind = "layer" if any(_has_layers(state.parameters) for state in inspection.states) else "parameter"
    caption = f"Norms of the stored moments, by {kind}. {inspection.path.name}: {inspection.container}."
    figure, places = figures.side_by_side(len(inspection.states), caption, warning="")
    for state, axes in zip(inspection.states, places, strict=True):
        rows = rows_of(state.parameters)
        family = {"m1": "adamw", "m2": "ademamix", "nu": "nu"}
        shown = {m: [i for i, row in enumerate(rows) if _is_shown(row.norms.get(m, 0.0))] for m in MOMENTS}
        series = [
            Series.of(m, numbers, [rows[i].norms[m] for i in numbers], family[m])
            for m, numbers in shown.items()
            if numbers
        ]
        Lines(_title(state), "", "norm", series, joined=False, logarithmic="y").draw(axes)
        if len(rows) <= MOST_NAMES:
            axes.set_xticks(list(range(len(rows))), [row.name for row in rows], rotation=90, fontsize=7)
        else:
            axes.set_xlabel(f"{'layers' if _has_layers(state.parameters) else 'parameters'}, in their order")
    figures.save_as(figure, path)


def _is_shown(norm: float) -> bool:
    return 0 < norm < math.inf  # the axis is logarithmic
