"""`HeldSplits`: the splits of a run whose rows are in memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.encode import encode_labels, with_curves
from mmoe.datasets.labels.maturity import Maturity, found_maturity
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedLabels
from mmoe.datasets.rows.locations import check_columns, visible_columns
from mmoe.datasets.rows.projection import column_uses
from mmoe.datasets.rows.splits import Splits


@dataclass(frozen=True)
class HeldSplits:
    """Tables as splits that can be fitted on and encoded, as those of a stream can."""

    config: RunConfig  # of the run
    splits: Splits  # the tables
    maturity: Maturity | None = None  # when the labels were collected; None: no label matures

    def maturing(
        self, maturity: Maturity | None = None, *, leaves_young: bool = False
    ) -> "HeldSplits":
        """Returns the same with when labels were collected: as given, else found.

        Args:
            maturity: Found before.
            leaves_young: As in `Maturity`.

        Raises:
            ValueError: Rows have no times, or none is old enough.
        """
        if not self.config.delayed_tasks:
            return self
        if maturity is None:
            maturity = found_maturity(
                self.config,
                ((table, self.origin) for table in self.tables),
                self.splits.newest,
                leaves_young=leaves_young,
            )
            maturity = with_curves(self.config, maturity, [self.splits.train], self.origin)
        return replace(self, maturity=maturity)

    @property
    def tables(self) -> list[pa.Table]:
        """Training, validation and test rows."""
        return [self.splits.train, self.splits.validation, self.splits.test]

    @property
    def columns(self) -> list[str]:
        """Names of the user's columns that the training rows have."""
        return visible_columns(self.splits.train)

    @property
    def num_rows(self) -> int:
        """Number of rows of the three splits."""
        return sum(table.num_rows for table in self.tables)

    @property
    def origin(self) -> str:
        """Name that the user gives the data."""
        return self.splits.origin

    def fit(
        self,
        advance: Callable[[int], None] | None = None,
        on_training: Callable[[pa.Table], None] | None = None,
        on_labels: Callable[[str, EncodedLabels], None] | None = None,
        on_rows: Callable[[int, pa.Table], None] | None = None,
    ) -> FeatureEncoder:
        """Fits the encoder to the training rows, which are there: two of the others are not told.

        Raises:
            ValueError: A column is missing, or a value does not fit its feature's kind.
        """
        there = self.splits.train.column_names
        uses = {c: use for c, use in column_uses(self.config, there).items() if c in there}
        for name in ("validation", "test"):
            table = getattr(self.splits, name)
            check_columns(uses, visible_columns(table), f"{self.origin}: {name} rows")
        if on_rows is not None:
            for number, table in enumerate(self.tables):
                on_rows(number, table)
        if on_training is not None:
            on_training(self.splits.train)
        train = self.splits.train
        weighing = None if self.maturity is None else self.maturity.weighing()
        labels = encode_labels(self.config, train, self.origin, maturity=weighing)
        return FeatureEncoder.fit(self.config, train, self.origin, self.maturity, labels)

    def rows(self, name: str, encoder: FeatureEncoder) -> BatchSource:
        """Returns the split `name`, encoded; training labels must hold both classes.

        Raises:
            ValueError: A value does not fit; names file, column and row.
        """
        table, training = getattr(self.splits, name), name == "train"
        maturity = self.maturity
        if maturity is not None and training:
            maturity = maturity.weighing()
        encoder = replace(encoder, training="order" if training else None)
        return BatchSource.of_table(
            table, encoder, self.origin, self.config, training=training, maturity=maturity
        )

    def fingerprint(self) -> str:
        """Returns nothing: which rows there are is seen from the tables."""
        return ""
