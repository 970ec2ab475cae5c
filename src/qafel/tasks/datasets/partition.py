"""Partitions: the distribution of samples over clients, and a picture of it.

- `user`: one client per user of the dataset.
- `iid`: equal sizes, random labels.
- `dirichlet:α`: equal sizes. Each client's labels follow Dirichlet(α·p), where p are the shares of the labels in the
  dataset (Hsu, Qi and Brown, 2019).
- `dirichlet-sizes:α`: sizes follow a symmetric Dirichlet(α); random labels.
- `power:a`: sizes follow weights from NumPy's power(a); random labels. The published CIFAR-10 runs use power:0.1.
- `shards:s`: samples sorted by label and cut; each client gets s pieces (McMahan et al., 2017).

Every client has at least one sample. Every sample belongs to one client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from qafel import drawing
from qafel.drawing.chart import BLUE, PALETTE, Axis, Bars, Panel, Series, Style, panel_styles
from qafel.errors import ConfigError, SpecError
from qafel.rng import Stream
from qafel.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Indices: TypeAlias = NDArray[np.int64]
Labels: TypeAlias = NDArray[Any]


@final
@dataclass(frozen=True, eq=False)
class Partition:
    """Client k has the samples `order[offsets[k]:offsets[k + 1]]`."""

    order: Indices
    offsets: Indices

    @staticmethod
    def of_sizes(order: Indices, sizes: NDArray[Any]) -> Partition:
        """Return consecutive parts of these sizes."""
        return Partition(order, np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]))

    @staticmethod
    def of_parts(parts: Sequence[Any]) -> Partition:
        """Return the partition where client k has the row numbers `parts[k]`, an array or a list."""
        arrays = []
        for client, given in enumerate(parts):
            try:
                part = np.asarray(given)
            except ValueError:  # lists of different lengths
                part = np.empty(0)
            if part.ndim != 1 or not part.size or not np.issubdtype(part.dtype, np.integer) or part.min() < 0:
                raise ConfigError(f"client {client} needs a flat list of row numbers, at least one; got {given!r:.60}")
            arrays.append(part)
        if not arrays:
            raise ConfigError("a partition needs at least one client, with a list of row numbers each")
        order = np.concatenate(arrays).astype(np.int64)
        rows, counts = np.unique(order, return_counts=True)
        if counts.max() > 1:
            raise ConfigError(f"a row belongs to one client, once; row {rows[counts.argmax()]} is listed again")
        return Partition.of_sizes(order, np.array([part.size for part in arrays]))

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """The number of samples of each client."""
        return np.diff(self.offsets)

    def rows(self, client: int) -> Indices:
        """Return the samples of one client."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def take(self, clients: NDArray[Any], max_samples: int | None, stream: Stream) -> Partition:
        """Return only these `clients`, each with at most `max_samples` random samples."""
        generator = stream.generator()
        parts = [self.rows(int(client)) for client in clients]
        if max_samples is not None:
            parts = [p if len(p) <= max_samples else np.sort(generator.permutation(p)[:max_samples]) for p in parts]
        return Partition.of_sizes(np.concatenate(parts), np.array([len(part) for part in parts]))


def split(spec: str, labels: Labels, clients: int, seed: int | Stream = 0) -> Partition:
    """Divide samples among clients.

    spec      the kind of partition: iid, dirichlet:0.1, shards:2, …
    labels    the label of each sample
    clients   the number of clients
    seed      a number or a stream; equal seeds give equal partitions

    >>> split("shards:1", np.array([1, 0, 1, 0]), 2).sizes.tolist()
    [2, 2]
    """
    stream = Stream.named(seed, "partition") if isinstance(seed, int) else seed
    labels = np.asarray(labels)
    if not 1 <= clients <= len(labels):
        raise ConfigError(f"clients must be from 1 to the number of samples, {len(labels)}; got {clients}")
    if spec == "iid":
        return Partition.of_sizes(stream.generator().permutation(len(labels)), _equal_sizes(len(labels), clients))
    name, _, text = spec.partition(":")
    if name == "iid":
        raise SpecError(f"partition 'iid' does not take a parameter; got {spec!r}")
    if name not in _SPLITS:
        raise SpecError(
            f"unknown partition {spec!r}; choose from user, iid, dirichlet:α, dirichlet-sizes:α, power:a, shards:s"
        )
    try:
        parameter = float(text)
    except ValueError:
        parameter = float("nan")
    if not 0 < parameter < float("inf"):
        example = "shards:2" if name == "shards" else f"{name}:0.1"
        raise SpecError(f"partition {name!r} takes a positive number, as in {example}; got {spec!r}")
    if labels.ndim != 1 and name in ("dirichlet", "shards"):
        raise ConfigError(f"partition {name!r} needs one label per sample, got shape {list(labels.shape)}: use argmax")
    return _SPLITS[name](labels, clients, parameter, stream)


def by_user(users: NDArray[Any]) -> Partition:
    """Return one client per user. `users` has the user of each sample; samples keep their order."""
    order = np.argsort(users, kind="stable")
    return Partition.of_sizes(order, np.unique(users, return_counts=True)[1])


def _dirichlet_labels(labels: Labels, clients: int, alpha: float, stream: Stream) -> Partition:
    """Let each client draw q ~ Dir(αp), then its samples by q, without replacement (Hsu et al.).

    If a label is exhausted, the rest of q applies; if all of q is exhausted, the remaining data.
    """
    generator = stream.generator()
    _, codes = np.unique(labels, return_inverse=True)
    pools = [generator.permutation(np.flatnonzero(codes == label)) for label in range(codes.max() + 1)]
    left = np.array([len(pool) for pool in pools])
    prior = left / left.sum()
    sizes = _equal_sizes(len(labels), clients)
    order = []
    for size in sizes:
        mixture = _gamma_dirichlet(generator, alpha * prior)
        wanted = size
        while wanted > 0:
            weights = np.where(left > 0, mixture, 0.0)
            weights = weights if weights.sum() > 0 else left.astype(np.float64)
            counts = np.minimum(generator.multinomial(wanted, weights / weights.sum()), left)
            order += [pool[n - c : n] for pool, n, c in zip(pools, left, counts, strict=True) if c]
            left -= counts
            wanted -= counts.sum()
    return Partition.of_sizes(np.concatenate(order), sizes)


