"""The arguments of a quantizer's spec, taken one by one by the family that the spec names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

from qafel.errors import SpecError
from qafel.quantizers.payloads import DEFAULT_BUCKET
from qafel.quantizers.protocol import Quantizer
from qafel.text import did_you_mean

N = TypeVar("N", int, float)
Q = TypeVar("Q")


@dataclass(slots=True)
class SpecArguments:
    """The arguments of one spec, taken one by one; whatever is left over at the end is an error."""

    name: str
    parse: Callable[[str], Quantizer]
    """Reads the spec of a quantizer inside this one."""
    rest: str = ""
    """All that follows the colon."""
    positional: str | None = None
    named: dict[str, str] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)

    def read(self) -> Self:
        """Split what follows the colon into arguments; `values=` comes last and takes the rest."""
        rest = self.rest
        while rest:
            if rest.startswith("values="):
                self.named["values"] = rest.removeprefix("values=")
                break
            part, _, rest = rest.partition(",")
            key, equals, value = part.partition("=")
            if not equals:
                if self.positional is not None or self.named:
                    raise SpecError(f"{self.name}: {part!r} has no name; write key=value after the first argument")
                self.positional = part
            elif key in self.named:
                raise SpecError(f"{self.name}: {key!r} is given twice")
            else:
                self.named[key] = value
        return self

    def text(self, key: str, default: str | None = None, *, first: bool = False) -> str | None:
        """The argument `key`, or the default; with `first`, it may also be the positional one."""
        self.allowed.append(key)
        value = self.named.pop(key, None)
        if first and self.positional is not None:
            if value is not None:
                raise SpecError(f"{self.name}: {key!r} is given twice, as {self.positional!r} and as {value!r}")
            value, self.positional = self.positional, None
        return default if value is None else value

    def number(self, key: str, kind: type[N], *, first: bool = False) -> N | None:
        """The argument as a number of that kind, None if it is not given."""
        value = self.text(key, first=first)
        try:
            return None if value is None else kind(value)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise SpecError(f"{self.name}: {key} must be {wanted}, found {value!r}") from None

    def needed(self, key: str) -> int:
        """A whole number that must be given, first or by name."""
        value = self.number(key, int, first=True)
        if value is None:
            raise SpecError(f"{self.name} needs {key}: write {self.name}:4")
        return value

    def bucket(self) -> int | None:
        """The argument `bucket`: a whole number, or None for the whole vector."""
        value = self.text("bucket")
        if value is None:
            return DEFAULT_BUCKET
        if value == "none":
            return None
        if not value.isdecimal():
            raise SpecError(f"{self.name}: bucket must be a whole number or none, found {value!r}")
        return int(value)

    def end(self, quantizer: Q) -> Q:
        """Return the quantizer; refuse what was given and not taken."""
        if self.positional is not None:
            raise SpecError(f"{self.name}: unexpected {self.positional!r}")
        for key in self.named:
            raise SpecError(f"{self.name}: unknown key {key!r}" + did_you_mean(key, self.allowed or ["(no keys)"]))
        return quantizer
