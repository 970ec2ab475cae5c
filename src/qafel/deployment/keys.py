"""Who said it: Ed25519 keys in NATS's own notation (nkeys), and signatures over what crosses.

A signature covers the subject or object name as well as the bytes, so that a message cannot be passed off as another
run's or another client's. What is signed is a BLAKE2b digest: one fast pass over a large model.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from typing import final

import nkeys
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from qafel.errors import BadSignature, ConfigError
from qafel.quantizers.protocol import Payload


def new_seed() -> str:
    """A new user key, as nkeys write it: SU…"""
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def public_key(seed: str) -> str:
    """The public half of a seed: U…"""
    _raw_seed(seed)
    pair = nkeys.from_seed(bytearray(seed.encode()))
    key: bytes = pair.public_key
    return key.decode()


@final
class Signer:
    """Signs with a seed."""

    def __init__(self, seed: str) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(_raw_seed(seed))

    def sign(self, context: str, data: Payload) -> str:
        return base64.b64encode(self._key.sign(_digest(context, data))).decode()


@final
class Verifier:
    """Checks signatures of one public key."""

    def __init__(self, public: str) -> None:
        try:
            raw = base64.b32decode(public + "=" * (-len(public) % 8))
        except binascii.Error:
            raw = b""
        if len(raw) != 35:
            raise ConfigError(f"a public nkey has 56 characters and starts with U, got {public!r}")
        self._key = Ed25519PublicKey.from_public_bytes(raw[1:33])

    def check(self, context: str, data: Payload, signature: str | None) -> None:
        """Raise unless the signature belongs to this context and these bytes."""
        if not signature:
            raise BadSignature(f"{context} is not signed")
        try:
            self._key.verify(base64.b64decode(signature, validate=True), _digest(context, data))
        except (InvalidSignature, binascii.Error, ValueError):
            raise BadSignature(f"{context} is not signed by the expected key") from None


def _digest(context: str, data: Payload) -> bytes:
    hasher = hashlib.blake2b(context.encode() + b"\n")
    hasher.update(data)
    return hasher.digest()


def _raw_seed(seed: str) -> bytes:
    try:
        _, raw = nkeys.decode_seed(bytearray(seed.encode()))
    except Exception:  # nkeys raises its own and binascii's errors
        raise ConfigError("a seed has 58 characters and starts with SU; this one cannot be read") from None
    return bytes(raw)
