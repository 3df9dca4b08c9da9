"""Data, from files to batches: readers, splits, encoders, labels, bundled recipes.

Names are imported on first use, so that reading a table does not load torch.
"""

from typing import TYPE_CHECKING

from mmoe.lazy_exports import lazily

if TYPE_CHECKING:
    from mmoe.datasets.features.encoder import FeatureEncoder
    from mmoe.datasets.files.readers import iter_tables, read_table
    from mmoe.datasets.infer.config import infer_config
    from mmoe.datasets.labels.encode import encode_labels
    from mmoe.datasets.recipes import load_recipe, recipe_names
    from mmoe.datasets.rows.batch import Batch
    from mmoe.datasets.rows.batch_source import BatchSource
    from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures, EncodedLabels, join_labels
    from mmoe.datasets.rows.projection import required_columns
    from mmoe.datasets.rows.sources import load_splits, load_test
    from mmoe.datasets.rows.splits import Splits, split_table

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
    "join_labels",
    "load_recipe",
    "load_splits",
    "load_test",
    "read_table",
    "recipe_names",
    "required_columns",
    "split_table",
]


__getattr__ = lazily(
    __name__,
    {
        "features.encoder": ["FeatureEncoder"],
        "files.readers": ["iter_tables", "read_table"],
        "infer.config": ["infer_config"],
        "labels.encode": ["encode_labels"],
        "recipes": ["load_recipe", "recipe_names"],
        "rows.batch": ["Batch"],
        "rows.batch_source": ["BatchSource"],
        "rows.encoded": ["EncodedData", "EncodedFeatures", "EncodedLabels", "join_labels"],
        "rows.projection": ["required_columns"],
        "rows.sources": ["load_splits", "load_test"],
        "rows.splits": ["Splits", "split_table"],
    },
)
