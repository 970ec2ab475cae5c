"""Which pairs of quantizers are run on mushrooms, in families."""

from __future__ import annotations

from qafel.experiments.plan import Change, Planned, Scale, mushrooms

REFERENCE = "none"
FAMILIES: dict[str, dict[str, tuple[str, str]]] = {
    "none": {"none": ("none", "none")},
    "qsgd": {
        "qsgd:8": ("qsgd:8", "qsgd:8"),
        "qsgd:6": ("qsgd:6", "qsgd:6"),
        "qsgd:4": ("qsgd:4", "qsgd:4"),
        "qsgd:4+zstd": ("qsgd:4+zstd", "qsgd:4+zstd"),
        "qsgd:3 / scaled": ("qsgd:3", "scaled:qsgd:3"),
        "qsgd:2 / scaled": ("qsgd:2", "scaled:qsgd:2"),
    },
    "dithered": {
        "dithered:6": ("dithered:6", "dithered:6"),
        "dithered:4": ("dithered:4", "dithered:4"),
        "dithered:3": ("dithered:3", "dithered:3"),
    },
    "rotated": {
        "rotated:4": ("rotated:4", "rotated:4"),
        "rotated:3": ("rotated:3", "rotated:3"),
        "rotated:2 / scaled": ("rotated:2", "scaled:rotated:2"),
    },
    "sparse": {
        "qsgd:4 / top_k:0.1": ("qsgd:4", "top_k:0.1"),
        "qsgd:4 / top_k:0.01": ("qsgd:4", "top_k:0.01"),
        "rand_k:0.25 / top_k:0.25": ("rand_k:0.25", "top_k:0.25"),
    },
    "sign": {"qsgd:4 / sign": ("qsgd:4", "sign"), "qsgd:2 / sign": ("qsgd:2", "sign")},
}
"""Client and server quantizer by label, in families; one name for both where they are the same.

Without `affine`: it leaves tensors of one dimension as they are, and this model is one.
"""
PAIRS = {label: pair for family in FAMILIES.values() for label, pair in family.items()}
ON_THE_WAY = {
    "none": "none", "qsgd": "qsgd:4", "dithered": "dithered:4", "rotated": "rotated:3",
    "sparse": "qsgd:4 / top_k:0.01", "sign": "qsgd:4 / sign",
}  # fmt: skip
"""Of every family the pair whose curve is shown."""


def plan(scale: Scale) -> list[Planned]:
    return mushrooms(
        scale,
        {
            label: (
                "mushrooms-qafel-4bit",
                ()
                if (client, server) == ("qsgd:4", "qsgd:4")
                else (
                    Change(
                        _tag(client, server),
                        (f'algorithm.client_quantizer="{client}"', f'algorithm.server_quantizer="{server}"'),
                    ),
                ),
            )
            for label, (client, server) in PAIRS.items()
        },
    )


def _tag(client: str, server: str) -> str:
    text = client if client == server else f"{client}-{server}"
    return "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in text)
