"""Text to quantizer: name[:positional][,key=value]…[+zstd].

qsgd:4                       4 bits a coordinate
qsgd:levels=8,norm=l2,bucket=none
top_k:0.01,values=qsgd:4     `values=` comes last and takes the rest
scaled:qsgd:4                takes the rest
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from qafel.errors import SpecError


def nearest(word: str, known: Iterable[str]) -> str:
    """Words for an error: the known name that is close, else all that are known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


@dataclass(slots=True)
class Arguments:
    """The arguments of one spec, taken one by one; whatever is left over at the end is an error."""

    name: str
    positional: str | None = None
    named: dict[str, str] = field(default_factory=dict)
    allowed: list[str] = field(default_factory=list)

    @staticmethod
    def read(name: str, text: str) -> Arguments:
        arguments = Arguments(name)
        rest = text
        while rest:
            if rest.startswith("values="):
                arguments.named["values"] = rest.removeprefix("values=")
                break
            part, _, rest = rest.partition(",")
            key, equals, value = part.partition("=")
            if not equals:
                if arguments.positional is not None or arguments.named:
                    raise SpecError(f"{name}: {part!r} has no name; write key=value after the first argument")
                arguments.positional = part
            elif key in arguments.named:
                raise SpecError(f"{name}: {key!r} is given twice")
            else:
                arguments.named[key] = value
        return arguments

    def text(self, key: str, default: str | None = None, *, first: bool = False) -> str | None:
        """The argument `key`; with `first`, also as the positional one."""
        self.allowed.append(key)
        value = self.named.pop(key, None)
        if first and self.positional is not None:
            if value is not None:
                raise SpecError(f"{self.name}: {key!r} is given twice, as {self.positional!r} and as {value!r}")
            value, self.positional = self.positional, None
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, first: bool = False) -> int | None:
        value = self.text(key, first=first)
        if value is None:
            return default
        try:
            return int(value)
        except ValueError:
            raise SpecError(f"{self.name}: {key} must be a whole number, found {value!r}") from None

    def needed(self, key: str) -> int:
        """A whole number that has no default, given first or by name."""
        value = self.integer(key, first=True)
        if value is None:
            raise SpecError(f"{self.name} needs {key}: write {self.name}:4")
        return value

    def number(self, key: str, *, first: bool = False) -> float | None:
        value = self.text(key, first=first)
        if value is None:
            return None
        try:
            return float(value)
        except ValueError:
            raise SpecError(f"{self.name}: {key} must be a number, found {value!r}") from None

    def bucket(self, default: int | None) -> int | None:
        value = self.text("bucket")
        if value is None:
            return default
        if value == "none":
            return None
        if not value.isdecimal():
            raise SpecError(f"{self.name}: bucket must be a whole number or none, found {value!r}")
        return int(value)

    def end(self) -> None:
        """Refuse what no one asked for."""
        if self.positional is not None:
            raise SpecError(f"{self.name}: unexpected {self.positional!r}")
        for key in self.named:
            raise SpecError(f"{self.name}: unknown key {key!r}; " + nearest(key, self.allowed or ["(no keys)"]))
