"""Rows that are read while they are trained on, in memory that the config bounds.

`open_stream` finds the files and splits them, `StreamSplits.fit` learns the encoder in one pass,
and each split is a `BatchSource` whose rows `StreamRows` reads and encodes while they are used.
"""

from mmoe.datasets.rows.order import describe_lanes
from mmoe.datasets.stream.open import StreamRows, StreamSplits, every_row, open_stream, wants_stream

__all__ = [
    "StreamRows",
    "StreamSplits",
    "describe_lanes",
    "every_row",
    "open_stream",
    "wants_stream",
]
