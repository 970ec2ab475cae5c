"""CelebA: predict whether a person smiles. A client is a person.

    <data>/celeba/img_align_celeba/        000001.jpg …, or png; a part of the images suffices
    <data>/celeba/list_attr_celeba.txt     40 attributes of each image, −1 or 1
    <data>/celeba/identity_CelebA.txt      the person in each image

Alternatively, LEAF's files <data>/celeba/data/train/*.json and …/test/, with the same images. Clients are the people
with at least 5 available images. A tenth of them is held out for testing. Liu, Luo, Wang and Tang, Deep Learning Face
Attributes in the Wild, 2015; for non-commercial research.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qafel.errors import ConfigError, DataError
from qafel.rng import Stream
from qafel.tasks.datasets.files import Arrays, cached, require_file
from qafel.tasks.datasets.samples import ArraySamples, Batch, FederatedData, Source, Subset, leaf_files, load_leaf

SIDE = 32
LEAST_IMAGES = 5
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_SUFFIXES = (".jpg", ".jpeg", ".png")
_BY_HAND = (
    ". CelebA may not be downloaded by programs: download img_align_celeba, list_attr_celeba.txt and "
    "identity_CelebA.txt from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
)


def find_celeba(data: Path, fetch: bool = False, source: Source = "auto") -> list[Path]:
    """Return the paths of attributes, identities and images under `data`, or LEAF's files and the images.

    `source` chooses the files; "auto" takes LEAF's if the identities are missing. `fetch` has no effect: CelebA may not
    be downloaded by programs. Raises `DataError` if a file is missing.
    """
    folder = data / "celeba"
    pictures = folder / "img_align_celeba"
    official = (folder / "identity_CelebA.txt").is_file() or not (folder / "data/train").is_dir()
    if source == "leaf" or (source == "auto" and not official):
        found, raw = leaf_files(folder / "data", "CelebA"), folder / "data/raw/img_align_celeba"
        found.append(raw if raw.is_dir() and not pictures.is_dir() else pictures)
    else:
        found = [folder / "list_attr_celeba.txt", folder / "identity_CelebA.txt", pictures]
    return [require_file(path, "CelebA", _BY_HAND) for path in found]


def load_celeba(
    data: Path, source: Source = "auto", attribute: str = "Smiling", held_out: float = 0.1, seed: int = 0
) -> FederatedData:
    """Return images of 3×32×32 bytes by person. The label is 1 if the image has the attribute.

    data        the folder of datasets
    source      the files to read, as in `find_celeba`
    attribute   the attribute to predict, for the official files
    held_out    the share of people for testing, for the official files
    seed        the seed that chooses these people
    """
    found = find_celeba(data, source=source)
    if found[0].suffix == ".json":
        return load_leaf(data, "CelebA", found, partial(_encode_leaf, found[-1]))
    if not 0 < held_out < 1:
        raise ConfigError(f"held_out, the share of people for testing, must be between 0 and 1; got {held_out}")
    names = _attribute_names(found[0])
    if attribute not in names:
        raise ConfigError(f"unknown CelebA attribute {attribute!r}; choose from {', '.join(names)}")
    arrays = cached(data, "celeba", found, partial(_read_official, found, len(names)))
    samples = ArraySamples(arrays["images"], arrays["attributes"][:, names.index(attribute)].astype(np.uint8))
    return _hold_out(samples, arrays["users"], held_out, seed)


def find_images(folder: Path) -> dict[str, Path]:
    """Return the images of a folder by name without suffix."""
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() in _SUFFIXES}


def read_images(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Return all images as an array (number, 3, 32, 32)."""
    images = np.empty((len(paths), 3, SIDE, SIDE), np.uint8)
    for row, path in zip(images, paths, strict=True):
        row[...] = _read(path).transpose(2, 0, 1)
    return images


