"""What a run is: typed, frozen, checked where it is written, and named by its hash.

Only what changes the numbers of a run belongs here. How often it is saved, how many processes share the machine and
where its folder lies do not.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from ademamix.lab import PARAMETERS
from ademamix.lab.fields import Config, NotNegative, Positive, Rate, RateOrZero, Whole
from ademamix.lab.models import GPT as GPT
from ademamix.lab.models import Mamba as Mamba
from ademamix.lab.models import Model as Model
from ademamix.lab.models import ViT as ViT
from ademamix.lab.optimizers import OPTIMIZERS
from ademamix.lab.probes import Probe

if TYPE_CHECKING:
    OptimizerName: TypeAlias = str
    ParametersName: TypeAlias = str
else:  # for pydantic, which reads the names of the one list of each when this module is loaded
    OptimizerName = Literal[tuple(OPTIMIZERS)]
    ParametersName = Literal[tuple(PARAMETERS)]

Part = TypeVar("Part", bound="Config")

FORMAT = 2
"""Increased when the same config comes to mean other numbers: runs of another format have other keys."""
VALIDATION_EXAMPLES = 512
MOST_VALIDATIONS = 50
VALIDATION_SHARE = 0.1
"""The share of a run's time for validation, where :func:`validation_interval` chooses the interval."""
VALIDATION_COST = 0.31
"""Time to validate on an example, divided by the time to train on it (gpt-tiny on a CPU)."""


class Text(Config):
    """Text to model: where it comes from and what its tokens are."""

    kind: Literal["text"]
    source: str = "stdlib"
    """"stdlib" (the standard library's own sources), "kjv" (the King James Bible), a file, a folder, or "hub:NAME" of a
    Hugging Face dataset."""
    tokenizer: str = "bytes"
    """"bytes", "sentencepiece:SIZE" (trained on the text), or "hub:NAME" of a Hugging Face tokenizer."""
    tokens: Positive | None = None
    """How many tokens to take at most; needed for a dataset of the hub, which may not end."""
    held_out_batches: NotNegative = 0
    """Batches taken out of the training text; a probe can follow one, or put it back at a step."""


class Images(Config):
    """Images to classify: where they come from, and whether they are augmented (crop, flip, colour jitter, mixup)."""

    kind: Literal["images"]
    source: str = "digits"
    """"digits" (scikit-learn's), "cifar10", a folder with `train/CLASS/*.png` or CIFAR-10's files, or "hub:NAME"."""
    augment: bool = True
    examples: Positive | None = None
    """How many training images to take at most: a fixed draw, in which fewer are always among more."""
    held_out_batches: NotNegative = 0


