"""Shakespeare: predict the next letter of a speech from 80. A client is a character of a play.

    <data>/shakespeare/pg100.txt                       Project Gutenberg's #100 of 1994, split as LEAF does; or
    <data>/shakespeare/data/raw_data/raw_data.txt      the same text at the path of LEAF's scripts; or
    <data>/shakespeare/data/train/*.json, …/test/      LEAF's files

A user is a character of a play. Its text is everything it says, with lines joined by spaces. The first nine tenths are
for training. The rest is for testing, without the 79 windows that overlap. The parser follows LEAF's rules exactly and
finds the same 1,129 users and 4,226,158 samples:

- A play begins at a line "by William Shakespeare", with its title 2 to 7 lines above. The text before the second such
  line (contents, sonnets) and the poems after the last play are skipped.
- "  NAME. words" begins a speech and four spaces continue it. The Comedy of Errors lacks the indentation.
- Names are compared in capitals. Characters with at most two lines and "plays" with one character are left out.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError
from qafel.tasks.datasets.files import DOWNLOADED, Archive, Arrays, cached, download, require_file
from qafel.tasks.datasets.samples import Batch, FederatedData, Source, TextWindows, leaf_files, load_leaf

_PLAY = "by William Shakespeare"
_LAST_LINE = 124_195  # end of the last play in the edition of 1994
_LEAST_LINES = 3
_UNINDENTED = "THE COMEDY OF ERRORS"
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters. The first one, absent from the samples, replaces all other characters."""
LENGTH = 80
USERS, SAMPLES = 1129, 4_226_158
"""The numbers for the official text."""
ARCHIVE = Archive(
    "Shakespeare",
    "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
    None,  # Project Gutenberg does not publish a checksum
    {"100.txt": "shakespeare/pg100.txt"},
)


def parse_shakespeare(text: str) -> dict[str, str]:
    """Return the text of each character of each play by user name, in order of appearance."""
    lines = text.split("\n")[1:]
    marks = [number for number, line in enumerate(lines) if _PLAY in line]
    if len(marks) < 2:
        raise DataError(f"Shakespeare: expected Project Gutenberg's #100 of 1994, with lines {_PLAY!r}")
    lines = lines[: _LAST_LINE + 1]
    marks = [mark for mark in marks[1:] if mark < len(lines)]
    users: dict[str, str] = {}
    for begin, end in pairwise([*marks, len(lines)]):
        above = (lines[begin - distance].strip() for distance in range(2, 8))
        title = next(filter(None, above), "")
        speeches = _speeches(lines[begin + 1 : end], unindented=title == _UNINDENTED)
        for name, said in speeches.items() if len(speeches) > 1 else ():
            if len(said) >= _LEAST_LINES:
                user = re.sub(r"\W+", "_", f"{title}_{name}".replace(" ", "_"))
                users[user] = users.get(user, "") + "".join(line + "\n" for line in said)
    return {user: re.sub(r"  +", " ", said.replace("\n", " ")) for user, said in users.items()}


def _speeches(lines: list[str], unindented: bool) -> dict[str, list[str]]:
    """Return the lines of each character from all `lines` of a play."""
    indent = "" if unindented else "  "
    speech = re.compile(indent + r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
    continuation = re.compile(2 * indent + r"(.*)")
    said: dict[str, list[str]] = {}
    speaker = None
    for line in lines:
        if match := speech.match(line):
            speaker = match[1].upper()
            if unindented and speaker.startswith("ACT "):
                speaker = None
            else:
                said.setdefault(speaker, []).append(match[2])
        elif speaker and (match := continuation.match(line)):
            if unindented and match[1].startswith("<"):
                speaker = None
            else:
                said[speaker].append(match[1])
    return said


def find_shakespeare(data: Path, fetch: bool = False, source: Source = "auto") -> list[Path]:
    """Return the text under the folder `data`, or LEAF's files. Raises `DataError` if a file is missing.

    `fetch` downloads the text if both are missing. `source` chooses between them; "auto" prefers the text.
    """
    folder = data / "shakespeare"
    places = [folder / "pg100.txt", folder / "data/raw_data/raw_data.txt"]
    leaf = (folder / "data/train").exists()
    if fetch and not leaf and not any(place.exists() for place in places):
        download(ARCHIVE, data, _check_text)
    texts = [place for place in places if place.is_file()]
    if source == "leaf" or (source == "auto" and leaf and not texts):
        return leaf_files(folder / "data", "Shakespeare")
    return [require_file((texts or places)[0], "Shakespeare", DOWNLOADED)]


def load_shakespeare(
    data: Path, source: Source = "auto", train_fraction: float = 0.9, verify: bool = True, fetch: bool = False
) -> FederatedData:
    """Return windows of 80 characters and the next one, by user.

    data             the folder of datasets
    source, fetch    as in `find_shakespeare`
    train_fraction   the share of each user's text for training, for the official text
    verify           compare the numbers of users and samples with LEAF's
    """
    found = find_shakespeare(data, fetch, source)
    if found[0].suffix == ".json":
        return load_leaf(data, "Shakespeare", found, _encode_leaf)
    return _load_text(data, found[0], train_fraction, verify)


def _check_text(path: Path) -> None:
    """Raise `DataError` unless the text parses: other editions do not."""
    parse_shakespeare(path.read_text(encoding="utf-8-sig", errors="replace"))


def encode(text: str) -> NDArray[np.uint8]:
    """Return the numbers of the characters in the vocabulary."""
    table = np.zeros(128, np.uint8)
    table[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(len(VOCABULARY))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.where(points < 128, table[np.minimum(points, 127)], 0).astype(np.uint8)


def _load_text(data: Path, path: Path, train_fraction: float, verify: bool) -> FederatedData:
    def build() -> Arrays:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"Shakespeare: {path} is damaged: {error}") from None
        said = [words for words in parse_shakespeare(text).values() if len(words) > LENGTH]
        windows = sum(len(words) - LENGTH for words in said)
        if verify and (len(said), windows) != (USERS, SAMPLES):
            raise DataError(
                f"Shakespeare: {path} has {len(said)} users and {windows} samples, expected {USERS} and {SAMPLES}: "
                "it is damaged or another edition than Project Gutenberg's #100 of 1994"
            )
        return {"text": encode("".join(said)), "lengths": np.array([len(words) for words in said])}

    arrays = cached(data, "shakespeare", [path], build, f"verify={verify}")
    lengths = arrays["lengths"]
    begins = np.cumsum(lengths) - lengths
    windows = lengths - LENGTH
    training = np.maximum(1, (train_fraction * windows).astype(np.int64))
    users = np.repeat(np.arange(len(lengths)), training)
    train = TextWindows(arrays["text"], _stretches(begins, training), LENGTH)
    gap = training + LENGTH - 1
    test = TextWindows(arrays["text"], _stretches(begins + gap, np.maximum(0, windows - gap)), LENGTH)
    return FederatedData(train, test, users)


def _stretches(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return `counts[i]` consecutive numbers from each `begins[i]`, concatenated."""
    firsts = np.cumsum(counts) - counts
    return (np.repeat(begins - firsts, counts) + np.arange(counts.sum())).astype(np.int32)


def _encode_leaf(xs: list[Any], ys: list[Any], folder: Path) -> Batch:
    texts = all(isinstance(text, str) for text in (*xs, *ys))
    if not texts or any(len(x) != LENGTH for x in xs) or any(len(y) != 1 for y in ys):
        raise DataError(f"Shakespeare: the LEAF files in {folder} must have x of {LENGTH} characters and y of one")
    return encode("".join(xs)).reshape(-1, LENGTH), encode("".join(ys))
