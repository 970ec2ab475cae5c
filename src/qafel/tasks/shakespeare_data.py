"""Shakespeare: the next character of a play, given 80. A client is a character of a play.

    <data>/shakespeare/pg100.txt                       Project Gutenberg's #100 of 1994, cut up as LEAF does; or
    <data>/shakespeare/data/raw_data/raw_data.txt      the same, where LEAF's scripts put it; or
    <data>/shakespeare/data/train/*.json, …/test/      LEAF's own files

From the text, each user's first nine tenths are for training, and the rest, less the 79 windows that overlap, for
testing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError
from qafel.tasks.cache import cached
from qafel.tasks.data_folder import cache_folder, require_file
from qafel.tasks.leaf_json import LeafPart, leaf_files, read_leaf
from qafel.tasks.samples import ArraySamples, FederatedData, TextWindows
from qafel.tasks.shakespeare_text import parse_shakespeare

Source: TypeAlias = Literal["auto", "official", "leaf"]
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters. The first, which no sample has, stands for any other."""

LENGTH = 80
USERS, SAMPLES = 1129, 4_226_158
"""What the official text gives."""


def load_shakespeare(
    data: Path, source: Source = "auto", train_fraction: float = 0.9, verify: bool = True
) -> FederatedData:
    """Windows of 80 characters and the next one, by user."""
    places = [data / "shakespeare" / place for place in ("pg100.txt", "data/raw_data/raw_data.txt")]
    texts = [place for place in places if place.is_file()]
    if source == "leaf" or (source == "auto" and not texts and (data / "shakespeare/data/train").is_dir()):
        return _load_leaf(data)
    return _load_text(data, (texts or [require_file(places[0], "Shakespeare")])[0], train_fraction, verify)


def encode(text: str) -> NDArray[np.uint8]:
    """The characters' numbers in the vocabulary."""
    table = np.zeros(128, np.uint8)
    table[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(len(VOCABULARY))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.where(points < 128, table[np.minimum(points, 127)], 0).astype(np.uint8)


def _load_text(data: Path, path: Path, train_fraction: float, verify: bool) -> FederatedData:
    def build() -> dict[str, NDArray[Any]]:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"Shakespeare: {path} is damaged: {error}") from None
        said = [words for words in parse_shakespeare(text).values() if len(words) > LENGTH]
        windows = sum(len(words) - LENGTH for words in said)
        if verify and (len(said), windows) != (USERS, SAMPLES):
            raise DataError(
                f"Shakespeare: {path} gives {len(said)} users and {windows} samples, expected {USERS} and {SAMPLES}: "
                "it is damaged, or not Project Gutenberg's #100 of 1994"
            )
        return {"text": encode("".join(said)), "lengths": np.array([len(words) for words in said])}

    arrays = cached(cache_folder(data), "shakespeare", [path], build, f"verify={verify}")
    lengths = arrays["lengths"]
    begins = np.cumsum(lengths) - lengths
    windows = lengths - LENGTH
    training = np.maximum(1, (train_fraction * windows).astype(np.int64))
    users = np.repeat(np.arange(len(lengths)), training)
    train = TextWindows(arrays["text"], _runs(begins, training), LENGTH)
    gap = training + LENGTH - 1
    test = TextWindows(arrays["text"], _runs(begins + gap, np.maximum(0, windows - gap)), LENGTH)
    return FederatedData(train, test, users)


def _runs(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """For each run, `begin`, `begin + 1`, … so many numbers, one run after the other."""
    firsts = np.cumsum(counts) - counts
    return (np.repeat(begins - firsts, counts) + np.arange(counts.sum())).astype(np.int32)


def _load_leaf(data: Path) -> FederatedData:
    folder = data / "shakespeare" / "data"
    train, test = (leaf_files(folder / part, "Shakespeare") for part in ("train", "test"))

    def build() -> dict[str, NDArray[Any]]:
        parts = {"train": read_leaf(train, "Shakespeare"), "test": read_leaf(test, "Shakespeare")}
        arrays: dict[str, NDArray[Any]] = {"users": np.array(parts["train"].users, np.int32)}
        for name, part in parts.items():
            arrays[name], arrays[f"{name}_labels"] = _encode_leaf(part, folder / name)
        return arrays

    arrays = cached(cache_folder(data), "shakespeare-leaf", [*train, *test], build)
    return FederatedData(
        ArraySamples(arrays["train"], arrays["train_labels"]),
        ArraySamples(arrays["test"], arrays["test_labels"]),
        arrays["users"],
    )


def _encode_leaf(part: LeafPart, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    texts = all(isinstance(x, str) and isinstance(y, str) for x, y in zip(part.x, part.y, strict=True))
    if not texts or any(len(x) != LENGTH for x in part.x) or any(len(y) != 1 for y in part.y):
        raise DataError(f"Shakespeare: the LEAF files in {folder} should have x of {LENGTH} characters and y of one")
    return encode("".join(part.x)).reshape(-1, LENGTH), encode("".join(part.y))
