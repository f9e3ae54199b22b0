"""What a checkpoint holds: whose state, where in its schedule, how large, and signs of trouble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ademamix.checkpoints import containers
from ademamix.checkpoints.containers import Checkpoint, Location
from ademamix.checkpoints.errors import CheckpointError, endless_nesting_said
from ademamix.checkpoints.wish import STATED

MOMENTS = ("m1", "m2", "nu")  # the paper's names, in the order in which they are shown


@dataclass(frozen=True)
class Parameter:
    """The moments of one parameter."""

    name: str
    shape: tuple[int, ...]
    step: int
    slow_step: int | None
    norms: dict[str, float]
    """By moment; without those that are not stored."""


@dataclass(frozen=True)
class Group:
    """Where a group of parameters is in its schedule, if the checkpoint says what that is."""

    step: int
    slow_step: int | None = None
    total_steps: int | str | None = None
    alpha: float | None = None
    """At the last step; it rises to `alpha_end` over `alpha_warmup` steps."""
    alpha_end: float | None = None
    alpha_warmup: int | None = None
    beta3: float | None = None
    beta3_end: float | None = None
    beta3_warmup: int | None = None
    filled: float | None = None
    """How much of the slow average is filled: see :func:`ademamix.schedules.filled_at`."""
    largest_slow_step: float | None = None


@dataclass(frozen=True)
class State:
    """The state of one optimizer."""

    label: str
    origin: str
    groups: list[Group]
    parameters: list[Parameter]
    bytes: dict[str, int]
    """By moment, as they are in the file, with their scales; and of corrections, if there are any."""
    dtypes: dict[str, list[str]]
    """The same: tensors of several sizes may be stored in several ways."""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the checkpoint does not tell."""


@dataclass(frozen=True)
class Inspection:
    """What a checkpoint holds."""

    path: Path
    container: str
    states: list[State]
    unread: dict[str, str]
    """Why the states of other optimizers in it cannot be read, by their labels."""


def inspect(path: str | Path, *, unsafe_pickle: bool = False, **settings: Any) -> Inspection:
    r"""Say what the optimizer states of a checkpoint hold. It is read as :func:`ademamix.checkpoints.convert` does.

    .. math:: \alpha^{(t)}, \quad \beta_3^{(t)}, \quad 1 - \prod_{s \le t} \beta_3^{(s)}, \quad
              \|m_1\|, \|m_2\|, \|\nu\| \text{ per parameter}

    >>> import tempfile, torch
    >>> from ademamix import AdEMAMix
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = AdEMAMix(model.named_parameters(), total_steps=1000)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> optimizer.step()
    >>> file = Path(tempfile.mkdtemp()) / "optimizer.pt"
    >>> torch.save(optimizer.state_dict(), file)
    >>> (state,) = inspect(file).states
    >>> state.origin, state.groups[0].slow_step, state.groups[0].alpha
    ('ademamix', 1, 0.005)
    >>> {parameter.name: round(parameter.norms["m1"], 6) for parameter in state.parameters}
    {'weight': 0.2, 'bias': 0.1}

    Args:
        path: a file or folder, as for :func:`ademamix.checkpoints.convert`.
        unsafe_pickle: also read files that name code to run. Only for files of people whom you trust.
        settings: of a run with Optax, whose checkpoints have none: `total_steps`, `alpha`, `beta1`, `beta2`, `beta3`,
            `alpha_warmup`, `beta3_warmup`, `slow_clip` and `eps`. One is enough; the others are then as
            :func:`ademamix.optax.ademamix` has them by default. Without any, nothing is said of schedules.

    Reference: sections 3 and 4 of the paper for the schedules; docs/idle.md and docs/storage.md for the warnings.
    """
    path = Path(path)
    given = {name: value for name, value in settings.items() if value is not None}
    with endless_nesting_said(path):
        checkpoint = containers.read(path, unsafe_pickle=unsafe_pickle)
        _check_settings(checkpoint, given)
        states, unread = _states(checkpoint, given)
    return Inspection(path, checkpoint.title, states, unread)


def _check_settings(checkpoint: Checkpoint, settings: dict[str, Any]) -> None:
    unknown = sorted(set(settings) - set(STATED))
    if unknown:
        raise CheckpointError(f"{unknown[0]} is no setting of an inspection; these are: {', '.join(STATED)}")
    if settings and checkpoint.framework == "torch":
        raise CheckpointError(f"a state of torch has its settings in it: leave {', '.join(settings)} out")


def _states(checkpoint: Checkpoint, settings: dict[str, Any]) -> tuple[list[State], dict[str, str]]:
    """Return the states that can be read, and what is wrong with the others; raise if that is all of them."""
    states, errors = [], {}
    for location in checkpoint.locations:
        try:
            states.append(_state(checkpoint, location, settings))
        except CheckpointError as error:
            errors[checkpoint.label(location)] = error
    if not states:
        raise next(iter(errors.values()))
    return states, {label: str(error) for label, error in errors.items()}


def _state(checkpoint: Checkpoint, location: Location, settings: dict[str, Any]) -> State:
    label = checkpoint.label(location)
    if checkpoint.framework == "optax":
        from ademamix.checkpoints import inspection_optax

        return inspection_optax.state_at(location.node, label, settings)
    from ademamix.checkpoints import inspection_torch

    return inspection_torch.state_at(location.node, label, checkpoint.parts[location.part].tree)


def not_finite(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return warnings of elements that are NaN or infinite, given their number by parameter and moment."""
    warnings = []
    for moment in MOMENTS:
        bad = {name: found[moment] for name, found in counts.items() if found.get(moment)}
        if bad:
            warnings.append(
                f"elements of {moment} that are NaN or infinite: {sum(bad.values()):,}, in {some(list(bad))}. So was a "
                "gradient, and the run cannot recover. Go back to an earlier checkpoint; nonfinite='skip' avoids it."
            )
    return warnings


def some(names: list[str]) -> str:
    """List names, but not all of many.

    >>> some(["a", "b"]), some(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
