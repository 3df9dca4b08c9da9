"""Rows: where they come from, how they are split, and batches of them."""
