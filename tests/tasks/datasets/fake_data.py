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


CELEBA_PEOPLE = [6, 4, 5, 7, 5, 8, 5, 5, 6, 5, 9]
"""How many images each person has; the second too few."""


def write_celeba(folder, suffix="png", size=(40, 48)):
    """People 11, 22, …; image i is grey, lighter the larger i; every second person smiles in every second image."""
    from PIL import Image

    target = folder / "celeba"
    (target / "img_align_celeba").mkdir(parents=True)
    people, attributes, number = [], [], 0
    for person, images in enumerate(CELEBA_PEOPLE, 1):
        for image in range(images):
            number += 1
            colour = (2 * number, 200 if image % 2 else 0, 100)
            Image.new("RGB", size, colour).save(target / f"img_align_celeba/{number:06d}.{suffix}")
            people.append(f"{number:06d}.jpg {person * 11}\n")
            attributes.append(f"{number:06d}.jpg {1 if image % 2 else -1:2d} -1\n")
    # One whose image is not there.
    people.append("999999.jpg 11\n")
    attributes.append("999999.jpg  1  1\n")
    (target / "identity_CelebA.txt").write_text("".join(people))
    (target / "list_attr_celeba.txt").write_text(f"{len(people)}\nSmiling Young \n" + "".join(attributes))


def write_leaf(folder, users):
    """A LEAF file of `users`: name to (x, y)."""
    import json

    folder.mkdir(parents=True)
    content = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    (folder / "all_data_0.json").write_text(json.dumps(content))


SHAKESPEARE = "\n".join(
    [
        "The first line is skipped.",
        "by William Shakespeare",
        "  NOBODY. This lies before the second mark.",
        "",
        "THE PLAY OF TESTS",
        "",
        "by William Shakespeare",
        "",
        "  First Lord. " + "Good morrow to the court of tests, and welcome. " * 2,
        "    The assertions hold.",
        "     Deeper   still they hold,",
        "  FIRST LORD. And hold again, through every run of ours.",
        "A stage direction that nobody says",
        "  FOOL. One line.",
        "    Two lines.",
        "  QUEEN. " + "A kingdom for a fixture that is small and plain! " * 3,
        "    What says the clock?",
        "    It says no more.",
        "",
        "",
        "THE COMEDY OF ERRORS",
        "",
        "",
        "by William Shakespeare",
        "",
        "ACT I. SCENE 1",
        "DUKE. " + "Proceed, Solinus, to procure my fall, and by the doom end woes. " * 2,
        "without the indentation",
        "more of it",
        "<a note that ends the speech",
        "not said by anyone",
        "MERCHANT. " + "I could not speak a line of shorter length than eighty characters. " * 2,
        "and on",
        "and on",
    ]
)
"""A text with Gutenberg's layout: four users, of whom the Fool says too little."""


def write_shakespeare(folder):
    target = folder / "shakespeare"
    target.mkdir(parents=True)
    (target / "pg100.txt").write_bytes(b"\xef\xbb\xbf" + SHAKESPEARE.replace("\n", "\r\n").encode())
