"""A sample of rows, the same ones whatever the chunks and the ranks that read them."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from mmoe.config import RunConfig
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.labels.encode import encode_labels
from mmoe.datasets.labels.maturity import Maturity
from mmoe.datasets.labels.targets import with_targets
from mmoe.datasets.rows.batch_source import BatchSource
from mmoe.datasets.rows.encoded import EncodedData, EncodedFeatures, join
from mmoe.datasets.values.hashing import mix64
from mmoe.parallel import to_first

# Rows that alarms look at: an AUC of 0.99 and shares of a percent are then known well enough, and
# thirty columns take about a second
MOST_ROWS = 100_000
# Cells, so that a thousand columns take no longer
_MOST_CELLS = 4_000_000
_FEWEST_ROWS = 5_000
_SEED = 1  # of the hash: rows of the training, validation and test splits are drawn by another


def rows_to_look_at(columns: int) -> int:
    """Returns the size of a sample of so many columns."""
    return int(np.clip(_MOST_CELLS // max(columns, 1), _FEWEST_ROWS, MOST_ROWS))


def sampled(first: int, count: int, total: int, most: int = MOST_ROWS) -> np.ndarray:
    """Returns which of `count` rows from number `first` on are in the sample, bool.

    Args:
        first: Number of the first row.
        count: Rows.
        total: Rows there are in all.
        most: About how many are sampled; all where there are no more.

    Example:
        >>> sampled(0, 5, total=5).all(), int(sampled(0, 100_000, total=100_000, most=1_000).sum())
        (np.True_, 960)
    """
    if total <= most:
        return np.ones(count, bool)
    rows = np.arange(first, first + count, dtype=np.uint64)
    return mix64(rows, _SEED) < np.uint64(2**64 // total * most)


class SampledRows:
    """Sampled rows of a split, taken out of its chunks as they pass.

    Args:
        total: Rows of the split.
        first: Number of the first row that comes here.
        most: About how many are sampled.
    """

    def __init__(self, total: int, first: int = 0, most: int = MOST_ROWS) -> None:
        self.total, self.next, self.most = total, first, most
        self._chunks: list[EncodedData] = []

    def add(self, chunk: EncodedData) -> None:
        """Takes its rows of the next chunk."""
        mine_N = sampled(self.next, len(chunk), self.total, self.most)
        self.next += len(chunk)
        self._chunks.append(EncodedData(features=taken(chunk.features, mine_N)))

    def gathered(self) -> EncodedFeatures:
        """Returns on rank 0 the rows of all ranks, in order; every rank has to call it."""
        mine = join(self._chunks).features
        of_ranks = [EncodedData(features=features) for features in to_first(mine)]
        return join(of_ranks).features

    def of(self, rows_NX: np.ndarray) -> np.ndarray:
        """Returns the sampled rows of an array that has all `total` of them."""
        return rows_NX[sampled(0, self.total, self.total, self.most)]


class SampledTraining:
    """Sampled training rows: of a stream taken while its encoder is fitted, else from memory.

    Args:
        config: Of the run.
        origin: What the user calls the data.
        total: Rows of the stream.
        maturity: Of the run's labels.
    """

    def __init__(
        self, config: RunConfig, origin: str, total: int, maturity: Maturity | None = None
    ) -> None:
        self.config, self.origin, self.total = config, origin, total
        self.maturity = maturity
        self.most = rows_to_look_at(len(config.features))
        self.next = 0
        self._tables: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        """Takes its rows of the next table of a stream."""
        mine_N = sampled(self.next, table.num_rows, self.total, self.most)
        self.next += table.num_rows
        # A filtered table is a copy: it does not hold the chunk that it comes from
        self._tables.append(table.filter(pa.array(mine_N)))

    def rows(self, train: BatchSource, encoder: FeatureEncoder) -> EncodedData | None:
        """Returns the sample, encoded; None of a stream that did not pass by."""
        if train.held is not None:
            mine_N = sampled(0, len(train), len(train), self.most)
            labels = train.held.labels
            return EncodedData(
                features=taken(train.held.features, mine_N),
                labels=None if labels is None else labels.taken(mine_N).mature(),
            )
        if not self._tables:
            return None
        table = pa.concat_tables(self._tables)
        self._tables.clear()
        features = encoder.encode(table, self.origin)
        labels = encode_labels(self.config, table, self.origin, maturity=self.maturity)
        return EncodedData(features=features, labels=with_targets(labels, features.links))


def taken(features: EncodedFeatures, mine_N: np.ndarray) -> EncodedFeatures:
    """Returns some rows without weights of ids: all of them as they are, else copied."""
    if mine_N.all():
        return replace(features, list_weights=())
    return replace(features.take(np.flatnonzero(mine_N)), list_weights=())
