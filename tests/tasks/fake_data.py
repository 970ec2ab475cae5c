"""Small made-up datasets in the official layouts."""

import pickle

import numpy as np

CIFAR_BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]


def cifar10_batches(images=20):
    """Batches whose label shows in the picture: something to learn."""
    generator = np.random.default_rng(0)
    for name in CIFAR_BATCHES:
        labels = generator.integers(0, 10, images).astype(np.uint8)
        pixels = generator.integers(0, 60, (images, 3072)).astype(np.uint8)
        for row, label in enumerate(labels.tolist()):
            pixels[row, 300 * label : 300 * (label + 1)] += 150
        yield name, labels, pixels


def write_cifar10_binary(folder, images=20):
    target = folder / "cifar-10-batches-bin"
    target.mkdir(parents=True)
    for name, labels, pixels in cifar10_batches(images):
        (target / f"{name}.bin").write_bytes(np.hstack([labels[:, None], pixels]).tobytes())


def write_cifar10_python(folder, images=20):
    target = folder / "cifar-10-batches-py"
    target.mkdir(parents=True)
    for name, labels, pixels in cifar10_batches(images):
        batch = {b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"fake", b"filenames": []}
        (target / name).write_bytes(pickle.dumps(batch, protocol=2))
