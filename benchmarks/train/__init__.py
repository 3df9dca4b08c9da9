"""From Parquet to updated weights, against the alternatives: `python -m benchmarks.train`."""