def _read(path: Path) -> NDArray[np.uint8]:
    """Resize the shorter side to 32 and crop the middle."""
    from PIL import Image  # noqa: PLC0415 — only building the cache needs it

    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"CelebA: {path} is damaged ({error}): delete it or replace it") from None
    scale = SIDE / min(image.size)
    width, height = (max(SIDE, round(side * scale)) for side in image.size)
    if (width, height) != image.size:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    return np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), np.uint8)


def _read_official(found: Sequence[Path], count: int) -> Arrays:
    """Return the images of people with enough images, with all `count` attributes and the person of each."""
    labels, people, pictures = found
    images = find_images(pictures)
    chosen, users = _people_with_enough(people, images)
    attributes = _read_attributes(labels, count)
    if missing := [name for name in chosen if name not in attributes]:
        raise DataError(f"CelebA: {labels} is damaged: the row of image {missing[0]} is missing")
    known = np.array([attributes[name] for name in chosen], np.uint8)
    return {"images": read_images([images[name] for name in chosen]), "attributes": known, "users": users}


def _hold_out(samples: ArraySamples, users: NDArray[Any], share: float, seed: int) -> FederatedData:
    """Hold out a share of the users for testing, and renumber the others."""
    count = int(users.max()) + 1
    order = Stream.named(seed, "held-out users").generator().permutation(count)
    training = np.zeros(count, np.bool_)
    training[order[: int((1 - share) * count)]] = True
    train, test = np.flatnonzero(training[users]), np.flatnonzero(~training[users])
    numbers = np.cumsum(training) - 1
    return FederatedData(Subset(samples, train), Subset(samples, test), numbers[users[train]].astype(np.int32))


def _people_with_enough(path: Path, images: dict[str, Path]) -> tuple[list[str], NDArray[np.int32]]:
    """Return the images of people with at least 5, person by person, and the person of each image."""
    by_person: dict[int, list[str]] = {}
    for number, fields in enumerate(_rows(path), 1):
        if len(fields) != 2 or not fields[1].isdigit():
            raise DataError(f"CelebA: {path}, line {number}: expected an image and a person's number")
        if (name := Path(fields[0]).stem) in images:
            by_person.setdefault(int(fields[1]), []).append(name)
    enough = [names for _, names in sorted(by_person.items()) if len(names) >= LEAST_IMAGES]
    if not enough:
        raise DataError(f"CelebA: expected people with {LEAST_IMAGES} images in {path.parent / 'img_align_celeba'}")
    users = np.repeat(np.arange(len(enough), dtype=np.int32), [len(names) for names in enough])
    return [name for names in enough for name in names], users


def _attribute_names(path: Path) -> list[str]:
    with path.open(encoding="ascii", errors="replace") as file:
        file.readline()
        return file.readline().split()


def _read_attributes(path: Path, count: int) -> dict[str, list[bool]]:
    found = {}
    for number, (name, *values) in enumerate(_rows(path, skip=2), 3):
        if len(values) != count or not set(values) <= {"1", "-1"}:
            raise DataError(f"CelebA: {path}, line {number}: expected an image and {count} values −1 or 1")
        found[Path(name).stem] = [value == "1" for value in values]
    return found


def _rows(path: Path, skip: int = 0) -> list[list[str]]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()[skip:]
    except UnicodeDecodeError:
        raise DataError(f"CelebA: {path} is damaged: it is not plain text") from None
    return [line.split() for line in lines if line.strip()]


def _encode_leaf(pictures: Path, xs: list[Any], ys: list[Any], folder: Path) -> Batch:
    images = find_images(pictures)
    missing = [x for x in xs if Path(str(x)).stem not in images]
    if missing or not set(ys) <= {0, 1}:
        raise DataError(
            f"CelebA: the LEAF files in {folder} must name images in {pictures} and have labels 0 or 1; "
            f"{len(missing)} of {len(xs)} images are missing"
        )
    return read_images([images[Path(x).stem] for x in xs]), np.array(ys, np.uint8)
