"""The paper's figures and tables from real runs, and each published claim next to its verdict.

`python -m reproduction list` lists the entries. The package is a client of `qafel`: it imports only documented names.

statistics   intervals over paired seeds, and the decisions that they allow
comparison   an entry's runs and their figures; methods compared on equal seeds
display      tables, and panels that several figures share
published    the published configurations, composed from recipes and settings
store        finished runs, also as files of a few kB
entry        an entry: its runs, claims and verdicts
convex, rate, pareto, pareto_cifar10, downlink, neural, bits, methods    the entries
outputs      the files of an entry
document     docs/reproduction.md and docs/reproduction-details.md
"""
