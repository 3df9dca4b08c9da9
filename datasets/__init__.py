"""From files to batches: readers, splits, encoders, labels, bundled recipes.

Names are imported on first use, so that reading a table does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmoe.datasets.batch import Batch
    from mmoe.datasets.encoded import EncodedData, EncodedFeatures, EncodedLabels
    from mmoe.datasets.encoder import FeatureEncoder
    from mmoe.datasets.inspect import infer_config
    from mmoe.datasets.labels import encode_labels
    from mmoe.datasets.projection import required_columns
    from mmoe.datasets.readers import iter_tables, read_table
    from mmoe.datasets.recipes import load_recipe, recipe_names
    from mmoe.datasets.sources import load_splits, load_test
    from mmoe.datasets.splits import Splits, split_table

_HOMES = {
    "Batch": "batch",
    "EncodedData": "encoded",
    "EncodedFeatures": "encoded",
    "EncodedLabels": "encoded",
    "FeatureEncoder": "encoder",
    "Splits": "splits",
    "encode_labels": "labels",
    "infer_config": "inspect",
    "iter_tables": "readers",
    "load_recipe": "recipes",
    "load_splits": "sources",
    "load_test": "sources",
    "read_table": "readers",
    "recipe_names": "recipes",
    "required_columns": "projection",
    "split_table": "splits",
}

__all__ = [
    "Batch",
    "EncodedData",
    "EncodedFeatures",
    "EncodedLabels",
    "FeatureEncoder",
    "Splits",
    "encode_labels",
    "infer_config",
    "iter_tables",
    "load_recipe",
    "load_splits",
    "load_test",
    "read_table",
    "recipe_names",
    "required_columns",
    "split_table",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"mmoe.datasets.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mmoe.datasets' has no attribute {name!r}")
