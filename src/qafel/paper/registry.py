"""All entries of `qafel paper`, in the paper's order."""

from __future__ import annotations

from qafel.errors import ConfigError
from qafel.paper import bits, convex, neural, pareto, rate, related, seeds
from qafel.paper.entry import Entry
from qafel.text import did_you_mean

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
    raise ConfigError(f"the paper has no entry {name!r}{did_you_mean(name, ENTRIES)}")