class Optimizer(Config):
    """An optimizer by name, its learning rate, and the other arguments of its constructor."""

    name: OptimizerName
    lr: Rate
    settings: dict[str, Any] = {}  # noqa: RUF012 (pydantic copies it)

    @field_validator("settings", mode="after")
    @classmethod
    def _spell_numbers_alike(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Write 8.0 as 8: the run is the same, so its key has to be."""
        return {name: _whole_as_integer(value) for name, value in settings.items()}

    @property
    def described(self) -> str:
        """The optimizer as a phrase.

        >>> Optimizer(name="ademamix", lr=1e-3, settings={"alpha": 8.0}).described
        'ademamix lr=0.001 alpha=8'
        """
        return " ".join([self.name, f"lr={self.lr}", *(f"{name}={value}" for name, value in self.settings.items())])


def _whole_as_integer(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_whole_as_integer(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Cosine(Config):
    """The learning rate rises linearly over `warmup` steps, then falls along a cosine to `final`."""

    kind: Literal["cosine"]
    warmup: NotNegative = 0
    final: RateOrZero = 1e-5


class ConstantThenLinear(Config):
    """The learning rate rises over `warmup` steps, stays, and falls to `final` over the last `decay`, both linearly."""

    kind: Literal["constant"]
    warmup: NotNegative = 0
    decay: NotNegative = 0
    final: RateOrZero = 0.0


Data = Annotated[Text | Images, Field(discriminator="kind")]
Schedule = Annotated[Cosine | ConstantThenLinear, Field(discriminator="kind")]


class Phase(Config):
    """After `step` steps the run continues with another optimizer or learning-rate schedule, or with both.

    An optimizer, which may be the same one with other settings, takes over the averages and clocks that it shares with
    the previous one. A schedule counts the steps of the whole run. There is no other data: what a run reads has one
    fingerprint, and the probe `inject-batch` puts another batch in at a step. Nor are there probes, which know
    themselves at which step they begin.
    """

    step: Positive
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Phase:
        if self.optimizer is None and self.schedule is None:
            raise ValueError(f"the phase from step {self.step} changes nothing: give an optimizer or a schedule")
        return self


class Run(Config):
    """One training run.

    >>> run = Run(
    ...     model=GPT(kind="gpt", width=64, layers=2, heads=2, context=64), data=Text(kind="text"),
    ...     optimizer=Optimizer(name="adamw", lr=1e-3), schedule=Cosine(kind="cosine", warmup=100),
    ...     steps=1000, batch=8, validate_every=100,
    ... )
    >>> run.key == read(Run, run.model_dump_json()).key
    True
    """

    model: Model
    data: Data
    optimizer: Optimizer
    schedule: Schedule
    steps: Positive
    batch: Positive
    validate_every: Positive
    accumulate: Positive = 1
    """Each batch is processed in this many parts, whose gradients are averaged."""
    clip: Rate | None = 1.0
    """The largest norm of the gradient; None for no clipping."""
    seed: Annotated[Whole, Field(ge=0, lt=2**64)] = 0
    parameters: ParametersName = "fp32"
    autocast: bool = False
    """Forward pass in bf16, parameters as they are."""
    validation_examples: Positive = VALIDATION_EXAMPLES
    """How many windows of text, or images, a validation looks at, whatever the batch; all, if there are fewer."""
    record_every: Positive = 10
    """The training loss is recorded as its mean over this many steps."""
    phases: tuple[Phase, ...] = ()
    """The changes in mid-run, in the order of their steps."""
    probes: tuple[Probe, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _read_switch(cls, fields: Any) -> Any:
        """Take a `switch`, the name in version 0.1 for a single phase with another optimizer."""
        if isinstance(fields, dict) and fields.get("switch") is not None:
            fields = {**fields, "phases": [fields["switch"]]}
        return {name: value for name, value in fields.items() if name != "switch"} if "switch" in fields else fields

    @model_validator(mode="after")
    def _parts_fit(self) -> Run:
        if self.model.trains_on != self.data.kind:
            raise ValueError(f"a model of kind {self.model.kind!r} cannot be trained on {self.data.kind}")
        if self.batch % self.accumulate:
            raise ValueError(f"batch must be a multiple of accumulate, got {self.batch} and {self.accumulate}")
        self._check_phases()
        decay = self.schedule.decay if isinstance(self.schedule, ConstantThenLinear) else 0
        if self.schedule.warmup + decay > self.steps:
            raise ValueError(
                f"warm-up and decay must fit into the {self.steps} steps of a run, got {self.schedule.warmup} + {decay}"
            )
        for probe in self.probes:
            if probe.held_out_batches > self.data.held_out_batches:
                raise ValueError(
                    f"the probe {probe.kind} needs {probe.held_out_batches} held-out batches, got "
                    f"{self.data.held_out_batches}: raise held_out_batches of the data"
                )
            if probe.first_effect > self.steps:
                raise ValueError(
                    f"the probe {probe.kind} would begin at step {probe.first_effect}, after the last step, "
                    f"{self.steps}: choose an earlier one"
                )
        return self

    def _check_phases(self) -> None:
        steps = [phase.step for phase in self.phases]
        if sorted(set(steps)) != steps or (steps and steps[-1] >= self.steps):
            raise ValueError(
                f"phases must begin one after another and before the last step, {self.steps}, got steps {steps}"
            )

    @property
    def key(self) -> str:
        """The name of the run's folder: a hash of the format and of all fields that differ from their defaults.

        Without the defaults, so that a field that is added to this class later does not rename today's runs.
        """
        fields = {"format": FORMAT, **self.model_dump(mode="json", exclude_defaults=True)}
        if len(self.phases) == 1 and self.phases[0].schedule is None:  # as version 0.1 named it
            (fields["switch"],) = fields.pop("phases")
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def then(self, step: int, optimizer: Optimizer | None = None, schedule: Schedule | None = None) -> Run:
        """Return the run that continues with another optimizer or schedule after `step` steps.

        >>> from ademamix.lab.comparison.defaults import DEFAULT
        >>> DEFAULT.then(5000, Optimizer(name="ademamix", lr=4e-3)).phases[0].step
        5000
        """
        return self.changed(phases=(*self.phases, Phase(step=step, optimizer=optimizer, schedule=schedule)))

    def changed(self, **fields: Any) -> Run:
        """Return the run with other values of some fields, checked like any run.

        >>> from ademamix.lab.comparison.defaults import DEFAULT
        >>> DEFAULT.changed(seed=3).seed
        3
        """
        return Run(**{name: getattr(self, name) for name in type(self).model_fields} | fields)


def validation_interval(steps: int, batch: int, examples: int = VALIDATION_EXAMPLES) -> int:
    """Return how many steps to put between validations, so that they take about a tenth of the time of a run.

    There are at most fifty. A run that is too short for even one still has it, after its last step.

    >>> validation_interval(10_000, batch=8), validation_interval(1000, batch=8), validation_interval(100, batch=8)
    (200, 200, 100)
    """
    affordable = int(VALIDATION_SHARE * steps * batch / (VALIDATION_COST * examples))
    return math.ceil(steps / max(1, min(MOST_VALIDATIONS, affordable)))


class ConfigError(ValueError):
    """An invalid config; the message says what is wrong, what was given and what is possible."""


def read(part: type[Part], text: str) -> Part:
    """Return the part of a config that a JSON text describes."""
    try:
        return part.model_validate_json(text)
    except ValidationError as error:
        from ademamix.lab.config_mistakes import explain  # which has to know all that is above

        raise ConfigError(explain(error)) from None
