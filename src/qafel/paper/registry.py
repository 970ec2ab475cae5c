"""All entries of `qafel paper`, in the paper's order."""

from __future__ import annotations

import difflib

from qafel.errors import ConfigError
from qafel.paper import bits, convex, neural, pareto, rate, related, seeds
from qafel.paper.entry import Entry

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        related.ENTRY,
        convex.DIRECT_VS_UNQUANTIZED,
        rate.ENTRY,
        convex.QAFEL_VS_DIRECT_QSGD,
        convex.QAFEL_VS_DIRECT_TOPK,
        convex.LOCAL_STEPS_ENTRY,
        neural.CIFAR10,
        neural.CELEBA,
        neural.SHAKESPEARE,
        seeds.SEEDS,
        bits.ENTRY,
        pareto.ENTRY,
    )
}


def entry_named(name: str) -> Entry:
    if name in ENTRIES:
        return ENTRIES[name]
    close = difflib.get_close_matches(name, ENTRIES, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(ENTRIES)}"
    raise ConfigError(f"the paper has no entry {name!r}; {hint}")
