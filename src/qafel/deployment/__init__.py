"""The same core over NATS JetStream: a server and any number of clients, on any machines.

    names        subjects, streams and objects on the broker; what the broker keeps, and for how long
    keys         where the broker is and who we are: URL, TLS, nkey; signatures on what crosses
    connection   one connection to the broker: stored publishes, reads by subject, objects
    messages     what crosses besides uploads and broadcasts: agreement, run state, receipts, parts
    client/      copies x̂, trains, uploads; follows the broadcasts
    server/      takes uploads, makes them safe, steps, broadcasts
    broker/      sets up the NATS server that both connect to

The broker carries messages and is the only keeper of none: one that lost everything is refilled.
"""

from typing import TYPE_CHECKING

from qafel.lazy import lazily

if TYPE_CHECKING:
    from qafel.deployment.client import ClientReport, ClientSettings
    from qafel.deployment.client.client import run_client
    from qafel.deployment.keys import Access
    from qafel.deployment.server import ServerSettings
    from qafel.deployment.server.server import run_server

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Access": "qafel.deployment.keys:Access",
        "ClientReport": "qafel.deployment.client:ClientReport",
        "ClientSettings": "qafel.deployment.client:ClientSettings",
        "ServerSettings": "qafel.deployment.server:ServerSettings",
        "run_client": "qafel.deployment.client.client:run_client",
        "run_server": "qafel.deployment.server.server:run_server",
    },
)

__all__ = ["Access", "ClientReport", "ClientSettings", "ServerSettings", "run_client", "run_server"]
