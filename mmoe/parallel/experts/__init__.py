"""Experts spread over ranks: who holds which, and how a row travels to them and back."""
