"""Names of everything on the broker, and the limits that its streams are made with.

    qafel.RUN.upload.CLIENT       a client's updates; a work queue, gone once the server has them
    qafel.RUN.broadcast.VERSION   the step from VERSION to VERSION + 1; a bounded history, one subject each
    qafel.RUN.receipt.CLIENT      what became of a client's updates; not stored
    $KV.qafel.RUN.config          what server and clients must agree on
    $KV.qafel.RUN.state           running, finished or stopped; version and digest; renewed every few seconds
    object RUN/snapshot           x̂ every so many steps
    object RUN/copy               a quantized copy of it, if clients may start from one
    object RUN/broadcast-VERSION  a broadcast larger than the broker takes
    object RUN/model.safetensors  the final model

A broadcast's place is its version, not the stream's own count: a client asks for what it misses by name, and a broker
that was wiped and refilled answers the same. Reading by subject needs no consumer, so ten thousand idle clients
cost the broker no state, and the right to read broadcasts is a right to nothing else.
docs/decisions/deployment-reads-by-subject.md
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
"""Of all runs on a broker; the other streams are of one run."""
SIGNATURE: Final = "Qafel-Signature"
PART: Final = "Qafel-Part"
OBJECT: Final = "Qafel-Object"
EPOCH: Final = "Qafel-Epoch"
FAILED: Final = "Qafel-Failed"
"""Marks a message on an upload's subject that says why training failed: how often in a row."""
FOLLOWS: Final = "Qafel-Follows"
"""Of a client with a memory: the number of the update that its memory follows; -1 before the first."""
RECEIVED: Final = "Qafel-Received"
"""Of an upload: the bytes of broadcasts and snapshots that its client received since the one before."""
MALFORMED: Final = "\N{REPLACEMENT CHARACTER}"
"""Under which a message's unreadable headers are noted: a name that no sender can write."""
OVERHEAD_BYTES: Final = 4096
"""What a message's subject and headers may add to its payload."""
UPLOAD_HEADERS_BYTES: Final = 512
"""What an upload's headers may add to the stream's largest message: a signature and the part's name take 160."""
DUPLICATE_WINDOW_S: Final = 0.1
"""The least that NATS takes. It keeps each `Nats-Msg-Id` in memory for so long, and nothing here relies on it."""
_RUN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def number_in(subject: str) -> int | None:
    """The number that a subject ends with: a client's, or a version; None if it does not."""
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
            raise ConfigError(f"a run's name has 1 to 64 letters, digits, - or _; got {run!r}: choose another `run`")
        self.run = run
        self.upload_stream = f"qafel-{run}-upload"
        self.broadcast_stream = f"qafel-{run}-broadcast"
        self.uploads = f"qafel.{run}.upload.*"
        self.broadcasts = f"qafel.{run}.broadcast.*"
        self.config = f"$KV.{BUCKET}.{run}.config"
        self.state = f"$KV.{BUCKET}.{run}.state"
        self.snapshot = f"{run}/snapshot"
        self.copy = f"{run}/copy"
        self.model = f"{run}/model.safetensors"

    def consumer(self, epoch: int) -> str:
        """The consumer of one epoch's server: a later server deletes it, and then nothing is confirmed to this one."""
        return f"server-{epoch}"

    def upload(self, client: int) -> str:
        return f"qafel.{self.run}.upload.{client}"

    def receipt(self, client: int) -> str:
        return f"qafel.{self.run}.receipt.{client}"

    def broadcast(self, version: int) -> str:
        return f"qafel.{self.run}.broadcast.{version}"

    def broadcast_object(self, version: int) -> str:
        return f"{self.run}/broadcast-{version}"


@final
@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What the broker keeps of a run."""

    history: int = 1000
    """Broadcasts."""
    queue_bytes: int = 4 << 30
    """All uploads that wait, together."""
    queue_per_client: int = 128
    """Messages of one client that wait."""
    message_bytes: int = -1
    """The largest upload message, so that a client's messages cannot take more than so many times it; -1: any."""
    replicas: int = 1
    """Copies that a clustered broker keeps."""

    def fitted(self, clients: int, upload_bytes: int, part_bytes: int) -> StreamLimits:
        """The limits for so many clients with uploads of at most so many bytes, in parts of at most `part_bytes`.

        What one client's messages may take is its part of the queue, as far as that holds a few uploads of each: one
        that floods does not fill the others' parts. No more is reserved on the broker than all can take.
        """
        parts = -(-upload_bytes // part_bytes)
        message_bytes = min(upload_bytes, part_bytes) + UPLOAD_HEADERS_BYTES
        part = self.queue_bytes // (max(1, clients) * message_bytes)
        # Room for a few uploads a client, however many messages each comes in.
        per_client = max(4 * parts, min(max(self.queue_per_client, 4 * parts), part))
        queue_bytes = min(self.queue_bytes, max(1, clients) * per_client * message_bytes)
        return replace(self, queue_per_client=per_client, message_bytes=message_bytes, queue_bytes=queue_bytes)


def streams(names: Names, limits: StreamLimits) -> list[StreamConfig]:
    """The configuration of a run's two streams, broadcasts and uploads."""
    return [
        StreamConfig(
            name=names.broadcast_stream,
            subjects=[names.broadcasts],
            storage=StorageType.FILE,
            num_replicas=limits.replicas,
            max_msgs=limits.history,
            # A step that is sent again takes its own place in the history.
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
            # One client that floods fills its own queue, not everyone's.
            max_msgs_per_subject=limits.queue_per_client,
            max_msg_size=limits.message_bytes,
            discard=DiscardPolicy.NEW,
            discard_new_per_subject=True,
            duplicate_window=DUPLICATE_WINDOW_S,
            # Uploads are read by the server's consumer and by no one else.
            allow_direct=False,
        ),
    ]
