"""From a config to encoded splits."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.encoded import EncodedData
from mmoe.datasets.encoder import FeatureEncoder
from mmoe.datasets.labels import encode_labels
from mmoe.datasets.sources import load_splits
from mmoe.datasets.splits import Splits


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """The three splits as arrays, and the encoder that was fitted on the first."""

    encoder: FeatureEncoder
    train: EncodedData
    validation: EncodedData
    test: EncodedData
    oracle: dict[str, np.ndarray] | None
    origin: str


def prepare(
    config: RunConfig,
    *,
    encoder: FeatureEncoder | None = None,
    splits: Splits | None = None,
) -> PreparedData:
    """Reads, splits and encodes the data of a run.

    Args:
        config: Of the run.
        encoder: Of an interrupted run; None fits one on the training split.
        splits: Tables that are in memory already.

    Raises:
        ValueError: Anything is wrong with the data; the message names file, column and row.
    """
    splits = splits or load_splits(config)
    encoder = encoder or FeatureEncoder.fit(config, splits.train, splits.origin)
    train = encode(config, encoder, splits.train, splits.origin, training=True)
    return PreparedData(
        encoder=encoder,
        train=train,
        validation=encode(config, encoder, splits.validation, splits.origin),
        test=encode(config, encoder, splits.test, splits.origin),
        oracle=splits.oracle,
        origin=splits.origin,
    )


def encode(
    config: RunConfig,
    encoder: FeatureEncoder,
    table: pa.Table,
    origin: str,
    *,
    training: bool = False,
) -> EncodedData:
    """Features and labels of one table; rows that train must hold both classes of every label."""
    return EncodedData(
        features=encoder.encode(table, origin),
        labels=encode_labels(config, table, origin, training=training),
    )
