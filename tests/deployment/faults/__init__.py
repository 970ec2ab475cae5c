"""A fleet under random faults, and the proof that nothing was lost.

fleet   broker, server and clients as processes, and the claims that everything is held to in the end
kinds   what happens to them, and how often

The tests run a short form. The long form, by hand:

python -m tests.deployment.faults --faults 300 --seed 1
"""
