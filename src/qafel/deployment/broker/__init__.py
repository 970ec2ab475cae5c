"""Sets up the broker, a NATS server with JetStream.

folder  a secured broker: configuration, keys, certificates, and credentials for each user
local   a `nats-server` that ends with the process that started it
"""
