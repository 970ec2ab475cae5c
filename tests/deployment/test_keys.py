"""What a signature covers, for one message and for many at once."""

from __future__ import annotations

import base64
import hashlib

import nkeys
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from qafel.deployment.keys import Signer, Verifier, new_seed, public_key, signed_name
from qafel.deployment.names import SIGNATURE
from qafel.errors import BadSignature, ConfigError

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


def test_what_another_library_signs_is_a_signature_and_ours_is_one_to_it() -> None:
    """Ed25519 is the same everywhere: a client may be written with any library."""
    own = Ed25519PrivateKey.from_private_bytes(bytes(nkeys.decode_seed(bytearray(SEED.encode()))[1]))
    context, data = signed_name("upload.3", "run"), b"frame"
    (headers,) = Signer(SEED).headers_of_all([(context, data)])
    hasher = hashlib.blake2b(context.encode() + b"\n", digest_size=32, person=b"qafel message")
    hasher.update(data)
    assert base64.b64decode(headers[SIGNATURE]) == own.sign(hasher.digest())
    for length in (63, 65, 96):
        forged = (own.sign(hasher.digest()) + bytes(32))[:length]
        assert not _passes(context, data, base64.b64encode(forged).decode())


def test_what_is_no_public_key_is_refused() -> None:
    key = public_key(SEED)
    for other in ("", "U", "UABC", key[:-8], key + "AAAAAAAA", "é" * 56):
        with pytest.raises(ConfigError, match="a public nkey has 56 characters"):
            Verifier(other)
