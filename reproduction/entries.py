"""All entries, in the paper's order."""

from qafel.errors import ConfigError
from qafel.text import did_you_mean
from reproduction import bits, convex, downlink, methods, neural, pareto, pareto_cifar10, rate
from reproduction.entry import Entry

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
        pareto_cifar10.ENTRY,
        downlink.ENTRY,
        downlink.CONVEX_ENTRY,
    )
}


def entry_named(name: str) -> Entry:
    """The entry called `name`; a ConfigError suggests the nearest name."""
    if name in ENTRIES:
        return ENTRIES[name]
    raise ConfigError(f"Unknown entry {name!r}{did_you_mean(name, ENTRIES)}")
