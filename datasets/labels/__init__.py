"""Labels, made of columns or expressions, and on which rows they exist.

`encode_labels` makes them, `TrainableCheck` looks at them chunk by chunk, `evaluate` reads one
expression.
"""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.datasets.labels.encode import TrainableCheck, encode_labels, find_groups
    from mmoe.datasets.labels.expressions import evaluate, evaluate_label
    from mmoe.datasets.labels.formula import columns_of, quote

__all__ = [
    "TrainableCheck",
    "columns_of",
    "encode_labels",
    "evaluate",
    "evaluate_label",
    "find_groups",
    "quote",
]

__getattr__ = lazily(
    __name__,
    {
        "encode": ["TrainableCheck", "encode_labels", "find_groups"],
        "expressions": ["evaluate", "evaluate_label"],
        "formula": ["columns_of", "quote"],
    },
)
