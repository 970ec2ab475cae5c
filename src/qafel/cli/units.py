"""Figures as people read them."""

from __future__ import annotations


def human_bytes(count: float) -> str:
    """1,234,567 → "1.23 MB" (powers of ten, as network traffic is counted)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
