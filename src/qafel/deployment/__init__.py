"""The same core over NATS JetStream: a server and any number of clients, on any machines.

names       subjects, streams and objects on the broker, and their limits
keys        credentials and signatures: URL, TLS, nkeys
transport   a NATS connection that is safe against hostile peers, and tools for asyncio tasks
connection  a connection to the broker
broker      sets up the NATS server
messages    agreement, run state, receipts, parts of large uploads
status      the status of a broker's runs; removal of a run
client/     copies x̂, trains, uploads, follows the broadcasts
server/     receives uploads, makes them safe, steps, broadcasts

The broker stores no message that exists nowhere else: the server refills a broker that lost everything.
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
