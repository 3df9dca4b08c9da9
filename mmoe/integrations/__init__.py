"""Doors from other libraries."""
