"""What clients send, made by a real `Client`; and a server that takes it and steps when a step is due."""

from __future__ import annotations

from qafel.algorithm import Algorithm, Client, HiddenState, Message, Server
from qafel.params import Vector


def upload_of(
    start: HiddenState,
    trained: Vector,
    algorithm: Algorithm,
    *,
    client: int = 0,
    sequence: int = 0,
    weight: float = 1.0,
    seed: int = 0,
) -> bytes:
    """The frame of a client whose local training, from `start`, ends at `trained`."""
    sender = Client(client, start, algorithm, seed, weight=weight, sequence=sequence)
    return sender.update(lambda *_: trained).upload


def receive(server: Server, upload: bytes, factor: float = 1.0, decoded: Vector | None = None) -> bytes | None:
    """Let the server take an upload, and step if a step is due; return the broadcast, if there is one."""
    accepted = server.receive(Message.from_bytes(upload), factor, decoded)
    return None if accepted.batch is None else server.step(accepted.batch)
