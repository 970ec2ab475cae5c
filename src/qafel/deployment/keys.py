"""Credentials, and signatures by Ed25519 keys in NATS's notation (nkeys).

A signature covers the bytes, the subject or object name, the run's identity and, for the server's messages, its epoch.
So a message of one run, client or server cannot be used as another's. The signature is over a BLAKE2b digest, one fast
pass over a large model. One signature can cover many messages: it signs the root of a hash tree, and each message
carries the digests beside its path. libsodium verifies twice as fast as OpenSSL.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import ssl
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Final, final

import nacl.bindings
import nkeys
from nacl.exceptions import BadSignatureError
from pydantic import TypeAdapter

from qafel.deployment.names import SIGNATURE
from qafel.errors import BadSignature, ConfigError
from qafel.quantizers.protocol import Payload
from qafel.text import printable

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
_SIGNATURE_BYTES: Final = nacl.bindings.crypto_sign_BYTES
_DEEPEST: Final = 32  # levels of a hash tree
_REGISTRY: Final = TypeAdapter(dict[int, str])


def new_seed() -> str:
    """Make a new user key in nkeys notation: SU…"""
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def public_key(seed: str) -> str:
    """The public half of a seed: U…"""
    seed_bytes(seed)
    key: bytes = nkeys.from_seed(bytearray(seed.encode())).public_key
    return key.decode()


@final
class Signer:
    """Signs messages with the key of a seed. Without a seed, it does nothing."""

    def __init__(self, seed: str | None) -> None:
        self._key = nacl.bindings.crypto_sign_seed_keypair(seed_bytes(seed))[1] if seed else None

    def headers(self, context: str, data: Payload) -> dict[str, str]:
        """A header with the signature of `data`; none without a key. `context`: from `signed_name`."""
        return self.headers_of_all([(context, data)])[0]

    def headers_of_all(self, messages: Sequence[tuple[str, Payload]]) -> list[dict[str, str]]:
        """The headers of several messages, given as (context, data), with one signature for all."""
        if self._key is None or not messages:
            return [{} for _ in messages]
        level, paths = [_digest(*message) for message in messages], [""] * len(messages)
        places = list(range(len(messages)))
        while len(level) > 1:
            for message, place in enumerate(places):
                if (beside := place ^ 1) < len(level):
                    paths[message] += f" {'LR'[beside > place]}{_text(level[beside])}"
                places[message] = place // 2
            pairs = zip_longest(level[::2], level[1::2])
            level = [left if right is None else _joined(left, right) for left, right in pairs]
        signature = _text(nacl.bindings.crypto_sign(level[0], self._key)[:_SIGNATURE_BYTES])
        return [{SIGNATURE: signature + path} for path in paths]


@final
class Verifier:
    """Checks signatures of one public key. Without a key, everything passes."""

    def __init__(self, public: str | None) -> None:
        self._key = None if public is None else public_key_bytes(public)

    def check(self, context: str, data: Payload, signature: str | None) -> None:
        """Raise unless the signature matches the context and the bytes."""
        if self._key is None:
            return
        try:
            own, *path = (signature or "").split(" ", _DEEPEST)
            root = _digest(context, data)
            for step in path:
                beside = base64.b64decode(step[1:], validate=True)
                root = _joined(beside, root) if step[0] == "L" else _joined(root, beside)
            given = base64.b64decode(own, validate=True)
            if len(given) != _SIGNATURE_BYTES:
                raise ValueError("wrong length")
            nacl.bindings.crypto_sign_open(given + root, self._key)
        except (BadSignatureError, ValueError, IndexError):
            problem = "is not signed by the expected key for this run" if signature else "is not signed"
            name, _, _ = context.partition("\n")
            raise BadSignature(f"{printable(name)} {problem}") from None


def signed_name(name: str, run_id: str = "", number: int | None = None) -> str:
    """The context of a signature: a subject or object name, the run's identity, and a number.

    The number of a server's message is its epoch. An upload has the upload that its client's memory follows, if any. A
    failure of training has the number of failures. Agreement and state contain run and epoch themselves.
    """
    return f"{name}\n{run_id}\n{'' if number is None else number}"


@lru_cache(maxsize=10_000)
def key_number(public: str) -> int:
    """A number from 1 to 2³²−1 that distinguishes a client's public keys."""
    return int.from_bytes(hashlib.blake2b(public.encode(), digest_size=4, person=b"qafel key").digest(), "big") or 1


def fingerprint(data: Payload) -> bytes:
    """A 32-byte digest that represents a large message in a small signed one."""
    return hashlib.blake2b(data, digest_size=32, person=b"qafel object").digest()


def _digest(context: str, data: Payload) -> bytes:
    hasher = hashlib.blake2b(context.encode() + b"\n", digest_size=32, person=b"qafel message")
    hasher.update(data)
    return hasher.digest()


def _joined(left: bytes, right: bytes) -> bytes:
    return hashlib.blake2b(left + right, digest_size=32, person=b"qafel tree").digest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def seed_bytes(seed: str) -> bytes:
    """The 32 bytes of a seed. Raises if it is damaged."""
    decoded = _nkey_bytes(seed)
    if len(seed) != 58 or not seed.startswith("SU") or decoded is None:
        raise ConfigError("expected a seed of 58 characters that starts with SU and matches its checksum")
    return decoded[2:]


