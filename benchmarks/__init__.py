"""Measurements and the demo; outside the library and its tests."""

import sys

import mmoe

# Every `python -m benchmarks.NAME`, and each of its workers, comes by here before it imports torch
if "torch" not in sys.modules:
    mmoe.tune_process()
