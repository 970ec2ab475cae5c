"""The paper, one entry per figure and table: real runs, real bytes, and each published claim beside what was measured.

entry        what is run; an entry as data and small functions; a claim and its verdict
statistics   intervals over paired seeds, and what they decide
measured     the runs read back, with their spread over seeds; methods compared on equal seeds
display      tables, and the panels that several figures share
convex, rate, pareto, fewest, neural, bits, methods    the entries themselves
kept         finished runs in a few kB each
outputs      where results come from, and an entry's files
document     docs/reproduction.md: every claim and its verdict, then every figure
"""

from qafel.errors import ConfigError
from qafel.paper import bits, convex, fewest, methods, neural, pareto, rate
from qafel.paper.entry import Entry, Extent, Request
from qafel.text import did_you_mean

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        convex.RELATED_WORK,
        convex.DIRECT_VS_UNQUANTIZED,
        rate.ENTRY,
        convex.QAFEL_VS_DIRECT_QSGD,
        convex.QAFEL_VS_DIRECT_TOPK,
        convex.LOCAL_STEPS_ENTRY,
        neural.CIFAR10,
        neural.CELEBA,
        neural.SHAKESPEARE,
        neural.SEEDS,
        bits.ENTRY,
        methods.ENTRY,
        methods.TARGETS,
        pareto.ENTRY,
        fewest.ENTRY,
    )
}
"""All entries of `qafel paper`, in the paper's order."""


def entry_named(name: str) -> Entry:
    """The entry called `name`; a ConfigError suggests the nearest one if there is none."""
    if name in ENTRIES:
        return ENTRIES[name]
    raise ConfigError(f"the paper has no entry {name!r}{did_you_mean(name, ENTRIES)}")


__all__ = ["ENTRIES", "Entry", "Extent", "Request", "entry_named"]
