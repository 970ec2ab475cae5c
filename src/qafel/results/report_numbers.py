"""Numbers for people: 12.3 MB, 4.5 k, 1.2e-4, 2 min 5 s. Units are decimal: 1 MB is 10⁶ bytes."""

from __future__ import annotations

import math

UNKNOWN = "–"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def human_bytes(value: float) -> str:
    """Bytes with a unit: 999 B, 12.3 MB."""
    return _scaled(value, "B")


def human_count(value: float) -> str:
    """A count in thousands and millions from 10,000 on: 9,999 and 10.0 k."""
    if math.isfinite(value) and abs(value) < 10_000 and value == round(value):
        return f"{value:,.0f}"
    return _scaled(value, "")


def human_rate(value: float) -> str:
    """Per second: 1.25 k/s."""
    return UNKNOWN if math.isnan(value) else f"{_scaled(value, '')}/s"


def human_metric(value: float) -> str:
    """Three significant digits, with an exponent where zeros would have to be counted: 0.912, 1.20e-4."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return _three_digits(value)
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def human_seconds(value: float) -> str:
    """Seconds, minutes and seconds, or hours and minutes."""
    if not math.isfinite(value):
        return UNKNOWN
    if value < 99.5:
        return f"{_three_digits(value)} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def human_ratio(value: float) -> str:
    """A factor: 0.131×."""
    return f"{_three_digits(value)}×" if math.isfinite(value) else UNKNOWN


def _scaled(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return UNKNOWN
    power = 0
    # 999.5 would print as 1000 of its own unit.
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{_three_digits(value)} {_PREFIXES[power]}{unit}".strip()


def _three_digits(value: float) -> str:
    if value == round(value) and abs(value) < 100:
        return f"{value:.0f}"
    if value == 0 or not 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    # The exponent after rounding: 0.9999 is 1.00.
    exponent = int(f"{value:.2e}".split("e")[1])
    return f"{value:.{max(0, 2 - exponent)}f}"
