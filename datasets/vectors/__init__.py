"""Vectors from elsewhere, with which rows of a table of ids begin."""
