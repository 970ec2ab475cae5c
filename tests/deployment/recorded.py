"""A deployment's journal against the core: every upload is made again, from the x̂ and the memory of its start."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from qafel.algorithm import Client, HiddenState, Message, Server, State
from qafel.algorithm.catch_up import Links, quantized_copy
from qafel.config import Config
from qafel.deployment.client.state import Memory
from qafel.deployment.server.journal import Entry, JournalReader
from qafel.deployment.server.ledger import Ledger, UploadNote
from qafel.rng import Stream


def check_recorded(state: Path, config: Config, folders: dict[int, Path]) -> int:
    """Replay the journal in `state` undisturbed, training included, and return the number of uploads.

    Each upload's bytes, the server's x and x̂, and the memories in the clients' folders are what the core makes. With
    linked starts, each client must have sent one upload for each start, in order.
    """
    task = config.task.make()
    algorithm = config.algorithm.compose(task.layout)
    clients = task.clients if algorithm.needs.clients else None
    initial = task.initial_model(Stream.named(config.seed, "initial-model"))
    server = Server(initial, algorithm, config.seed, clients=clients)
    held, memories, last = {0: server.hidden_state}, dict[int, State](), dict[int, int]()
    count, batch = 0, None
    links = Links(algorithm.catch_up, config.seed, server.hidden_state) if algorithm.catch_up.link else None
    points = dict[int, HiddenState]()
    for record in JournalReader(state):
        if record.entry is Entry.STEP:
            assert batch is not None
            server.step(batch)
            held[server.version] = server.hidden_state
            continue
        upload = Message.from_bytes(record.data)
        number, count = upload.sender, count + 1
        starts = [held[upload.version]]
        if (quantizer := algorithm.catch_up.quantizer) is not None:
            copy = Message.from_bytes(quantized_copy(starts[0], quantizer, config.seed))
            starts.append(HiddenState.from_snapshot(copy, task.layout.size, algorithm))
        if links is not None:
            point, target = points.get(number), starts[0]
            if point is None or point.version != target.version:
                _, point = links.reply(number, upload.sequence, point.digest if point else 0, target)
            points[number] = point
            starts.append(point)
        for start in starts:
            client = Client(
                number, start, algorithm, config.seed,
                weight=upload.weight, sequence=upload.sequence, memory=memories.get(number),
            )  # fmt: skip
            made = client.update(partial(task.train, number))
            if made.upload == record.data:
                break
        else:
            raise AssertionError(f"upload {upload.sequence} of client {number} is not what the core makes")
        memories[number], last[number] = made.memory, upload.sequence
        applied = UploadNote.read(record, upload)
        batch = server.receive(upload._replace(weight=applied.weight), applied.factor).batch
    with Ledger.open(state, lambda: initial, algorithm, config.seed, size=initial.size, clients=clients) as ledger:
        assert np.array_equal(ledger.server.model, server.model)
        assert ledger.server.hidden_state.digest == server.hidden_state.digest
        run_id = ledger.run_id
    for number, folder in folders.items() if algorithm.needs.client_memory else ():
        kept = Memory.load(folder, run_id, algorithm.client_rule.new_memory(task.layout.size))
        if kept.sent is not None and kept.sent.sequence == last.get(number):  # the client would hear that it counts
            follows, memory = kept.sent.sequence, kept.sent.memory
        else:
            follows, memory = kept.follows, kept.now
        assert follows == last.get(number, -1)
        for name, value in memories.get(number, {}).items():
            assert np.array_equal(memory[name], value), f"the memory of client {number}"
    return count