def _dirichlet_sizes(labels: Labels, clients: int, alpha: float, stream: Stream) -> Partition:
    generator = stream.generator()
    return _by_weight(len(labels), _gamma_dirichlet(generator, np.full(clients, alpha)), generator)


def _power_sizes(labels: Labels, clients: int, exponent: float, stream: Stream) -> Partition:
    generator = stream.generator()
    return _by_weight(len(labels), generator.power(exponent, clients), generator)


def _shards(labels: Labels, clients: int, per_client: float, stream: Stream) -> Partition:
    shards = clients * int(per_client)
    if per_client != int(per_client) or shards > len(labels):
        most = len(labels) // clients
        raise SpecError(f"shards takes a whole number, at most {most} for {clients} clients; got {per_client:g}")
    generator = stream.generator()
    shuffled = generator.permutation(len(labels))  # random order among equal labels
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], shards)
    dealt = [pieces[i] for i in generator.permutation(shards)]
    sizes = np.array([len(piece) for piece in dealt]).reshape(clients, -1).sum(axis=1)
    return Partition.of_sizes(np.concatenate(dealt), sizes)


def _by_weight(samples: int, weights: NDArray[np.float64], generator: np.random.Generator) -> Partition:
    """Give every client one sample, and each remaining sample to a client drawn by weight."""
    clients = len(weights)
    sizes = 1 + generator.multinomial(samples - clients, weights / weights.sum())
    return Partition.of_sizes(generator.permutation(samples), sizes)


def _gamma_dirichlet(generator: np.random.Generator, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draw from a Dirichlet distribution, also for tiny α, where all gammas may underflow to 0."""
    draw = generator.dirichlet(alpha)
    if not np.isfinite(draw).all() or draw.sum() <= 0:
        draw = np.zeros(len(alpha))
        draw[generator.choice(len(alpha), p=alpha / alpha.sum())] = 1.0  # the limit of α → 0
    return draw


def _equal_sizes(samples: int, clients: int) -> Indices:
    return np.full(clients, samples // clients) + (np.arange(clients) < samples % clients)


_SPLITS: dict[str, Callable[[Labels, int, float, Stream], Partition]] = {
    "dirichlet": _dirichlet_labels,
    "dirichlet-sizes": _dirichlet_sizes,
    "power": _power_sizes,
    "shards": _shards,
}
_MOST_LABELS = 12
"""The most labels with separate colours."""


def partition_figure(
    partition: Partition, labels: Labels, classes: Sequence[str] = (), title: str = "", max_clients: int = 40
) -> Figure:
    """Draw the shares of labels for some clients, from the largest to the smallest, and the sizes of all clients.

    labels        the label of each sample
    classes       the names of the labels
    max_clients   the most clients in the picture
    """
    if max_clients < 1:
        raise ConfigError(f"max_clients must be at least one client; got {max_clients}")
    order = np.argsort(-partition.sizes, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, min(max_clients, len(order))).astype(np.int64))]
    panels = (_labels_panel(partition, labels, chosen, classes), _sizes_panel(partition.sizes))
    styles = (*panel_styles(panels[:1]), Style("", BLUE))
    return drawing.printed.draw(
        panels,
        title or f"{counted(partition.clients, 'client')}, {counted(len(partition.order), 'sample')}",
        styles=styles,
    )


def _labels_panel(partition: Partition, labels: Labels, chosen: Indices, classes: Sequence[str]) -> Panel:
    """Return a stacked bar of label shares for each chosen client."""
    values, totals = np.unique(labels, return_counts=True)
    # With too many labels, the most frequent ones get separate colours and the rest share one.
    named = np.sort(values[np.argsort(-totals, kind="stable")[: _MOST_LABELS if len(values) <= _MOST_LABELS else 11]])
    rest, at, bars = np.ones(len(chosen)), np.arange(len(chosen), dtype=np.float64), []
    for number, value in enumerate(named):
        counts = np.array([np.sum(labels[partition.rows(int(client))] == value) for client in chosen])
        name = classes[int(value)] if len(classes) > int(value) else f"label {value}"
        bars.append(Bars(name, at, counts / partition.sizes[chosen], opacity=0.45 if number >= len(PALETTE) else 1.0))
        rest -= bars[-1].length
    if len(named) < len(values):
        bars.append(Bars("others", at, rest, opacity=0.45))
    x = Axis(f"{len(chosen)} of {partition.clients:,} clients, largest first", unit="integer")
    y = Axis("share of the client's samples", limits=(0.0, 1.0))
    return Panel("labels", "labels", x, y, bars=tuple(bars), arrangement="stacked")


def _sizes_panel(sizes: Indices) -> Panel:
    """Return the number of clients with at least a number of samples."""
    ordered = np.sort(sizes)[::-1].astype(np.float64)
    counts = np.arange(1.0, len(ordered) + 1)
    x = Axis("samples", log=bool(ordered[0] > 20 * max(1, ordered[-1])))
    note = f"Samples of a client: median {np.median(sizes):g}, mean {sizes.mean():.4g}, largest {sizes.max():,}."
    series = (Series("", ordered, counts, kind="steps"),)
    return Panel("sizes", "sizes", x, Axis("clients with at least that many"), series, note)
