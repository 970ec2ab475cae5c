"""Benchmarks. Each reports ratios within one run, because machines differ and are noisy.

speed         quantizers relative to a copy of the vector; the simulator relative to a bare loop that only trains
training      local training, relative to a plain PyTorch loop
deployment    updates per second, latency and memory with a real broker and processes
load          for `deployment`: prepared uploads, the broker alone, a small client
"""
