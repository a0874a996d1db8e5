"""How fast `ptc_kernel` is, against stock ipykernel and raw ZMQ: `python -m tests.benchmarks`.

Machines differ and are never quiet, so read ratios, not milliseconds. The contestants take turns
inside one run, and a ratio is the median of the ratios of neighbours.
"""
