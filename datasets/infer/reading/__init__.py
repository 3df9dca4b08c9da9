"""What the cells of a stranger's column mean, and by which keys a feature reads them."""

from mmoe.datasets.infer.reading.column import read_column

__all__ = ["read_column"]
