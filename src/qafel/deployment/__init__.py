"""The same core over NATS JetStream: a server and any number of clients, on any machines.

In the order in which data flows:

    layout          names of streams, subjects, buckets; what the broker keeps and for how long
    access, keys    where the broker is and who we are: URL, TLS, nkey; signatures on what crosses
    connection      opened patiently, closed with all that belongs to it
    broker          one connection: stored publishes, reads by subject, objects
    client          from a run's name and a folder to a client
      participant     copy x̂, train, upload; follow the broadcasts meanwhile
      client_state    x̂ and the sequence number on disk
      worker          training in a thread or a process
      outbox          uploads until the server says that it has them
      follower        x̂ in version order, from live broadcasts, the stream, or a snapshot
    server          from a configuration and a folder to a server
      serving         its sessions with the broker
      pipeline        takes, syncs, broadcasts, acknowledges
      pull            uploads out of the work queue
      intake          from messages to the truth, and to receipts
      assembly        uploads that came in parts
      defence         which uploads are taken, and what the others are told
      truth           checkpoint and journal, synced before anything is acknowledged
      course          whether the run goes on
      refill          everything the server says; puts back what a broker has lost
      upkeep          checkpoints and snapshots in the background
      heartbeat       the state that it renews
      observe         metrics, evaluation; results: the run's directory
    settings        how both work, beside what the recipe says
    status          what runs there are
    local_broker    a broker for development
    broker_config, broker_folder, certificates    a secured one
    together        several works until one of them ends

The broker carries messages; it is not trusted with the truth, and a broker that lost everything is refilled.
"""

from qafel.deployment.client.client import ClientReport, run_client
from qafel.deployment.keys import Access
from qafel.deployment.server.server import run_server
from qafel.deployment.settings import ClientSettings, ServerSettings

__all__ = ["Access", "ClientReport", "ClientSettings", "ServerSettings", "run_client", "run_server"]