@lru_cache(maxsize=10_000)
def public_key_bytes(public: str) -> bytes:
    """The 32 bytes of a public key. Raises if it is damaged."""
    decoded = _nkey_bytes(public)
    if len(public) != 56 or not public.startswith("U") or decoded is None:
        raise ConfigError(
            f"expected a public key of 56 characters that starts with U and matches its checksum, got {public[:60]!r}"
        )
    return decoded[1:]


def _check(name: str, read: Callable[[str], bytes], text: str) -> None:
    try:
        read(text)
    except ConfigError as error:
        raise ConfigError(f"{name} is damaged: {error}; restore the file from a copy") from None


def _nkey_bytes(text: str) -> bytes | None:
    """An nkey's bytes without its checksum; None if anything is wrong. The library does not check the checksum."""
    try:
        decoded = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        return None
    # Unused bits in the last character must be zero, so that a key has one spelling.
    same = base64.b32encode(decoded).decode().rstrip("=") == text
    return (
        decoded[:-2] if same and binascii.crc_hqx(decoded[:-2], 0) == int.from_bytes(decoded[-2:], "little") else None
    )


@final
@dataclass(frozen=True, slots=True)
class Access:
    """A broker's URL, or a folder of credentials that `qafel broker init` wrote.

        connection.toml    servers = ["tls://127.0.0.1:4222"], client = 17, or the operator's api = "qafel.api"
        user.nk            the seed of our nkey
        ca.pem             the authority that signed the broker's certificate
        cert.pem, key.pem  our certificate, if TLS is mutual
        server.pub         the key that signs what the server sends
        signing.nk         (server only) its seed
        clients.json       (server only) client numbers and their public keys

    Without a folder there is no TLS, no identity and no signature. Use that for development only.
    """

    servers: tuple[str, ...] = (DEFAULT_URL,)
    folder: Path | None = None
    client: int | None = None
    api: str = "$JS.API"
    """The prefix of JetStream requests. The operator's account uses another one."""
    _texts: dict[str, str] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(url: str | None, folder: Path | None) -> Access:
        """From a broker's `url` and a `folder` of credentials. The URL overrides the folder's."""
        if folder is None:
            return Access((url or DEFAULT_URL,))
        try:
            connection = tomllib.loads((folder / "connection.toml").read_text(encoding="utf-8"))
            texts = {
                name: path.read_text(encoding="utf-8").strip()
                for name in ("user.nk", "server.pub", "signing.nk")
                if (path := folder / name).exists()
            }
            servers = (url,) if url else tuple(connection["servers"])
        except (OSError, KeyError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{folder} does not have credentials ({error}): give a folder that `qafel broker init` wrote"
            ) from None
        access = Access(servers, folder, connection.get("client"), connection.get("api", "$JS.API"), texts)
        access._check_files(folder)
        return access

    def _check_files(self, folder: Path) -> None:
        """Raise if a key or certificate is damaged. Clients would ignore a server with a wrong key."""
        for name, text in self._texts.items():
            _check(str(folder / name), public_key_bytes if name == "server.pub" else seed_bytes, text)
        signing, public = self._texts.get("signing.nk"), self._texts.get("server.pub")
        if signing is not None and public_key(signing) != public:
            raise ConfigError(
                f"{folder / 'signing.nk'} does not match {folder / 'server.pub'}: restore both from a copy of the "
                "broker's folder"
            )
        try:
            self.tls()
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"cannot use the certificates in {folder} ({printable(str(error))}): restore them from a copy"
            ) from None

    @property
    def seed(self) -> str | None:
        return self._texts.get("user.nk")

    @property
    def name(self) -> str:
        """Our name on the broker. Each key may read only the inbox of its name."""
        if self.client is not None:
            return str(self.client)
        return "server" if "signing.nk" in self._texts else "operator"

    def signer(self) -> Signer:
        """Signs our messages: a server with its signing key, a client with its user key."""
        return Signer(self._texts.get("signing.nk") or self.seed)

    def verifier(self) -> Verifier:
        """Checks the server's messages."""
        return Verifier(self._texts.get("server.pub"))

    def registry(self) -> dict[int, str] | None:
        """The registered clients and their public keys; None if every client of the task may take part.

        A server that signs needs its registry: a missing file must not open the run to everyone.
        """
        if self.folder is None:
            return None
        path = self.folder / "clients.json"
        try:
            keys = _REGISTRY.validate_json(path.read_bytes())
            for client, key in keys.items():
                _check(f"client {client}'s key in {path}", public_key_bytes, key)
            return keys
        except FileNotFoundError:
            if "signing.nk" not in self._texts:
                return None
            raise ConfigError(f"{path} is missing: copy it from the broker's folder") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from None

    def tls(self) -> ssl.SSLContext | None:
        """TLS 1.3, with the authority of the credentials; None without credentials."""
        if self.folder is None or not (self.folder / "ca.pem").exists():
            return None
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if (self.folder / "cert.pem").exists():
            context.load_cert_chain(self.folder / "cert.pem", self.folder / "key.pem")
        return context
