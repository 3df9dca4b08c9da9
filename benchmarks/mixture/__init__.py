"""The multi-gate layer against the alternatives: `python -m benchmarks.mixture`."""
