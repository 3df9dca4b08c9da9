"""From files to batches: readers, splits, encoders, labels, bundled recipes.

Names are imported on first use, so that reading a table does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmoe.datasets.features.encoder import FeatureEncoder
    from mmoe.datasets.files.readers import iter_tables, read_table
    from mmoe.datasets.infer.config import infer_config
    from mmoe.datasets.labels.encode import encode_labels
    from mmoe.datasets.recipes import load_recipe, recipe_names
    from mmoe.datasets.rows.batch import Batch
    from mmoe.datasets.rows.batch_source import BatchSource
    from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures, EncodedLabels
    from mmoe.datasets.rows.projection import required_columns
    from mmoe.datasets.rows.sources import load_splits, load_test
    from mmoe.datasets.rows.splits import Splits, split_table

_HOMES = {
    "Batch": "rows.batch",
    "BatchSource": "rows.batch_source",
    "EncodedData": "rows.encoded",
    "EncodedFeatures": "rows.encoded",
    "EncodedLabels": "rows.encoded",
    "FeatureEncoder": "features.encoder",
    "Splits": "rows.splits",
    "encode_labels": "labels.encode",
    "infer_config": "infer.config",
    "iter_tables": "files.readers",
    "load_recipe": "recipes",
    "load_splits": "rows.sources",
    "load_test": "rows.sources",
    "read_table": "files.readers",
    "recipe_names": "recipes",
    "required_columns": "rows.projection",
    "split_table": "rows.splits",
}

__all__ = [
    "Batch",
    "BatchSource",
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
