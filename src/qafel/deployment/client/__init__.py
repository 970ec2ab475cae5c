"""A client of a run, in data-flow order.

client    from a run's name and a folder to a client: copy x̂, train, upload
training  the local training of a task, in a thread or a process
outbox    uploads until the server says that it has them; what the client keeps on disk
follower  x̂ in version order, from live broadcasts, the stream, or a snapshot
"""
