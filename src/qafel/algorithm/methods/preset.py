"""What a method fixes of an algorithm's settings, and what it only suggests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from qafel.parts import PartTable


@final
@dataclass(frozen=True, slots=True)
class Preset:
    """A method by name: its settings. A fixed part may be given arguments; another part in its place is an error."""

    summary: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    rounds: bool = False

    def resolve(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with this method's filled in; a setting that contradicts a fixed one is an error."""
        resolved = {**self.default, **settings}
        for key, value in self.fixed.items():
            given = resolved.setdefault(key, value)
            if given != value and _name_of(given) != value:
                raise ValueError(f"{name} has {key} = {value!r} by definition, the configuration says {given!r}")
        return resolved


def _name_of(part: Any) -> Any:
    return part.get("name") if isinstance(part, Mapping) else part.name if isinstance(part, PartTable) else None
