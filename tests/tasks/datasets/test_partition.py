"""Every partition covers the samples once, is a function of its stream, and has the shape its name promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.errors import ConfigError, SpecError
from qafel.rng import Stream
from qafel.tasks.datasets.partition import by_user, split

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
        ("iid:3", "takes no parameter"),
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
    with pytest.raises(ConfigError, match="among 1 to 5000 clients"):
        split("iid", LABELS, clients, Stream.named(0, "partition"))
