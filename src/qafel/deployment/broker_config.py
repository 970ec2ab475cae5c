"""The configuration of a secured broker, as text: who may do what.

The server's account holds the streams. Clients live in an account of their own that imports four things: publishing
uploads, reading broadcasts, configuration and state by subject, reading snapshots, and the live subjects. So a client
can neither ask for a consumer nor, by naming a subject for the broker's answer, have that answer stored as someone's
message; and within its account it may use its own number only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from qafel.deployment.layout import BUCKET, KEY_VALUE_STREAM, OBJECT_STREAM

_READ: Final = "$JS.API.DIRECT.GET"


def _services(run: str, client: str) -> list[str]:
    """What a client may ask for."""
    return [
        f"qafel.{run}.upload.{client}",
        f"{_READ}.*.qafel.{run}.broadcast.*",
        f"{_READ}.{KEY_VALUE_STREAM}.$KV.{BUCKET}.{run}.*",
        f"{_READ}.{OBJECT_STREAM}.$O.{BUCKET}.M.*",
        f"{_READ}.{OBJECT_STREAM}",
    ]


def _live(run: str, client: str) -> list[str]:
    """What a client may listen to."""
    return [f"qafel.{run}.broadcast.*", f"qafel.{run}.receipt.{client}", f"$KV.{BUCKET}.{run}.state"]


def client_permissions(client: int, runs: Iterable[str]) -> tuple[list[str], list[str]]:
    """Subjects that a client may publish to, and subscribe to."""
    publish = dict.fromkeys(subject for run in runs for subject in _services(run, str(client)))
    subscribe = dict.fromkeys(subject for run in runs for subject in _live(run, str(client)))
    return list(publish), [f"_INBOX_{client}.>", *subscribe]


_SERVER = (
    ["qafel.>", "$JS.API.>", "$JS.ACK.>", f"$KV.{BUCKET}.>", f"$O.{BUCKET}.>"],
    ["_INBOX_server.>"],
)
_OPERATOR = (
    [f"{_READ}.{KEY_VALUE_STREAM}.>", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.INFO.*.*"],
    ["_INBOX_operator.>"],
)


def accounts(server: str, operator: str, clients: Mapping[int, str], runs: list[str]) -> str:
    """The part that changes when a client is added or struck off."""
    users = "\n".join(_user(key, *client_permissions(number, runs)) for number, key in clients.items())
    exported = [f'{{ service: "{subject}", accounts: [CLIENTS] }}' for subject in _services("*", "*")]
    exported += [f'{{ stream: "{subject}", accounts: [CLIENTS] }}' for subject in _live("*", "*")]
    imported = [f'{{ service: {{ account: SERVER, subject: "{subject}" }} }}' for subject in _services("*", "*")]
    imported += [f'{{ stream: {{ account: SERVER, subject: "{subject}" }} }}' for subject in _live("*", "*")]
    return f"""# Written by `qafel broker`; changes are lost.
accounts {{
  SERVER {{
    jetstream: enabled
    users: [
{_user(server, *_SERVER)}
{_user(operator, *_OPERATOR)}
    ]
    exports: [
{_lines(exported)}
    ]
  }}
  CLIENTS {{
    users: [
{users}
    ]
    imports: [
{_lines(imported)}
    ]
  }}
}}
"""


def broker(host: str, port: int, store: str, *, mutual_tls: bool, sync: str = "always") -> str:
    """The broker itself. Paths are relative to where it is started, but for the included accounts."""
    return f"""# A NATS server for qafel: `qafel broker start FOLDER`, or there `nats-server -c nats-server.conf`.
host: "{host}"
port: {port}
pid_file: "nats-server.pid"

jetstream {{
  store_dir: "{store}"
  # Sync to disk before acknowledging. The default, every two minutes, is faster and may lose acknowledged messages in a
  # power cut; the server's journal would refill them.
  sync_interval: {sync}
}}

tls {{
  cert_file: "broker/cert.pem"
  key_file: "broker/key.pem"
  ca_file: "ca/ca.pem"
  verify: {"true" if mutual_tls else "false"}
  min_version: "1.3"
}}

include accounts.conf
"""


def _user(key: str, publish: list[str], subscribe: list[str]) -> str:
    return f"""      {{
        nkey: {key}
        permissions: {{ publish: {{ allow: [{_quoted(publish)}] }}, subscribe: {{ allow: [{_quoted(subscribe)}] }} }}
      }}"""


def _quoted(subjects: Iterable[str]) -> str:
    return ", ".join(f'"{subject}"' for subject in subjects)


def _lines(items: Iterable[str]) -> str:
    return "\n".join(f"      {item}" for item in items)
