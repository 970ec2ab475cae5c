"""The names of everything on the broker, and the limits of its streams.

qafel.RUN.upload.CLIENT       a client's updates: a work queue, empty once the server has them
qafel.RUN.broadcast.VERSION   the step from VERSION to VERSION + 1: a bounded history
qafel.RUN.receipt.CLIENT      the outcome of a client's updates: not stored
qafel.RUN.start.CLIENT        a client's request for a linked start: only the newest, in memory
qafel.RUN.started.CLIENT      the answer to it: not stored
$KV.qafel.RUN.config          the agreement of server and clients
$KV.qafel.RUN.state           status, version and digest: renewed every few seconds
object RUN/snapshot           x̂, replaced every few steps
object RUN/copy               a quantized copy of it, if clients may start from one
object RUN/broadcast-VERSION  a broadcast larger than one message
object RUN/model.safetensors  the final model

The version names a broadcast, not the stream's own count. A client asks for missed broadcasts by name, and a wiped and
refilled broker gives the same answers. Reads by subject need no consumer, so idle clients cost the broker no state. The
right to read broadcasts grants nothing else. docs/decisions/deployment.md
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, final

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from qafel.errors import ConfigError

BUCKET: Final = "qafel"
KEY_VALUE_STREAM: Final = f"KV_{BUCKET}"
OBJECT_STREAM: Final = f"OBJ_{BUCKET}"
SHARED_STREAMS: Final = (KEY_VALUE_STREAM, OBJECT_STREAM)
"""Shared by all runs on a broker. Every other stream belongs to one run."""
ANSWER_S: Final = 5.0
"""How long a program waits for an answer of the broker, and the broker remembers where the answer goes."""
SIGNATURE: Final = "Qafel-Signature"
PART: Final = "Qafel-Part"
OBJECT: Final = "Qafel-Object"
EPOCH: Final = "Qafel-Epoch"
START: Final = "Qafel-Start"
"""With an answer to a start request: `StartReply.head`."""
FAILED: Final = "Qafel-Failed"
"""Marks a report of failed training on an upload's subject: the number of failures in a row."""
FOLLOWS: Final = "Qafel-Follows"
"""With a client memory: the update that the memory follows; -1 before the first."""
RECEIVED: Final = "Qafel-Received"
"""The bytes of broadcasts and snapshots that the client received since its previous upload."""
MALFORMED: Final = "\N{REPLACEMENT CHARACTER}"
"""A header name for unreadable headers, which no sender can write."""
OVERHEAD_BYTES: Final = 4096
"""The most bytes of a message's subject and headers."""
UPLOAD_HEADERS_BYTES: Final = 512
"""The most bytes of an upload's headers in the stream. A signature and a part name take 160."""
START_BYTES: Final = 1024
"""The most bytes of a start request with its headers."""
_STARTS_BYTES: Final = 64 << 20
START_AGE_S: Final = 60.0
"""After this time, the broker forgets a start request."""
DUPLICATE_WINDOW_S: Final = 0.1
"""The shortest that NATS allows. NATS keeps each `Nats-Msg-Id` in memory this long; this package does not use it."""
_RUN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def number_in(subject: str) -> int | None:
    """The client or version at the end of a subject; None if it is not a number."""
    end = subject.rsplit(".", 1)[-1]
    return int(end) if end.isascii() and end.isdecimal() and len(end) < 20 else None


def stream_of(subject: str) -> str:
    """The stream that stores a subject."""
    first, *others = subject.split(".")
    return {"$KV": KEY_VALUE_STREAM, "$O": OBJECT_STREAM}.get(first) or "-".join((first, *others[:2]))


def is_run_name(name: str) -> bool:
    return _RUN_NAME.fullmatch(name) is not None


