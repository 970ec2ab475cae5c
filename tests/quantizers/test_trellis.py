"""`trellis`: near the bound at every rate, the bytes it is asked for, and the same bits without compiled code."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qafel.errors import MalformedPayload
from qafel.params import Vector
from qafel.quantizers import measure_error, parse, trellis
from qafel.quantizers.kernels.tables import cut, tables_for
from qafel.quantizers.measure import gaussian, heavy_tailed
from qafel.quantizers.plain import rotated as plain
from tests.quantizers.specs import same_bits, stream, vectors

SIZE = 29_282


def over_the_bound(spec: str, vector: Vector) -> float:
    """The error of the unbiased quantizer over 1/(2^(2R) − 1), R being the bits that it is asked for."""
    quantizer = parse(spec)
    return measure_error(quantizer, [vector], 5, stream()).nmse * (4.0**quantizer.rate - 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("most", [
    {"trellis:0.5": 1.38, "trellis:2,states=32": 1.14},
    pytest.param({
        "trellis:0.25": 1.4, "trellis:1": 1.22, "trellis:2": 1.22, "trellis:4": 1.22, "trellis:6": 1.22,
        "trellis:0.5,states=32": 1.3, "trellis:1.5,states=32": 1.14, "trellis:4,states=32": 1.14,
        "trellis:6,states=32": 1.14,
    }, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_error_is_near_the_least_that_any_code_has(most: dict[str, float]) -> None:
    for spec, limit in most.items():
        assert 1.0 < over_the_bound(spec, gaussian(SIZE)) <= limit, spec
        assert 1.0 < over_the_bound(spec, heavy_tailed(SIZE)) <= limit, spec


@pytest.mark.parametrize("options", ["", ",states=32", ",scale=least"])
def test_the_rate_is_met_in_bytes(options: str) -> None:
    for rate in (0.25, 0.33, 0.5, 0.74, 0.75, 0.9, 1, 1.7, 3.14159, 6):
        quantizer = parse(f"trellis:{rate}{options}")
        for vector, number in itertools.product((gaussian(SIZE), heavy_tailed(SIZE)), range(5)):
            bits = 8 * len(quantizer.encode(vector, stream(number))) / SIZE
            assert bits == pytest.approx(rate, rel=0.01 if rate >= 0.75 else 0.02)


@pytest.mark.parametrize("spec", ["trellis:0.25", "trellis:0.5,states=32", "trellis:0.78", "trellis:0.8", "trellis:1"])
def test_a_message_is_made_once(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What misses the rate is put right within the search, by the last groups, not by another message."""
    attempts, make = [], trellis.Trellis._attempt

    def counted(self: trellis.Trellis, *arguments: Any) -> Any:
        attempts.append(spec)
        return make(self, *arguments)

    monkeypatch.setattr(trellis.Trellis, "_attempt", counted)
    quantizer = parse(spec)
    for number in range(20):
        quantizer.encode(heavy_tailed(SIZE) if number % 2 else gaussian(SIZE), stream(number))
    assert len(attempts) <= 22


def test_bits_go_where_they_pay() -> None:
    """Half of the vector ten times as large as the other: one step for both halves the error, in the same bytes."""
    vector = gaussian(8 * 4096)
    layered = vector * np.where(np.arange(vector.size) < 4 * 4096, np.float32(10), np.float32(1))
    flat = measure_error(parse("trellis:2"), [vector], 3, stream())
    found = measure_error(parse("trellis:2"), [layered], 3, stream())
    assert found.nmse < 0.45 * flat.nmse
    assert found.payload_bytes == pytest.approx(flat.payload_bytes, rel=0.01)


@pytest.mark.parametrize("rate", [0.25, 0.5, 1, 2])
def test_the_least_scale_has_less_error_in_the_same_format(rate: float) -> None:
    vector, server, client = gaussian(SIZE), parse(f"trellis:{rate},scale=least"), parse(f"trellis:{rate}")
    least, unbiased = measure_error(server, [vector], 3, stream()), measure_error(client, [vector], 3, stream())
    assert least.nmse == pytest.approx(unbiased.nmse / (1 + unbiased.nmse), rel=0.02)
    assert 0 < server.delta(SIZE) < least.delta
    assert least.bias == pytest.approx(least.nmse**2, rel=0.2)
    assert not server.unbiased(SIZE)
    payload = server.encode(vector, stream())
    assert same_bits(client.decode(payload, SIZE), server.decode(payload, SIZE))


def test_an_error_above_omega_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    vector, quantizer = gaussian(2000), parse("trellis:1")
    first = quantizer.encode(vector, stream())
    error = float(np.square(quantizer.decode(first, 2000) - vector).sum() / np.square(vector).sum())
    usual = trellis._figures(1.0, 8, 2000)
    monkeypatch.setattr(trellis, "_figures", lambda *_: usual._replace(tangent=0.999 * error))
    again = quantizer.encode(vector, stream())
    assert again != first
    assert np.square(quantizer.decode(again, 2000) - vector).sum() < error * np.square(vector).sum()


@pytest.mark.parametrize("spec", ["trellis:0.5", "trellis:4,scale=least", "trellis:6,states=32", "rotated:6"])
def test_the_error_is_below_omega_for_tiny_and_for_huge_vectors(spec: str) -> None:
    spike = np.zeros(5000, np.float32)
    spike[0] = 1
    for unit, shape in itertools.product((1e-42, 1e-41, 1e-39, 1e-38, 1e-37, 1e36, 1e38), (gaussian(5000) / 4, spike)):
        quantizer, vector = parse(spec), (shape * np.float64(unit)).astype(np.float32)
        payload = quantizer.encode(vector, stream())
        decoded, exact = quantizer.decode(payload, 5000), vector.astype(np.float64)
        assert np.square(decoded - exact).sum() <= quantizer.omega(5000) * np.square(exact).sum(), unit
        target = (shape[::-1] * np.float64(unit)).astype(np.float32)
        added = target.copy()
        quantizer.add_decoded_(added, payload, 0.3)
        assert same_bits(added, target + np.float32(0.3) * decoded), unit


