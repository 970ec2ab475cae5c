"""The published configurations, composed from recipes of `qafel` and settings.

A name such as `cifar10-fedbuff-direct-c500-qsgd` states the family, the method, the concurrency and the quantizer.
Names of recipes, such as `mushrooms-mcm`, are configurations as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

from qafel.config import Config, load_recipe, recipes

RATES = {10: 12.5, 100: 125.0, 500: 627.0, 1000: 1253.0}
"""The arrival rate of each concurrency. The published rates are rounded: 500/√(2/π) is 626.7."""

FAMILIES = {
    "cifar10": ("cifar10", ()),
    "celeba": ("celeba", ()),
    "celeba-part": ("celeba", ("evaluation.target=0.876",)),
    "shakespeare": ("shakespeare", ()),
    "shakespeare-small": (
        "shakespeare",
        (
            "task.clients=200",
            "task.max_samples=128",
            "task.test_samples=2000",
            "evaluation.every=100",
            "evaluation.target=0.352",
            "stop.uploads=3000",
        ),
    ),
}
"""The task of each family, and its settings.

celeba-part: the target of a run on a part of CelebA. shakespeare-small: 200 of the 1,129 characters with at most 128
samples each. `python -m reproduction targets` made both targets.
"""

_QUANTIZERS = {
    "affine": ("affine:4", "affine:4"),
    "qsgd": ("qsgd:4", "qsgd:4,bucket=128"),
    "trellis": ("trellis:0.75", "trellis:1"),
    "fewest": ("trellis:0.25", "trellis:{},scale=least"),
}
"""Client and server quantizer. affine is the published one. A bucket of 128 gives δ > 0 in the worst case."""
_FEWEST_BITS = {"100": "0.35", "500": "0.5", "1000": "0.75"}
"""The server's bits in "fewest" by concurrency, as `qafel plan` recommended them."""

_STEPS_OF_FEDBUFF = ("algorithm.client_lr=1.17", "algorithm.server_lr=0.373352", "algorithm.server_momentum=0.0")
"""For FedAsync on the small Shakespeare. With the published step sizes its loss is 355 after 50 updates."""

_METHODS = ("qafel", "fedbuff", "fedasync", "fedbuff-direct", "fedasync-direct")
_QUANTIZED = ("qafel", "fedbuff-direct", "fedasync-direct")
_NAME = re.compile(rf"({'|'.join(FAMILIES)})-({'|'.join(_METHODS)})-c(\d+)(?:-(qsgd|trellis|fewest))?")


def _names() -> list[str]:
    places = {"celeba-part": (100,), "shakespeare-small": (10,)}
    names = []
    for family in FAMILIES:
        for method, place in product(_METHODS, places.get(family, (100, 500, 1000))):
            names.append(f"{family}-{method}-c{place}")
            if method in _QUANTIZED and (family not in places or (family, method) == ("shakespeare-small", "qafel")):
                names.append(f"{names[-1]}-qsgd")
            if (family, method) == ("cifar10", "qafel"):
                names += [f"cifar10-qafel-c{place}-{quantizer}" for quantizer in ("trellis", "fewest")]
    return names


PUBLISHED = (*_names(), *(name for name in recipes() if name.startswith("mushrooms-")))
"""The names of all configurations."""


def load_published(name: str, settings: Iterable[str] = (), seed: int | None = None) -> Config:
    """The configuration of this name, or a recipe of `qafel`; with further `settings` such as "stop.uploads=9"."""
    if (found := _NAME.fullmatch(name)) is None:
        return load_recipe(name, settings, seed)
    family, method, place, quantizer = found.groups()
    task, of_family = FAMILIES[family]
    composed = [f'name="{name}"', f"timing.rate={RATES[int(place)]}", *of_family]
    if method in _QUANTIZED:
        client, server = _QUANTIZERS[quantizer or "affine"]
        composed += [
            f'algorithm.client_quantizer="{client}"',
            f'algorithm.server_quantizer="{server.format(_FEWEST_BITS.get(place))}"',
        ]
    if method.endswith("-direct"):
        composed += [f'algorithm.method="{method}"', 'algorithm.catch_up="per-start"']
    if family == "shakespeare-small" and method.startswith("fedasync"):
        composed += _STEPS_OF_FEDBUFF
    return load_recipe(f"{task}-{method.removesuffix('-direct')}", [*composed, *settings], seed)
