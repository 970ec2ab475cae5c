"""Bytes and seconds from text, such as 1.5GB, 10Mbit or 90min."""

from __future__ import annotations

import re

from qafel.errors import ConfigError

_BYTES = {"": 1.0, "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BITS = {"bit": 1 / 8, "kbit": 1e3 / 8, "Mbit": 1e6 / 8, "Gbit": 1e9 / 8}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def read_bytes(text: str, option: str) -> float:
    """A number of bytes. B is a byte and bit a bit; a lone b could be either, and is an error."""
    number, unit = _split(text)
    factor = {**_BYTES, **_BITS}.get(unit)
    if factor is None or number is None:
        hint = f"; {unit!r} could be bits or bytes: write {_either(unit)}" if unit.lower() in _LOOSE else ""
        raise ConfigError(f"{option} takes a number and a unit (B, kB, MB, GB, TB, kbit, Mbit), got {text!r}{hint}")
    return number * factor


def read_seconds(text: str, option: str) -> float:
    number, unit = _split(text)
    if unit not in _SECONDS or number is None:
        raise ConfigError(f"{option} takes a number and a unit (ms, s, min, h, d), got {text!r}")
    return number * _SECONDS[unit]


_LOOSE = {"b", "kb", "mb", "gb", "tb"}


def _either(unit: str) -> str:
    prefix = {"k": "k"}.get(unit[0].lower(), unit[0].upper()) if len(unit) == 2 else ""
    return f"{prefix}B or {prefix}bit"


def _split(text: str) -> tuple[float | None, str]:
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None:
        return None, ""
    try:
        return float(match[1]), match[2]
    except ValueError:
        return None, match[2]
