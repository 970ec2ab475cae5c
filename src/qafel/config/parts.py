"""How a setting names a part: one of ours by its name, or a user's own by its import path, with arguments or without.

    staleness = "my_package.laws:Halving"
    staleness = { name = "my_package.laws:Halving", arguments = { every = 10 } }

A setting is text: to read one imports nothing, so that whoever reads a run's configuration runs nobody's code. Only
`make` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, TypeAlias, final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    JsonValue,
    ValidationError,
    model_validator,
)

from qafel import parts
from qafel.algorithm.own import QUANTIZER
from qafel.errors import whole_number
from qafel.params import Layout
from qafel.parts import Kind, is_path
from qafel.quantizers import as_quantizer, parse
from qafel.quantizers.protocol import Quantizer
from qafel.quantizers.spec import FAMILIES
from qafel.text import did_you_mean

TASK = Kind(
    "task",
    (
        *("name", "clients", "layout", "metric_name", "metric_goal"),
        *("samples", "initial_model", "train", "evaluate"),
    ),
)
ARRIVALS = Kind("arrival law", ("__iter__",))
DURATIONS = Kind("duration law", ("draw",))


class Section(BaseModel):
    """A table of settings: frozen, strict, closed to unknown keys, and all its numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, table: Any) -> Any:
        """1e3 is a way to write a whole number; a setting that is a float makes one of it again."""
        if not isinstance(table, Mapping):
            return table
        return {key: whole_number(value) for key, value in table.items()}


Arguments: TypeAlias = dict[str, JsonValue]
"""What an own part is made with: numbers, text, truth values, and lists and tables of them."""


@final
class OwnPart(Section):
    """A user's own part and its arguments, of which there are some: without any it is its import path alone."""

    name: str
    arguments: Arguments

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments.items())})"


def _read(value: Any) -> Any:
    """A part as a recipe names it; a table without arguments is a name."""
    if isinstance(value, str | OwnPart):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"a part is a name or a table with name and arguments, found {value!r}")
    for key in value:
        if key not in OwnPart.model_fields:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, OwnPart.model_fields)}")
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or (arguments and not is_path(name)):
        raise ValueError(f"the name of an own part is package.module:Name, found {name!r}")
    try:
        return OwnPart(name=name, arguments=arguments) if arguments else name
    except ValidationError:
        raise ValueError(f"arguments are a table of numbers, text, lists and tables, found {arguments!r}") from None


PartName: TypeAlias = Annotated[str | OwnPart, BeforeValidator(_read)]


def one_of(known: Iterable[str], what: str) -> AfterValidator:
    """What a setting must be: a `known` name, or a user's own part; `what` is its kind."""
    names = list(known)

    def check(value: str | OwnPart) -> str | OwnPart:
        if isinstance(value, str) and value not in names and not is_path(value):
            near = did_you_mean(value, names) if names else "; your own is package.module:Name"
            raise ValueError(f"unknown {what} {value!r}{near}")
        return value

    return AfterValidator(check)


def own_path(part: str | OwnPart | None, families: Collection[str] = ()) -> str | None:
    """The import path of a user's own part; None of one of ours, whose `families` come first: qsgd:4 stays qsgd:4."""
    if isinstance(part, OwnPart):
        return part.name
    is_own = part is not None and is_path(part) and part.partition(":")[0] not in families
    return part if is_own else None


def make(part: str | OwnPart, kind: Kind, known: Iterable[str] = (), **offered: Any) -> Any:
    """Import and make a user's own part; `offered` are arguments that it may have parameters for."""
    if isinstance(part, OwnPart):
        return parts.make(part.name, kind, part.arguments, offered=offered, known=known)
    return parts.make(part, kind, offered=offered, known=known)


def make_quantizer(part: str | OwnPart, layout: Layout | None = None) -> Quantizer:
    """The quantizer of a spec such as "qsgd:4", or a user's own; `layout` is the model's, as for `parse`."""
    if (path := own_path(part, FAMILIES)) is None:
        return parse(str(part), layout)
    return as_quantizer(make(part, QUANTIZER, FAMILIES), name=path)
