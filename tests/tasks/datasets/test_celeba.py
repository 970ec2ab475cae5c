"""CelebA is read from its official layout or LEAF's, by person; images of any size become 32×32."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from qafel.errors import ConfigError, DataError
from qafel.tasks.datasets.celeba import load_celeba
from tests.tasks.datasets.fake_data import CELEBA_PEOPLE, write_celeba, write_leaf

KEPT = [count for count in CELEBA_PEOPLE if count >= 5]


@pytest.fixture
def folder(tmp_path):
    write_celeba(tmp_path)
    return tmp_path


def test_people_with_five_images_that_are_there_count_and_a_tenth_is_held_out(folder):
    data = load_celeba(folder)
    assert len(data.train) + len(data.test) == sum(KEPT)
    assert len(np.unique(data.users)) == int(0.9 * len(KEPT)) == 9
    assert len(data.test) in KEPT


def test_the_seed_decides_who_is_held_out(folder):
    first, same = load_celeba(folder, seed=1), load_celeba(folder, seed=1)
    np.testing.assert_array_equal(first.test.rows, same.test.rows)
    assert len({load_celeba(folder, seed=seed).test.rows[0] for seed in range(10)}) > 3


def test_no_person_is_on_both_sides(folder):
    data = load_celeba(folder, held_out=0.5)
    everyone = np.repeat(np.arange(len(KEPT)), KEPT)
    assert not set(everyone[data.train.rows]) & set(everyone[data.test.rows])
    np.testing.assert_array_equal(np.unique(everyone[data.train.rows], return_inverse=True)[1], data.users)


def test_labels_are_those_of_the_attribute(folder):
    data = load_celeba(folder)
    images, labels = data.train.batch(np.arange(len(data.train)))
    np.testing.assert_array_equal(images[:, 1, 16, 16] > 100, labels == 1)
    assert load_celeba(folder, attribute="Young").train.labels.sum() == 0


@pytest.mark.parametrize(("suffix", "size"), [("jpg", (178, 218)), ("png", (32, 32)), ("png", (20, 60))])
def test_images_of_any_size_and_format_become_32_by_32(tmp_path, suffix, size):
    write_celeba(tmp_path, suffix, size)
    data = load_celeba(tmp_path)
    images, _ = data.train.batch(np.arange(3))
    assert images.shape == (3, 3, 32, 32)
    np.testing.assert_allclose(images[:, 2], 100, atol=3)


def test_an_image_is_resized_by_its_shorter_side_and_cropped_in_the_middle(folder):
    from PIL import Image

    picture = np.zeros((128, 64, 3), np.uint8)
    picture[32:96] = 200  # the middle half, all that the crop keeps
    Image.fromarray(picture).save(folder / "celeba/img_align_celeba/000001.png")
    data = load_celeba(folder)
    everything = np.concatenate(
        [data.train.batch(np.arange(len(data.train)))[0], data.test.batch(np.arange(len(data.test)))[0]]
    )
    assert any((image[:, 2:-2] > 195).all() for image in everything)


def test_leafs_files_are_read_with_the_same_images(folder):
    write_leaf(
        folder / "celeba/data/train", {"11": (["000001.jpg", "000002.jpg"], [0, 1]), "33": (["000011.jpg"], [0])}
    )
    write_leaf(folder / "celeba/data/test", {"44": (["000020.jpg"], [1])})
    data = load_celeba(folder, source="leaf")
    assert data.users.tolist() == [0, 0, 1]
    images, labels = data.train.batch(np.arange(3))
    assert images[:, 0, 0, 0].tolist() == [2, 4, 22]
    assert labels.tolist() == [0, 1, 0]
    (folder / "celeba/identity_CelebA.txt").unlink()
    assert len(load_celeba(folder).train) == 3, "LEAF's files are found where the official ones are not"


def test_leafs_files_that_name_other_images_are_refused(folder):
    for part in ("train", "test"):
        write_leaf(folder / "celeba/data" / part, {"11": (["555555.jpg"], [0])})
    with pytest.raises(DataError, match="1 of 1 images"):
        load_celeba(folder, source="leaf")


@pytest.mark.parametrize("name", ["identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba"])
def test_what_is_missing_is_named(folder, name):
    (folder / "celeba" / name).rename(folder / "elsewhere")
    with pytest.raises(DataError, match=re.escape(f"celeba/{name} is missing")):
        load_celeba(folder)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("identity_CelebA.txt", "000001.jpg\n", "identity_CelebA.txt, line 1: expected an image and a person"),
        ("identity_CelebA.txt", "\xff", "not plain text"),
        ("identity_CelebA.txt", "000001.jpg 1\n", "5 images"),
        ("list_attr_celeba.txt", "1\nSmiling Young\n000001.jpg 1\n", "line 3: expected an image and 2 values"),
        ("list_attr_celeba.txt", "1\nSmiling Young\n000001.jpg 1 1\n", "000002"),
        ("img_align_celeba/000003.png", "nonsense", "000003.png is damaged"),
    ],
)
def test_what_is_damaged_is_named(folder, name, content, words):
    (folder / "celeba" / name).write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=words):
        load_celeba(folder)


def test_an_unknown_attribute_or_share_is_refused(folder):
    with pytest.raises(ConfigError, match="Frowning"):
        load_celeba(folder, attribute="Frowning")
    with pytest.raises(ConfigError, match="between 0 and 1"):
        load_celeba(folder, held_out=1.0)


@pytest.mark.skipif("QAFEL_DATA" not in os.environ, reason="QAFEL_DATA, the folder of real datasets, is not set")
@pytest.mark.slow
def test_the_real_identities_have_the_known_counts():
    folder = Path(os.environ["QAFEL_DATA"])
    if not (folder / "celeba/identity_CelebA.txt").is_file():
        pytest.skip("there is no CelebA under QAFEL_DATA")
    everyone = [line.split()[1] for line in (folder / "celeba/identity_CelebA.txt").read_text().splitlines()]
    counts = np.unique(everyone, return_counts=True)[1]
    assert len(everyone) == 202_599
    assert (counts >= 5).sum() == 9343, "LEAF's number of users"
    data = load_celeba(folder)
    assert len(np.unique(data.users)) >= 0.89 * 895
    assert np.mean(data.train.labels) == pytest.approx(0.52, abs=0.02)
