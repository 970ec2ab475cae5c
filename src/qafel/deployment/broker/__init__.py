"""The broker, a NATS server with JetStream, as this package sets it up.

folder   a secured broker: configuration, keys, certificates, and a folder of credentials for each user
local    a `nats-server` that ends with the process that started it
removal  what a run that is over keeps on a broker, removed
"""
