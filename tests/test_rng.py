"""Streams: the same name, the same numbers; another name, others."""

import numpy as np

from qafel.rng import Stream


def test_a_name_decides_the_numbers():
    assert Stream.named(1, "train", 2, 3) == Stream.named(1, "train", 2, 3)
    names = [(s, p, c, n) for s in (0, 1, -1) for p in ("train", "quantize") for c in (0, 1) for n in (0, 1, 2)]
    assert len({Stream.named(*name).words for name in names}) == len(names)


def test_a_stream_never_changes_between_releases():
    """Results are published under a seed: the numbers behind it must stay."""
    assert Stream.named(0, "train", 1, 2).words == (14415287979246279430, 2720295313987097616)


def test_generators_start_afresh():
    stream = Stream.named(0, "x")
    np.testing.assert_array_equal(stream.generator().normal(size=5), stream.generator().normal(size=5))
    generator = np.random.Generator(np.random.Philox(key=np.array(stream.words, np.uint64)))
    assert stream.generator().bit_generator.state["state"]["key"].tolist() == list(stream.words)
    np.testing.assert_array_equal(stream.generator().random(10), generator.random(10))
