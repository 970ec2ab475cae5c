"""What a signature covers, for one message and for many at once."""

from __future__ import annotations

import pytest

from qafel.deployment.keys import Signer, Verifier, new_seed, public_key, signed_name
from qafel.deployment.names import SIGNATURE
from qafel.errors import BadSignature

SEED = new_seed()


def _passes(context: str, data: bytes, signature: str | None) -> bool:
    try:
        Verifier(public_key(SEED)).check(context, data, signature)
    except BadSignature:
        return False
    return True


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 64, 65])
def test_one_signature_holds_for_each_of_many_messages_and_for_no_other(count: int) -> None:
    messages = [(signed_name(f"receipt.{number}", "run", 3), b"%d" % number) for number in range(count)]
    signed = [headers[SIGNATURE] for headers in Signer(SEED).headers_of_all(messages)]
    assert len({signature.split(" ")[0] for signature in signed}) == 1, "one signature for all"
    for number, (context, data) in enumerate(messages):
        assert _passes(context, data, signed[number])
        assert not _passes(context, data + b"x", signed[number])
        assert count == 1 or not _passes(context, data, signed[number - 1])
        assert count == 1 or not _passes(context, data, signed[number].split(" ")[0])


def test_a_signature_is_for_one_name_one_run_and_one_epoch() -> None:
    (headers,) = Signer(SEED).headers_of_all([(signed_name("broadcast.5", "run", 3), b"step")])
    assert _passes(signed_name("broadcast.5", "run", 3), b"step", headers[SIGNATURE])
    for other in (
        ("broadcast.6", "run", 3),
        ("broadcast.5", "nur", 3),
        ("broadcast.5", "run", 4),
        ("broadcast.5", "run"),
    ):
        assert not _passes(signed_name(*other), b"step", headers[SIGNATURE]), other


@pytest.mark.parametrize(
    "signature", [None, "", " ", "x", "L", "A A", "AAAA L", "AAAA X????", "é", "A" * 10_000, " L" * 999]
)
def test_what_is_no_signature_is_refused_and_raises_nothing_else(signature: str | None) -> None:
    assert not _passes(signed_name("state"), b"data", signature)


def test_without_a_seed_nothing_is_signed() -> None:
    assert Signer(None).headers_of_all([("a", b""), ("b", b"")]) == [{}, {}]
    assert Signer(SEED).headers_of_all([]) == []
