"""Text for people: numbers (12.3 MB, 4.5 k, 1.2e-4, 2 min 5 s) and names of parts. 1 MB is 10⁶ bytes."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType

import numpy as np

from qafel.errors import ConfigError

UNKNOWN = "–"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def human_bytes(value: float) -> str:
    """Format bytes with a unit: 999 B, 12.3 MB."""
    return _scaled(value, "B")


def human_count(value: float) -> str:
    """Format a count, from 10,000 on with a prefix: 9,999 and 10.0 k."""
    if math.isfinite(value) and abs(value) < 10_000 and value == round(value):
        return f"{value:,.0f}"
    return _scaled(value, "")


def counted(number: float, what: str, write: Callable[[float], str] = "{:,}".format) -> str:
    """Format a number of things: 1 client, 1,000 clients. The plural adds an s; `write` formats the number."""
    return f"{write(number)} {what}{'' if number == 1 else 's'}"


def human_rate(value: float) -> str:
    """Format a rate: 1.25 k/s."""
    return UNKNOWN if math.isnan(value) else f"{_scaled(value, '')}/s"


def human_metric(value: float) -> str:
    """Format with three significant digits, and an exponent for very small or large numbers: 0.912, 1.20e-4."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return _three_digits(value)
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def human_seconds(value: float) -> str:
    """Format a duration: 3.2 s, 2 min 5 s, 1 h 20 min or 2 d 3 h."""
    if not math.isfinite(value):
        return UNKNOWN
    if value < 99.5:
        return f"{_three_digits(value)} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days = hours // 24
    return f"{days} d {hours % 24} h" if days < 1000 else f"{human_count(days)} d"


def human_ratio(value: float) -> str:
    """Format a factor: 0.131×."""
    return f"{_three_digits(value)}×" if math.isfinite(value) else UNKNOWN


def _scaled(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return UNKNOWN
    power = 0
    # 999.5 would print as 1000.
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    if abs(value) >= 999.5:
        return f"{'-' * (value < 0)}>999 {_PREFIXES[power]}{unit}"
    return f"{_three_digits(value)} {_PREFIXES[power]}{unit}".strip()


def _three_digits(value: float) -> str:
    if value == round(value) and abs(value) < 100:
        return f"{value:.0f}"
    if value == 0 or not 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    # The exponent after rounding: 0.9999 is 1.00.
    exponent = int(f"{value:.2e}".split("e")[1])
    return f"{value:.{max(0, 2 - exponent)}f}"


_BYTES = {"": 1.0, "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BITS = {"bit": 1 / 8, "kbit": 1e3 / 8, "Mbit": 1e6 / 8, "Gbit": 1e9 / 8}
_LOOSE = {"b", "kb", "mb", "gb", "tb"}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def read_bytes(text: str, option: str) -> float:
    """Parse bytes from text such as 1.5GB or 10Mbit, the value of a command's `option`.

    B is a byte and bit a bit. A lone b is ambiguous and raises `ConfigError`.
    """
    number, unit = _split(text)
    factor = {**_BYTES, **_BITS}.get(unit)
    if factor is None or number is None:
        prefix = unit[:-1].upper().replace("K", "k")
        either = f"; {unit!r} could be bits or bytes: write {prefix}B or {prefix}bit" if unit.lower() in _LOOSE else ""
        raise ConfigError(f"{option} takes a number and a unit (B, kB, MB, GB, TB, kbit, Mbit), got {text!r}{either}")
    return number * factor


def read_seconds(text: str, option: str) -> float:
    """Parse seconds from text such as 90min, the value of a command's `option`."""
    number, unit = _split(text)
    if unit not in _SECONDS or number is None:
        raise ConfigError(f"{option} takes a number and a unit (ms, s, min, h, d), got {text!r}")
    return number * _SECONDS[unit]


def _split(text: str) -> tuple[float | None, str]:
    match = re.fullmatch(r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    return (float(match[1]), match[2]) if match else (None, "")


def split_list(text: str) -> list[str]:
    """Split at commas, except before `key=` and within quotes, brackets or braces."""
    parts, depth, quote = [""], 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth <= 0 and not re.match(r"\s*[a-z_]+\s*=", text[place + 1 :]):
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def printable(text: str) -> str:
    """Escape every character that is not printable.

    Untrusted text could otherwise forge log lines or send commands to a terminal.
    """
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def cut(text: str, most: int) -> str:
    """Return the text, cut to at most `most` letters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: a similar known name, else all if they are few."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    listed = f"; known are {', '.join(names)}" if len(names) <= 24 else ""
    return f"; did you mean {close[0]!r}?" if close else listed


def path_of(value: object) -> str:
    """Return the import path of a class, a function or an object's class: package.module:Name."""
    named = value if isinstance(value, type | FunctionType) else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def described(part: object, name: str | None = None, depth: int = 3) -> str:
    """Describe a user's object by its public attributes: package.module:Name(bits=4).

    Numbers, texts and arrays appear by value, other attributes by class.

    name    text instead of the import path
    depth   levels of nested attributes
    """
    slots = [slot for kind in type(part).__mro__ for slot in kind.__dict__.get("__slots__", ())]
    keys = {key for key in (*getattr(part, "__dict__", ()), *slots) if not key.startswith("_")}
    held = [(key, getattr(part, key)) for key in sorted(keys) if hasattr(part, key)]
    words = ", ".join(f"{key}={_worded(value, depth)}" for key, value in held)
    return f"{name or path_of(part)}({words})" if words else name or path_of(part)


def _worded(value: object, depth: int) -> str:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{list(value.shape)}:{hashlib.blake2b(value.tobytes(), digest_size=4).hexdigest()}"
    if isinstance(value, type | FunctionType) or depth == 0:
        return path_of(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{key!r}: {_worded(entry, depth - 1)}' for key, entry in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_worded(entry, depth - 1) for entry in value)}]"
    spec = getattr(value, "spec", None)
    return spec if isinstance(spec, str) else described(value, depth=depth - 1)
