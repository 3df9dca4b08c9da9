"""Broken inputs of `mmoe score`: each ends harmlessly or in one line, and nothing half-written."""
