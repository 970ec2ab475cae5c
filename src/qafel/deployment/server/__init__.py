"""The server of a run, in data-flow order.

server         from a configuration and a folder to a server; its sessions with the broker
pipeline       takes uploads from the work queue, syncs, broadcasts, acknowledges; writes checkpoints and snapshots
intake         which uploads count, and what the clients of the others are told
ledger         the server's state: checkpoint and journal, synced before anything is acknowledged
announcements  everything the server says: broadcasts, snapshots, receipts, its state
evaluation     the model measured on the way; metrics for Prometheus
"""
