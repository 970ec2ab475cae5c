"""The same core over NATS JetStream: a server and any number of clients, on any machines.

In the order in which data flows:

    layout          names of streams, subjects, buckets; what the broker keeps and for how long
    access, keys    where the broker is and who we are: URL, TLS, nkey; signatures on what crosses
    broker          one connection: stored publishes, reads by subject, objects
    client          copy x̂, train, upload; follow the broadcasts meanwhile
      client_state    x̂ and the sequence number on disk
      outbox          uploads until the server says that it has them
      follower        x̂ in version order, from live broadcasts, the stream, or a snapshot
    pull            uploads out of the work queue
    assembly        uploads that came in parts
    defence         which uploads are taken, and what the others are told
    truth           the server's state: checkpoint and journal, synced before anything is acknowledged
    server          takes, syncs, broadcasts, acknowledges
      refill          puts back what a broker has lost
      observe         metrics, evaluation, the run's directory
    status          what runs there are
    local_broker, broker_config    a broker for development; the configuration of a secured one

The broker carries messages; it is not trusted with the truth, and a broker that lost everything is refilled.
"""

from qafel.deployment.access import Access
from qafel.deployment.client import ClientReport, ClientSettings, run_client
from qafel.deployment.server import ServerSettings, run_server

__all__ = ["Access", "ClientReport", "ClientSettings", "ServerSettings", "run_client", "run_server"]
