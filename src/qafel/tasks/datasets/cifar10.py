"""CIFAR-10 from its official files: 50,000 training and 10,000 test images of 3×32×32 bytes in 10 classes.

    <data>/cifar-10-batches-bin/    data_batch_1.bin … data_batch_5.bin, test_batch.bin
    <data>/cifar-10-batches-py/     data_batch_1 … data_batch_5, test_batch: pickled dictionaries

Either folder is enough. A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from qafel.errors import DataError
from qafel.tasks.datasets.files import DOWNLOADED, Archive, Arrays, cached, download, require_file, require_md5
from qafel.tasks.datasets.samples import Batch, FederatedData

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
"""Per channel, on a scale from 0 to 1, as in the published runs."""
BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PYTHON_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
BINARY_FOLDER, PYTHON_FOLDER = "cifar-10-batches-bin", "cifar-10-batches-py"
_PIXELS = 3 * 32 * 32
ARCHIVE = Archive(
    "CIFAR-10",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    {f"{BINARY_FOLDER}/{name}": f"{BINARY_FOLDER}/{name}" for name in BINARY_MD5},
)


def find_cifar10(data: Path, fetch: bool = False) -> list[Path]:
    """Return the official files under the folder `data`, the test batch last. Raises `DataError` if one is missing.

    `fetch` downloads them if both folders are missing.
    """
    binary, python = data / BINARY_FOLDER, data / PYTHON_FOLDER
    if fetch and not binary.exists() and not python.exists():
        download(ARCHIVE, data)
    chosen = [python / name for name in PYTHON_MD5] if python.is_dir() and not binary.is_dir() else []
    return [require_file(path, "CIFAR-10", DOWNLOADED) for path in chosen or [binary / name for name in BINARY_MD5]]


def load_cifar10(data: Path, verify: bool = True, fetch: bool = False) -> FederatedData:
    """Return the official training and test images from the folder `data`, memory-mapped. Labels are 0 … 9.

    verify   compare the MD5 sums of the files on the first call
    fetch    download missing files
    """
    paths = find_cifar10(data, fetch)
    read = _read_binary if paths[0].suffix == ".bin" else _read_python

    def build() -> Arrays:
        if verify:
            for path in paths:
                require_md5(path, "CIFAR-10", {**BINARY_MD5, **PYTHON_MD5}[path.name])
        batches = [read(path) for path in paths]
        images, labels = (np.concatenate(part) for part in zip(*batches[:-1], strict=True))
        return {"train": images, "train_labels": labels, "test": batches[-1][0], "test_labels": batches[-1][1]}

    return FederatedData.of_arrays(cached(data, "cifar10", paths, build, f"verify={verify}"))


def _read_binary(path: Path) -> Batch:
    """Read records of a label and 3,072 bytes: red, green, blue, row by row."""
    content = np.fromfile(path, np.uint8)
    if content.size == 0 or content.size % (1 + _PIXELS):
        raise DataError(f"CIFAR-10: {path} is damaged: its {content.size} bytes are not a multiple of {1 + _PIXELS}")
    rows = content.reshape(-1, 1 + _PIXELS)
    return _checked(path, rows[:, 1:], rows[:, 0])


def _read_python(path: Path) -> Batch:
    """Read a pickled dictionary with `data` and `labels`."""
    try:
        batch = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[b"labels"], np.int64)
        images = images.reshape(-1, _PIXELS)
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(f"CIFAR-10: {path} is damaged: {error}; delete it and download it again") from None
    return _checked(path, images, labels)


def _checked(path: Path, images: NDArray[np.uint8], labels: NDArray[Any]) -> Batch:
    if len(images) != len(labels) or not ((labels >= 0) & (labels < len(CLASSES))).all():
        raise DataError(f"CIFAR-10: {path} is damaged: expected a label from 0 to 9 for each of {len(images)} images")
    return images.reshape(-1, 3, 32, 32), labels.astype(np.uint8)


@final
class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickles of plain values and NumPy arrays. Refuses all other classes instead of running them."""

    def find_class(self, module: str, name: str) -> Any:
        # The official files of 2009 name NumPy's old core module.
        place = module.replace("numpy.core.", "numpy._core.")
        if (place, name) in {("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return super().find_class(place, name)
        if (module, name) == ("_codecs", "encode"):  # Python 3 encodes bytes for Python 2 this way
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed in a CIFAR-10 batch")
