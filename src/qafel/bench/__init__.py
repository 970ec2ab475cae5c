"""Every benchmark. Each reports ratios within one run, because machines differ and are noisy.

quantizers              time of encode and decode over that of copying the vector
simulator               updates a second, over those of a bare loop that only trains
training                a client's training, over that of a plain PyTorch loop
deployment              updates a second, latency and memory with a real broker and processes
load                    for `deployment`: uploads made beforehand, the broker alone, a small client
"""
