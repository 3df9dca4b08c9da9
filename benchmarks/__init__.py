"""Measurements and the demo; outside the library and its tests."""
