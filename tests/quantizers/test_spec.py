from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qafel.errors import SpecError, WrongCodec
from qafel.params import Layout
from qafel.quantizers import Affine, Qsgd, Quantizer, as_quantizer, from_codec, make_quantizer, parse
from qafel.quantizers.protocol import CUSTOM
from tests.quantizers.specs import CELEBA

CANONICAL = {
    "qsgd:bits=4": "qsgd:4",
    "qsgd:levels=7": "qsgd:4",
    "qsgd:levels=8": "qsgd:levels=8",
    "qsgd:4,norm=max,bucket=512": "qsgd:4",
    " qsgd:4 ": "qsgd:4",
    "top_k:fraction=0.010": "top_k:0.01",
    "top_k:0.5,round=nearest": "top_k:0.5",
    "rand_k:round=down,fraction=0.5,values=qsgd:4": "rand_k:0.5,round=down,values=qsgd:4",
    "top_k:0.1,values=qsgd:levels=8,bucket=none": "top_k:0.1,values=qsgd:levels=8,bucket=none",
    "scaled:qsgd:bits=2,bucket=64+zstd": "scaled:qsgd:2,bucket=64+zstd",
    "affine:bits=8": "affine:8",
}


def test_canonical_specs() -> None:
    for text, canonical in CANONICAL.items():
        assert parse(text).spec == canonical


MISTAKES = {
    "qsdg:4": "'qsgd'",
    "": "''",
    "qsgd": "levels",
    "qsgd:4,levels=8": "levels",
    "qsgd:4,bits=4": "twice",
    "qsgd:4,norm=l2,norm=l2": "twice",
    "qsgd:9": "8 bits",
    "qsgd:four": "whole number",
    "qsgd:levels=128": "127",
    "qsgd:4,norm=l1": "l2",
    "qsgd:4,bukcet=128": "'bucket'",
    "qsgd:4,bucket=0": "16777215",
    "qsgd:4,bucket=-1": "whole number",
    "qsgd:4,128": "key=value",
    "none:4": "'4'",
    "top_k": "count",
    "top_k:0.5,round=up": "'up'",
    "rand_k:count=5,round=down": "'down'",
    "top_k:0": "above 0",
    "top_k:1.5": "above 0",
    "top_k:nan": "above 0",
    "top_k:count=0": "one",
    "top_k:0.1,values=top_k:0.1": "values",
    "top_k:0.1+zstd": "zstd",
    "qsgd:4+gzip": "suffix",
    "qsgd:4+zstd+zstd": "zstd",
    "scaled:sign": "unbiased",
    "scaled:scaled:qsgd:4": "unbiased",
    "rotated:7": "6 bits",
    "rotated": "bits",
    "dithered:0": "8 bits",
    "affine:16": "8 bits",
}
"""What is wrong, and a key word of the error."""


def test_mistakes_are_named() -> None:
    for text, key_word in MISTAKES.items():
        with pytest.raises(SpecError, match=key_word):
            parse(text)


@given(st.text(alphabet="qsgdtopkrandscl:=,.+0123456789_z", max_size=24))
def test_any_text_parses_or_is_a_spec_error(text: str) -> None:
    try:
        quantizer = parse(text)
    except SpecError:
        return
    assert parse(quantizer.spec) == quantizer


@given(
    st.integers(1, 8),
    st.sampled_from(["max", "l2"]),
    st.one_of(st.none(), st.integers(1, 2**24 - 1)),
    st.booleans(),
)
def test_qsgd_survives_text_and_codec(bits: int, norm: str, bucket: int | None, levels: bool) -> None:
    made = Qsgd.of_levels(bits * 15, norm, bucket) if levels else Qsgd.of_bits(bits, norm, bucket)  # type: ignore[arg-type]
    assert parse(made.spec) == made
    assert from_codec(made.codec) == made


@given(st.floats(1e-6, 1.0), st.sampled_from(["top_k", "rand_k"]))
def test_fractions_survive_text_and_codec(fraction: float, name: str) -> None:
    quantizer = parse(f"{name}:{fraction}")
    assert parse(quantizer.spec) == quantizer
    assert from_codec(quantizer.codec) == quantizer


@given(st.binary(min_size=16, max_size=16))
def test_any_codec_bytes_are_a_quantizer_or_refused(codec: bytes) -> None:
    try:
        quantizer: Quantizer = from_codec(codec)
    except WrongCodec:
        return
    assert quantizer.codec == codec


def test_unbiased_is_a_property_of_a_size() -> None:
    assert all(parse("rotated:1").unbiased(size) for size in (1, 2, 113, 29_282))
    assert parse("sign").unbiased(1)
    assert not parse("sign").unbiased(2)
    assert parse("top_k:count=3").unbiased(3)
    assert not parse("top_k:count=3").unbiased(4)
    assert parse("rand_k:0.1,values=sign").unbiased(10)
    assert not parse("rand_k:0.1,values=sign").unbiased(20)


def test_codec_of_another_length_is_refused() -> None:
    with pytest.raises(WrongCodec, match="16"):
        from_codec(b"abc")


def test_affine_codec_belongs_to_its_layout() -> None:
    affine = parse("affine:8", CELEBA)
    assert affine == Affine(8, CELEBA)
    assert from_codec(affine.codec, CELEBA) == affine
    assert affine.codec != parse("affine:8").codec
    for other in (None, Layout.flat(CELEBA.size)):
        with pytest.raises(WrongCodec, match="another model"):
            from_codec(affine.codec, other)


def test_a_third_partys_whole_quantizer_is_used_unchanged() -> None:
    class Whole:
        spec, codec = "whole", bytes([CUSTOM]).ljust(16, b"x")
        unbiased = encode = decode = add_decoded_ = max_payload_bytes = omega = delta = staticmethod(lambda *_: None)

    whole = Whole()
    assert as_quantizer(whole) is whole
    assert make_quantizer(whole) is whole