@final
class Names:
    """The subjects, streams and objects of one run."""

    def __init__(self, run: str) -> None:
        if not is_run_name(run):
            raise ConfigError(
                f"expected a run name of 1 to 64 letters, digits, - or _; got {run!r}: choose another `run`"
            )
        self.run = run
        self.upload_stream = f"qafel-{run}-upload"
        self.broadcast_stream = f"qafel-{run}-broadcast"
        self.start_stream = f"qafel-{run}-start"
        self.uploads = f"qafel.{run}.upload.*"
        self.starts = f"qafel.{run}.start.*"
        self.broadcasts = f"qafel.{run}.broadcast.*"
        self.config = f"$KV.{BUCKET}.{run}.config"
        self.state = f"$KV.{BUCKET}.{run}.state"
        self.snapshot = f"{run}/snapshot"
        self.copy = f"{run}/copy"
        self.model = f"{run}/model.safetensors"

    def consumer(self, epoch: int) -> str:
        """The consumer of the server of one epoch. A later server deletes it."""
        return f"server-{epoch}"

    def upload(self, client: int) -> str:
        return f"qafel.{self.run}.upload.{client}"

    def receipt(self, client: int) -> str:
        return f"qafel.{self.run}.receipt.{client}"

    def start(self, client: int) -> str:
        return f"qafel.{self.run}.start.{client}"

    def started(self, client: int) -> str:
        return f"qafel.{self.run}.started.{client}"

    def broadcast(self, version: int) -> str:
        return f"qafel.{self.run}.broadcast.{version}"

    def broadcast_object(self, version: int) -> str:
        return f"{self.run}/broadcast-{version}"


@final
@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits on what the broker stores of a run."""

    history: int = 1000
    """Broadcasts in the stream."""
    queue_bytes: int = 4 << 30
    """Waiting uploads of all clients."""
    queue_per_client: int = 128
    """Waiting messages of one client."""
    message_bytes: int = -1
    """The largest upload message, which bounds the space of a client's messages; -1: no limit."""
    replicas: int = 1
    """Copies that a broker cluster keeps."""
    starts: bool = False
    """Whether clients may ask for linked starts."""

    def fitted(self, clients: int, upload_bytes: int, part_bytes: int) -> StreamLimits:
        """Fit the limits to the number of clients and the sizes of uploads and their parts.

        Each client has its own share of the queue, with room for a few uploads. So a client that floods does not block
        the others. The broker reserves no more than all clients can use.
        """
        parts = -(-upload_bytes // part_bytes)
        message_bytes = min(upload_bytes, part_bytes) + UPLOAD_HEADERS_BYTES
        part = self.queue_bytes // (max(1, clients) * message_bytes)
        # Room for a few uploads per client, however many parts each has.
        per_client = max(4 * parts, min(max(self.queue_per_client, 4 * parts), part))
        queue_bytes = min(self.queue_bytes, max(1, clients) * per_client * message_bytes)
        return replace(self, queue_per_client=per_client, message_bytes=message_bytes, queue_bytes=queue_bytes)


def streams(names: Names, limits: StreamLimits) -> list[StreamConfig]:
    """The configuration of a run's streams: broadcasts, uploads and, if clients ask for starts, their requests."""
    starts = [
        StreamConfig(
            name=names.start_stream,
            subjects=[names.starts],
            storage=StorageType.MEMORY,
            num_replicas=limits.replicas,
            # A client that floods replaces its own request. The server takes them at its own pace.
            max_msgs_per_subject=1,
            max_bytes=_STARTS_BYTES,
            max_msg_size=START_BYTES,
            max_age=START_AGE_S,
            discard=DiscardPolicy.OLD,
            duplicate_window=DUPLICATE_WINDOW_S,
            allow_direct=False,
        )
    ]
    return [
        *(starts if limits.starts else ()),
        StreamConfig(
            name=names.broadcast_stream,
            subjects=[names.broadcasts],
            storage=StorageType.FILE,
            num_replicas=limits.replicas,
            max_msgs=limits.history,
            # A broadcast that is sent again replaces itself.
            max_msgs_per_subject=1,
            discard=DiscardPolicy.OLD,
            duplicate_window=DUPLICATE_WINDOW_S,
            allow_direct=True,
        ),
        StreamConfig(
            name=names.upload_stream,
            subjects=[names.uploads],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            num_replicas=limits.replicas,
            max_bytes=limits.queue_bytes,
            # A client that floods fills only its own queue.
            max_msgs_per_subject=limits.queue_per_client,
            max_msg_size=limits.message_bytes,
            discard=DiscardPolicy.NEW,
            discard_new_per_subject=True,
            duplicate_window=DUPLICATE_WINDOW_S,
            # Only the server's consumer reads uploads.
            allow_direct=False,
        ),
    ]
