"""Batches of rows of requests: what is read, encoded and computed once for all candidates."""
