"""`HeldSplits`: the splits of a run whose rows are in memory."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.splits import Splits


@dataclass(frozen=True)
class HeldSplits:
    """Tables as splits that can be fitted on and encoded, as those of a stream can.

    Attributes:
        config: Of the run.
        splits: The tables.
    """

    config: RunConfig
    splits: Splits

    @property
    def origin(self) -> str:
        """What the user calls the data."""
        return self.splits.origin

    def fit(
        self,
        advance: Callable[[int], None] | None = None,
        on_training: Callable[[pa.Table], None] | None = None,
    ) -> FeatureEncoder:
        """Fits the encoder to the training rows, which are there: `advance` is not told.

        Raises:
            ValueError: A column is missing, or a value does not fit its feature's kind.
        """
        if on_training is not None:
            on_training(self.splits.train)
        return FeatureEncoder.fit(self.config, self.splits.train, self.origin)

    def rows(self, name: str, encoder: FeatureEncoder) -> BatchSource:
        """Returns the split `name`, encoded; training labels must hold both classes.

        Raises:
            ValueError: A value does not fit; names file, column and row.
        """
        table, training = getattr(self.splits, name), name == "train"
        return BatchSource.of_table(table, encoder, self.origin, self.config, training=training)

    def fingerprint(self) -> str:
        """Returns nothing: which rows there are is seen from the tables."""
        return ""
