"""A checkpoint for a terminal and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ademamix.checkpoints.inspection import MOMENTS, Group, Inspection, State
from ademamix.output.tables import in_rows, laid_out, wrapped
from ademamix.state_keys import CORRECTION_KEY

MOST_NAMES = 40  # below a picture


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


def _norms(state: State, width: int) -> str:
    rows = [
        [parameter.name, "x".join(map(str, parameter.shape)) or "1"]
        + [f"{parameter.norms[m]:.3g}" if m in parameter.norms else "-" for m in MOMENTS]
        for parameter in state.parameters
    ]
    return in_rows(["parameter", "shape", *(f"norm of {moment}" for moment in MOMENTS)], rows, width)


def picture(inspection: Inspection, path: Path) -> None:
    """Draw the norms of the moments of each parameter, a panel for each optimizer, into a PNG or SVG file."""
    from ademamix.lab.report import figures
    from ademamix.lab.report.charts import Lines, Series

    caption = f"Norms of the stored moments, by parameter. {inspection.path.name}: {inspection.container}."
    figure, places = figures.side_by_side(len(inspection.states), caption, warning="")
    for state, axes in zip(inspection.states, places, strict=True):
        numbers = range(len(state.parameters))
        family = {"m1": "adamw", "m2": "ademamix", "nu": "nu"}
        series = [
            Series.of(m, [i for i in numbers if _is_shown(state, i, m)], _shown(state, m), family[m])
            for m in MOMENTS
            if _shown(state, m)
        ]
        Lines(_title(state), "", "norm", series, joined=False, logarithmic="y").draw(axes)
        names = [parameter.name for parameter in state.parameters]
        if len(names) <= MOST_NAMES:
            axes.set_xticks(list(numbers), names, rotation=90, fontsize=7)
        else:
            axes.set_xlabel("parameters, in their order")
    figures.save_as(figure, path)


def _is_shown(state: State, i: int, moment: str) -> bool:
    return 0 < state.parameters[i].norms.get(moment, 0.0) < float("inf")  # the axis is logarithmic


def _shown(state: State, moment: str) -> list[float]:
    return [p.norms[moment] for i, p in enumerate(state.parameters) if _is_shown(state, i, moment)]
