"""Experiments: what trains better, with committed results. `benchmarks` says how fast it is."""
