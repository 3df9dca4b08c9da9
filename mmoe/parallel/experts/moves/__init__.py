"""Experts that change ranks: what they computed, where they should be, and how they get there."""
