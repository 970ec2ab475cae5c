"""What a signature covers, for one message and for many at once; and that damaged keys are noticed."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import nkeys
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from qafel.deployment.broker import BrokerFolder, issue_certificate
from qafel.deployment.keys import Access, Signer, Verifier, new_seed, public_key, signed_name
from qafel.deployment.names import SIGNATURE
from qafel.errors import BadSignature, ConfigError, DataError

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
        with pytest.raises(ConfigError, match="a public key of 56 characters"):
            Verifier(other)


def _flips(path: Path) -> Iterator[int]:
    """Every bit of a file, flipped on disk while the caller looks; then the file is as before."""
    sound = path.read_bytes()
    for bit in range(8 * len(sound)):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        yield bit
    path.write_bytes(sound)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return BrokerFolder.init(tmp_path_factory.mktemp("keys") / "broker", 1, mutual_tls=True).path


@pytest.mark.parametrize(
    "file", ["server/signing.nk", "server/user.nk", "server/server.pub", "clients/0/user.nk", "clients/0/server.pub"]
)
def test_a_flipped_bit_in_a_key_is_noticed_whichever_it_is(file: str, folder: Path) -> None:
    path = folder / file
    secret = path.read_text(encoding="ascii")
    for bit in _flips(path):
        with pytest.raises(ConfigError, match="damaged|credentials") as error:
            Access.of(None, path.parent)
        assert path.parent.name in str(error.value), bit
        assert secret[20:50] not in str(error.value) or path.suffix == ".pub", "a secret is not for the log"
    assert Access.of(None, path.parent).signer() is not None


def test_a_signing_key_that_clients_do_not_check_is_refused(folder: Path) -> None:
    path = folder / "server" / "signing.nk"
    right = path.read_text(encoding="ascii")
    path.write_text(new_seed(), encoding="ascii")
    with pytest.raises(ConfigError, match="does not match"):
        Access.of(None, folder / "server")
    path.write_text(right, encoding="ascii")


def test_a_damaged_key_in_the_registry_is_named(folder: Path) -> None:
    path, access = folder / "server" / "clients.json", Access.of(None, folder / "server")
    first_bit = 8 * path.read_text(encoding="ascii").index('"U')
    for bit in _flips(path):
        if first_bit <= bit < first_bit + 8 * 58:  # the key and its quotes; a number of a client has no checksum
            with pytest.raises(ConfigError, match="clients.json"):
                access.registry()


@pytest.mark.parametrize("file", ["ca.pem", "cert.pem", "key.pem"])
def test_a_certificate_that_cannot_be_read_is_a_sentence(file: str, folder: Path) -> None:
    path = folder / "clients" / "0" / file
    sound = path.read_bytes()
    path.write_bytes(sound[:100] + b"?" + sound[101:])
    with pytest.raises(ConfigError, match="certificates"):
        Access.of(None, path.parent)
    path.write_bytes(sound)


def test_an_authority_whose_key_is_damaged_signs_nothing(folder: Path, tmp_path: Path) -> None:
    path = folder / "ca" / "ca-key.pem"
    sound = path.read_bytes()
    path.write_bytes(sound[:100] + (b"A" if sound[100:101] != b"A" else b"B") + sound[101:])
    with pytest.raises(DataError, match="does not match"):
        issue_certificate(folder / "ca", tmp_path, "someone")
    path.write_bytes(sound)
