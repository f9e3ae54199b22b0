"""The mistakes in a config, in plain words."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ademamix.lab.config import Data, Model, Optimizer, Phase, Run, Schedule
from ademamix.lab.fields import Config
from ademamix.lab.probes import Probe


def _kinds(union: Any) -> dict[str, type[Config]]:
    """Return the parts of a union by their kind."""
    return {get_args(part.model_fields["kind"].annotation)[0]: part for part in get_args(get_args(union)[0])}


KINDS = {kind: part for union in (Model, Data, Schedule, Probe) for kind, part in _kinds(union).items()}
"""The parts of a run that have a kind, by that kind."""

LIMITS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
NOUNS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "an object with settings",
    "model_type": "an object with settings",
    "model_attributes_type": "an object with settings",
}
"""The values that pydantic's kinds of errors ask for."""


def explain(error: ValidationError) -> str:
    """Say in a line per mistake where it is, what is possible and what was given.

    >>> from ademamix.lab.config import GPT
    >>> try:
    ...     GPT(kind="gpt", width=0, layers=2, heads="two")
    ... except ValidationError as error:
    ...     print(explain(error))
    width must be above 0, got 0
    heads must be a whole number, got 'two'
    """
    return "\n".join(map(_in_plain_words, error.errors(include_url=False)))


def _in_plain_words(mistake: ErrorDetails) -> str:
    kind, context, given = mistake["type"], mistake.get("ctx", {}), f", got {mistake['input']!r}"
    path = [str(part) for part in mistake["loc"] if part not in KINDS]
    where = ".".join(path)
    match kind:
        case "extra_forbidden":
            owner = ".".join(path[:-1]) or "the run"
            fields = ", ".join(name for name in _owner(mistake["loc"]).model_fields if name != "kind")
            return f"{owner} has no setting {path[-1]!r}: it takes {fields}"
        case "missing":
            return f"{where} is missing"
        case "union_tag_invalid":
            return f"{where}.kind must be {_one_of(context['expected_tags'])}, got {context['tag']!r}"
        case "union_tag_not_found":
            return f"{where}.kind is missing"
        case "literal_error":
            return f"{where} must be {_one_of(context['expected'])}{given}"
        case "value_error":  # ours; for a part as a whole it already says what was given
            return (
                (f"{where}: " if where else "") + str(context["error"]) + ("" if _is_part(mistake["input"]) else given)
            )
        case "json_invalid":
            return f"this is not JSON: {context['error']}"
    for name, words in LIMITS.items():
        if kind == name:
            return f"{where} must be {words} {next(iter(context.values())):g}{given}"
    return f"{where} must be {NOUNS[kind]}{given}" if kind in NOUNS else f"{where}: {mistake['msg'].lower()}{given}"


def _owner(place: tuple[int | str, ...]) -> type[Config]:
    """Return the class that was given a field that it does not have."""
    owners: dict[str, type[Config]] = {"optimizer": Optimizer, "phases": Phase, **KINDS}
    names = [str(part) for part in place[:-1] if not isinstance(part, int)]
    return owners.get(names[-1], Run) if names else Run


def _one_of(quoted: str) -> str:
    """Return pydantic's list of texts as a choice.

    >>> _one_of("'gpt', 'mamba', 'vit'")
    'gpt, mamba or vit'
    """
    *rest, last = quoted.replace(" or ", ", ").replace("'", "").split(", ")
    return f"{', '.join(rest)} or {last}" if rest else last


def _is_part(value: Any) -> bool:
    return isinstance(value, dict | Config)
