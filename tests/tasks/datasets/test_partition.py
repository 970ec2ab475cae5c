"""Every partition covers the samples once, depends on its stream alone, has its name's shape, and is drawn so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.drawing.printed import save_figure
from qafel.errors import ConfigError, SpecError
from qafel.rng import Stream
from qafel.tasks.datasets.partition import by_user, partition_figure, split

SPECS = ["iid", "dirichlet:0.1", "dirichlet:1e-6", "dirichlet:1000", "dirichlet-sizes:0.1", "power:0.1", "shards:2"]
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))


def kinds_per_client(partition):
    return np.mean([len(np.unique(LABELS[partition.rows(client)])) for client in range(partition.clients)])


@pytest.mark.parametrize("spec", SPECS)
@given(
    labels=st.lists(st.integers(0, 5), min_size=8, max_size=60),
    clients=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=40, deadline=None)
def test_every_sample_is_held_once_and_every_client_holds_some(spec, labels, clients, seed):
    partition = split(spec, np.array(labels), clients, Stream.named(seed, "partition"))
    assert partition.clients == clients
    assert partition.sizes.min() >= 1
    rows = np.concatenate([partition.rows(client) for client in range(clients)])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(labels)))


@pytest.mark.parametrize("spec", SPECS)
def test_equal_streams_give_equal_partitions_and_others_do_not(spec):
    first, same, other = (split(spec, LABELS, 50, Stream.named(seed, "partition")) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.order, same.order)
    np.testing.assert_array_equal(first.offsets, same.offsets)
    assert not np.array_equal(first.order, other.order)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.1", "shards:2"])
def test_label_partitions_have_equal_sizes(spec):
    assert set(split(spec, LABELS, 50, Stream.named(0, "partition")).sizes) == {100}


def test_dirichlet_goes_from_one_label_a_client_to_all():
    few, some, many = (
        kinds_per_client(split(f"dirichlet:{alpha}", LABELS, 50, Stream.named(0, "partition")))
        for alpha in (0.001, 1, 1000)
    )
    assert few < 2 < some < 9 < many


def test_a_client_with_two_shards_has_about_two_labels():
    partition = split("shards:2", LABELS, 50, Stream.named(0, "partition"))
    assert max(len(np.unique(LABELS[partition.rows(client)])) for client in range(50)) <= 4
    assert 1.5 < kinds_per_client(partition) < 2.5


def test_power_sizes_are_those_of_numpys_power_law():
    """Weights u^(1/a): the median client has next to nothing, and the mean size is the samples over the clients."""
    sizes = split("power:0.1", np.zeros(50_000), 5000, Stream.named(0, "partition")).sizes
    assert sizes.sum() == 50_000
    assert np.median(sizes) == 1
    # E[w] = a/(1 + a) = 1/11, so a client of weight 1 expects 1 + 45,000 · 11/5,000 = 100 samples.
    assert 95 < np.percentile(sizes, 99.5) < 120
    # P(w > 1/2) = 1 − 2^(−a): those expect more than 50.5 samples.
    assert np.mean(sizes > 50) == pytest.approx(1 - 0.5**0.1, abs=0.015)


def test_by_user_keeps_each_users_samples_in_order():
    partition = by_user(np.array([7, 3, 7, 3, 9]))
    assert [partition.rows(client).tolist() for client in range(3)] == [[1, 3], [0, 2], [4]]


def test_taking_clients_keeps_at_most_so_many_samples_of_each():
    partition = by_user(np.repeat(np.arange(5), [1, 10, 3, 20, 2]))
    taken = partition.take(np.array([3, 0]), 4, Stream.named(0, "samples"))
    assert taken.sizes.tolist() == [4, 1]
    assert set(taken.rows(0)) <= set(partition.rows(3))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("zipf:1", "unknown partition 'zipf:1'; choose from user, iid, dirichlet:α"),
        ("iid:3", "parameter"),
        ("dirichlet", "takes a positive number, as in dirichlet:0.1; got 'dirichlet'"),
        ("power:-1", "takes a positive number"),
        ("power:nan", "takes a positive number"),
        ("shards:x", "as in shards:2"),
        ("shards:1.5", "whole number, at most 100 for 50 clients; got 1.5"),
        ("shards:101", "at most 100"),
    ],
)
def test_a_wrong_spec_says_what_is_expected(spec, words):
    with pytest.raises(SpecError, match=words):
        split(spec, LABELS, 50, Stream.named(0, "partition"))


@pytest.mark.parametrize("clients", [0, 5001])
def test_impossible_numbers_of_clients_are_refused(clients):
    with pytest.raises(ConfigError, match="clients"):
        split("iid", LABELS, clients, Stream.named(0, "partition"))


SHOWN = np.random.default_rng(0).integers(0, 10, 2000)
CLASSES = [f"class {number}" for number in range(10)]


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.1", "power:0.1", "shards:2", "dirichlet-sizes:0.1"])
def test_the_shares_of_each_client_add_up_to_one(spec):
    partition = split(spec, SHOWN, 100, Stream.named(0, "partition"))
    figure = partition_figure(partition, SHOWN, CLASSES, max_clients=100)
    bars = figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars) == pytest.approx(100)


def test_classes_are_named_and_sizes_told():
    partition = split("iid", SHOWN, 100, Stream.named(0, "partition"))
    figure = partition_figure(partition, SHOWN, CLASSES)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == CLASSES
    assert "median 20, mean 20, largest 20" in figure.get_supxlabel()
    assert "40 of 100 clients" in figure.axes[0].get_xlabel()


def test_many_labels_share_a_colour():
    labels = np.arange(400) % 80
    figure = partition_figure(split("iid", labels, 3, Stream.named(0, "partition")), labels)
    assert figure.legends[0].get_texts()[-1].get_text() == "others"
    looks = {bar.get_facecolor() for bar in figure.axes[0].patches}
    assert len(looks) == 12
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == pytest.approx(3)


def test_one_client_is_a_picture_too(tmp_path):
    figure = partition_figure(split("iid", SHOWN, 1, Stream.named(0, "partition")), SHOWN)
    assert save_figure(figure, tmp_path / "partition.png").stat().st_size > 5000
    with pytest.raises(ConfigError, match="at least one client"):
        partition_figure(split("iid", SHOWN, 1, Stream.named(0, "partition")), SHOWN, max_clients=0)
