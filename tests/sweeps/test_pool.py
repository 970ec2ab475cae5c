"""A process that dies takes at most its own run with it, whenever it dies."""

from __future__ import annotations

import os
import struct

from qafel import sweeps as pools
from qafel.config import load_recipe
from qafel.sweeps import News, Pool
from qafel.sweeps.run import Order


def serve_one(connection):
    """Perform one order, and die."""
    number, _ = connection.recv()
    connection.send(News(number, status="finished"))


def talk(connection):
    """Tell something of each order, then that it is done."""
    while True:
        number, _ = connection.recv()
        connection.send(News(number, note="by the way"))
        connection.send(News(number, status="finished"))


def die_in_a_message(connection):
    """Die three bytes into a message of a hundred."""
    connection.recv()
    os.write(connection.fileno(), struct.pack("!i", 100) + b"abc")
    os._exit(3)


def orders(count, path):
    return [Order(load_recipe("mushrooms-fedbuff", (), seed), path / str(seed)) for seed in range(count)]


def test_a_process_that_dies_idle_is_replaced_and_its_next_order_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "serve", serve_one)
    heard = []
    with Pool(1) as pool:
        for news in pool.perform(orders(2, tmp_path)):
            heard.append(news)
            pool._workers[0].process.join()
    assert heard == [News(number, status="finished") for number in range(2)]


def test_a_note_does_not_end_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "serve", talk)
    with Pool(1) as pool:
        heard = list(pool.perform(orders(2, tmp_path)))
    assert heard == [
        news for number in range(2) for news in (News(number, note="by the way"), News(number, status="finished"))
    ]


def test_a_message_cut_off_in_the_middle_fails_only_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "serve", die_in_a_message)
    with Pool(1) as pool:
        heard = list(pool.perform(orders(2, tmp_path)))
    assert heard == [News(number, failure="its process ended with exit code 3") for number in range(2)]
