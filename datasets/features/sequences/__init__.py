"""Sequences: their events, and how long ago they were."""
