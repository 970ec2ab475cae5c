"""The text is cut into users as LEAF does it; LEAF's own files give the same kind of samples."""

import os
from pathlib import Path

import numpy as np
import pytest

from qafel.errors import DataError
from qafel.tasks.datasets.samples import read_leaf
from qafel.tasks.datasets.shakespeare import SAMPLES, USERS, VOCABULARY, encode, load_shakespeare, parse_shakespeare
from tests.tasks.datasets.fake_data import SHAKESPEARE, write_leaf, write_shakespeare


def decode(codes):
    return "".join(VOCABULARY[code] for code in codes)


def test_a_user_is_a_character_of_a_play_with_three_lines():
    assert list(parse_shakespeare(SHAKESPEARE)) == [
        "THE_PLAY_OF_TESTS_FIRST_LORD",
        "THE_PLAY_OF_TESTS_QUEEN",
        "THE_COMEDY_OF_ERRORS_DUKE",
        "THE_COMEDY_OF_ERRORS_MERCHANT",
    ]


def test_a_users_text_is_its_lines_joined_by_single_spaces():
    users = parse_shakespeare(SHAKESPEARE)
    lord = users["THE_PLAY_OF_TESTS_FIRST_LORD"]
    assert lord.endswith(
        "welcome. The assertions hold. Deeper still they hold, And hold again, through every run of ours. "
    )
    assert "  " not in lord


def test_the_comedy_of_errors_is_read_without_indentation():
    duke = parse_shakespeare(SHAKESPEARE)["THE_COMEDY_OF_ERRORS_DUKE"]
    assert duke.endswith("without the indentation more of it ")


def test_windows_move_by_one_character_and_the_target_is_the_next(tmp_path):
    write_shakespeare(tmp_path)
    data = load_shakespeare(tmp_path, verify=False)
    text = parse_shakespeare(SHAKESPEARE)["THE_PLAY_OF_TESTS_FIRST_LORD"]
    windows, targets = data.train.batch(np.array([0, 3]))
    assert decode(windows[0]) == text[:80]
    assert decode(windows[1]) == text[3:83]
    assert decode(targets) == text[80] + text[83]
    np.testing.assert_array_equal(data.train.labels[[0, 3]], targets)


def test_no_test_window_shares_a_character_with_a_training_window(tmp_path):
    write_shakespeare(tmp_path)
    data = load_shakespeare(tmp_path, verify=False, train_fraction=0.2)
    trained, tested = ((part.starts[:, None] + np.arange(80)).ravel() for part in (data.train, data.test))
    assert len(tested) > 0
    assert not set(trained) & set(tested)


def test_training_and_test_windows_are_all_but_the_gap(tmp_path):
    write_shakespeare(tmp_path)
    lengths = np.array([len(text) for text in parse_shakespeare(SHAKESPEARE).values()])
    data = load_shakespeare(tmp_path, verify=False, train_fraction=0.2)
    training = (0.2 * (lengths - 80)).astype(int)
    assert np.bincount(data.users).tolist() == training.tolist()
    assert len(data.test) == np.maximum(0, lengths - 80 - training - 79).sum()


def test_leafs_files_give_the_same_samples(tmp_path):
    text = parse_shakespeare(SHAKESPEARE)["THE_PLAY_OF_TESTS_QUEEN"]
    samples = ([text[i : i + 80] for i in range(5)], [text[i + 80] for i in range(5)])
    write_leaf(tmp_path / "shakespeare/data/train", {"A": samples, "B": samples})
    write_leaf(tmp_path / "shakespeare/data/test", {"A": samples})
    data = load_shakespeare(tmp_path)
    assert data.users.tolist() == [0] * 5 + [1] * 5
    windows, targets = data.train.batch(np.array([2]))
    assert decode(windows[0]) == text[2:82]
    assert decode(targets) == text[82]


def test_the_vocabulary_is_leafs():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert encode("\n z}é€").tolist() == [0, 1, 78, 79, 0, 0]


def test_another_text_is_refused(tmp_path):
    with pytest.raises(DataError, match="pg100.txt is missing"):
        load_shakespeare(tmp_path)
    write_shakespeare(tmp_path)
    with pytest.raises(DataError, match="4 users"):
        load_shakespeare(tmp_path)
    (tmp_path / "shakespeare/pg100.txt").write_text("Nothing of the kind")
    with pytest.raises(DataError, match="expected Project Gutenberg's #100 of 1994"):
        load_shakespeare(tmp_path)
    (tmp_path / "shakespeare/pg100.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="damaged"):
        load_shakespeare(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not a LEAF file"),
        ("[]", 'expected "users"'),
        ('{"users": ["a"], "user_data": {}}', 'expected "users"'),
        ('{"users": ["a"], "user_data": {"a": {"x": [1], "y": []}}}', "user 'a'"),
    ],
)
def test_a_damaged_leaf_file_is_named(tmp_path, content, words):
    (tmp_path / "f.json").write_text(content)
    with pytest.raises(DataError, match=words):
        read_leaf([tmp_path / "f.json"], "Shakespeare")


def test_leafs_files_of_another_length_are_refused(tmp_path):
    for part in ("train", "test"):
        write_leaf(tmp_path / "shakespeare/data" / part, {"A": (["short"], ["x"])})
    with pytest.raises(DataError, match="x of 80 characters"):
        load_shakespeare(tmp_path)
    with pytest.raises(DataError, match="LEAF"):
        load_shakespeare(tmp_path / "elsewhere", source="leaf")


@pytest.mark.skipif("QAFEL_DATA" not in os.environ, reason="QAFEL_DATA, the folder of real datasets, is not set")
def test_the_real_text_has_leafs_counts():
    path = Path(os.environ["QAFEL_DATA"]) / "shakespeare/pg100.txt"
    if not path.is_file():
        pytest.skip("there is no Shakespeare under QAFEL_DATA")
    users = parse_shakespeare(path.read_text(encoding="utf-8-sig"))
    windows = [len(text) - 80 for text in users.values() if len(text) > 80]
    assert (len(windows), sum(windows)) == (USERS, SAMPLES) == (1129, 4_226_158)
    assert set("".join(users.values())) <= set(VOCABULARY)