@pytest.mark.parametrize("spec", ["trellis:0.5", "trellis:4,states=32", "layers:trellis:2"])
def test_windows_as_far_apart_as_float32_allows_survive(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quantizer, shape = parse(spec), gaussian(9000) / 4
    for large, small in ((1e38, 1e-45), (1e30, 1e-20), (1.0, 1e-33), (1.0, 1e-42)):
        vector = np.where(np.arange(9000) < 4096, shape * np.float64(small), shape * np.float64(large)).astype(
            np.float32
        )
        payload = quantizer.encode(vector, stream())
        assert len(payload) <= quantizer.max_payload_bytes(9000)
        decoded = quantizer.decode(payload, 9000)
        error = np.square(decoded / large - vector / large)
        assert error.sum() <= quantizer.omega(9000) * np.square(vector / large).sum(), small
    monkeypatch.setattr(trellis, "kernels", SimpleNamespace(windows=plain))
    assert quantizer.encode(vector, stream()) == payload
    assert same_bits(quantizer.decode(payload, 9000), decoded)


@pytest.mark.parametrize("rate", [0.5, 2, 4])
def test_the_least_scale_has_less_error_for_short_vectors(rate: float) -> None:
    vector, server, client = gaussian(600), parse(f"trellis:{rate},scale=least"), parse(f"trellis:{rate}")
    for number in range(20):
        payloads = [quantizer.encode(vector, stream(number)) for quantizer in (server, client)]
        least, unbiased = (np.square(client.decode(each, 600) - vector).sum() for each in payloads)
        assert least < unbiased
        assert least <= server.omega(600) * np.square(vector).sum()
    assert not server.unbiased(600)
    assert server.delta(600) > client.delta(600)


@pytest.mark.parametrize("states", [8, 32])
def test_tables_are_whole_and_ordered(states: int) -> None:
    tables = tables_for(states)
    assert (np.diff(tables.rates) > 0).all()
    assert (np.diff(tables.places) > 0).all()
    counts = (tables.writing & 0x1FFF).reshape(-1, 512).astype(int)
    assert (counts[:, 0::2].sum(1) == 4096).all()
    assert (counts[:, 1::2].sum(1) == 4096).all()
    for j in range(4):  # a path may need a number of any class mod 4; table 0 has its own two
        assert (counts[1:, j::4].sum(1) > 0).all()


def test_windows_cover_every_coordinate_once() -> None:
    for size in (1024, 1039, 1040, 4096, 4097, 8191, 100_000, 1_000_003):
        parts = cut(size)
        assert parts.windows[:, 2].sum() == parts.padded == -(-size // 16) * 16
        assert ((parts.windows[:, 1] & (parts.windows[:, 1] - 1)) == 0).all()
        assert (np.diff(parts.windows[:, 0]) == parts.windows[:-1, 2]).all()


@pytest.mark.parametrize("spec", ["trellis:0.25", "trellis:1", "trellis:4,states=32"])
def test_damage_never_crashes_and_changes_nothing(spec: str) -> None:
    quantizer, size = parse(spec), 140_000  # two streams
    vector, generator = gaussian(size), np.random.default_rng(0)
    payload = quantizer.encode(vector, stream())
    refused = 0
    for number in range(60):
        damaged = np.frombuffer(payload, np.uint8).copy()
        at = generator.integers(0, 140 if number % 2 else damaged.size, generator.integers(1, 9))
        damaged[at] ^= generator.integers(1, 256, at.size).astype(np.uint8)
        target = vector.copy()
        try:
            quantizer.add_decoded_(target, damaged.tobytes())
        except MalformedPayload:
            refused += 1
            assert same_bits(target, vector)
        else:
            assert np.isfinite(target).all()
    assert refused > 50, "nearly all damage shows: the coders must end where the payload does"


@pytest.mark.parametrize(("specs", "sizes"), [
    (("trellis:0.6,states=32", "trellis:1.3"), (1100, 4097)),
    pytest.param(
        ("trellis:0.25", "trellis:0.6,states=32", "trellis:0.78", "trellis:1.3", "trellis:6",
         "trellis:3,states=32,scale=least"),
        (1024, 1100, 4097, 9000), marks=pytest.mark.slow),
])  # fmt: skip
def test_plain_numpy_writes_and_reads_the_same_bits(
    specs: tuple[str, ...], sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec, size, name in itertools.product(specs, sizes, ("gaussian", "mixed scales")):
        quantizer = parse(spec)
        vector = vectors(size)[name]
        payload = quantizer.encode(vector, stream())
        decoded = quantizer.decode(payload, size)
        added = vector.copy()
        quantizer.add_decoded_(added, payload, 0.3)
        with monkeypatch.context() as patched:
            patched.setattr(trellis, "kernels", SimpleNamespace(windows=plain))
            assert quantizer.encode(vector, stream()) == payload, (spec, size, name)
            assert quantizer.decode(payload, size).tobytes() == decoded.tobytes(), (spec, size, name)
            again = vector.copy()
            quantizer.add_decoded_(again, payload, 0.3)
            assert again.tobytes() == added.tobytes(), (spec, size, name)
