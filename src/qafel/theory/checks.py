"""What a number may be: of a magnitude whose squares and products are numbers still."""

from __future__ import annotations

from qafel.errors import ConfigError

SMALLEST, LARGEST = 1e-60, 1e60


def require(holds: bool, rule: str, found: object) -> None:
    """Raise, with the rule and what was found, unless it holds."""
    if not holds:
        raise ConfigError(f"{rule}; got {found}")


def require_positive(name: str, value: float) -> None:
    """Raise unless it is above zero, and neither too small nor too large to reckon with."""
    if not SMALLEST <= value <= LARGEST:
        raise ConfigError(f"the {name} is positive, from {SMALLEST:g} to {LARGEST:g}; got {value}")


def require_not_negative(name: str, value: float) -> None:
    """Raise unless it is zero or more, and not too large to reckon with."""
    if not 0 <= value <= LARGEST:
        raise ConfigError(f"the {name} is zero or more, and at most {LARGEST:g}; got {value}")
