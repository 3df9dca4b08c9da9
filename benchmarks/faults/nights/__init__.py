"""Nights of scoring: healthy ones that must pass, and faults upstream that must not."""
