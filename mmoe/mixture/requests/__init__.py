"""Rows of requests: what their candidates share is computed once."""
