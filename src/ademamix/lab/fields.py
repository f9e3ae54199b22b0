"""The building blocks of a config's parts: base classes, and numbers within limits."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _refuse_boolean(value: Any) -> Any:
    if isinstance(value, bool):  # it would be taken for 0 or 1
        raise ValueError("this must be a number, not a truth value")
    return value


Whole = Annotated[int, BeforeValidator(_refuse_boolean)]
Real = Annotated[float, BeforeValidator(_refuse_boolean)]
Positive = Annotated[Whole, Field(gt=0)]
NotNegative = Annotated[Whole, Field(ge=0)]
Rate = Annotated[Real, Field(gt=0, allow_inf_nan=False)]
RateOrZero = Annotated[Real, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[Real, Field(ge=0, lt=1)]


class Config(BaseModel):
    """A part of a run: frozen, and without fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


DataKind = Literal["text", "images"]


class ModelConfig(Config):
    """What all models have."""

    trains_on: ClassVar[DataKind] = "text"
    """The kind of data."""

    @property
    def positions(self) -> int:
        """How many predictions the model makes for an example."""
        raise NotImplementedError


class Transformer(ModelConfig):
    """The fields that transformers share; `kind` is one of them because it is the first field of each."""

    kind: str
    width: Positive
    layers: Positive
    heads: Positive

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Transformer:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got width={self.width}, heads={self.heads}")
        return self
