"""Encoded rows in memory, and batches cut out of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmoe.datasets.features.ragged import RaggedRows
from mmoe.datasets.rows.batch import Batch


@dataclass(frozen=True, kw_only=True)
class EncodedFeatures:
    """Network inputs of N rows.

    Attributes:
        dense_NF: float32.
        ids_NC: int32 (ids are below 2³¹; batches hold int64), row-major, one column for each
            single-id feature; int64 where one of them has encoding managed.
        lists: For each list feature its ids, int32 [V] (int64 with encoding managed), and offsets,
            int64 [N + 1].
        list_weights: For each list feature the weights of its ids, float32 [V], or None; empty
            where no feature has weights.
    """

    dense_NF: np.ndarray
    ids_NC: np.ndarray
    lists: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    list_weights: Sequence[np.ndarray | None] = ()

    def __len__(self) -> int:
        return len(self.dense_NF)


@dataclass(frozen=True, kw_only=True)
class EncodedLabels:
    """Labels of N rows and T tasks.

    Attributes:
        labels_NT: float32, 0 where unobserved.
        observed_NT: bool.
        weights_NT: float32, 1 without a weight column.
        groups_N: int64 code of each row's GAUC group, −1 where the key is missing; None without
            `data.group_column`.
    """

    labels_NT: np.ndarray
    observed_NT: np.ndarray
    weights_NT: np.ndarray
    groups_N: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels_NT)

    def rows(self, start: int, stop: int) -> "EncodedLabels":
        """Returns rows [start, stop), not copied."""
        groups_N = None if self.groups_N is None else self.groups_N[start:stop]
        return EncodedLabels(
            labels_NT=self.labels_NT[start:stop],
            observed_NT=self.observed_NT[start:stop],
            weights_NT=self.weights_NT[start:stop],
            groups_N=groups_N,
        )


@dataclass(frozen=True, kw_only=True)
class EncodedData:
    """Features of N rows and, unless only scores are wanted, their labels."""

    features: EncodedFeatures
    labels: EncodedLabels | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.features):
            raise ValueError(
                f"labels: expected {len(self.features)} rows, as many as features, "
                f"got {len(self.labels)}; encode both from one table"
            )

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, start: int, stop: int) -> "EncodedData":
        """Returns rows [start, stop), not copied."""
        features, labels = self.features, self.labels
        lists = [
            (values[offsets[start] : offsets[stop]], offsets[start : stop + 1] - offsets[start])
            for values, offsets in features.lists
        ]
        list_weights = [
            None if weights is None else weights[offsets[start] : offsets[stop]]
            for weights, (_, offsets) in zip(features.list_weights, features.lists, strict=False)
        ]
        cut = EncodedFeatures(
            dense_NF=features.dense_NF[start:stop],
            ids_NC=features.ids_NC[start:stop],
            lists=lists,
            list_weights=list_weights,
        )
        return EncodedData(
            features=cut, labels=None if labels is None else labels.rows(start, stop)
        )

    def batch(self, rows: np.ndarray | slice, pad_to: int | None = None) -> Batch:
        """Makes a batch of the given rows, in that order.

        Args:
            rows: int [B] row numbers, or a slice.
            pad_to: Height of the batch; rows beyond those given have missing ids and no labels.

        Raises:
            ValueError: More rows than `pad_to`.
        """
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows_B = np.asarray(rows, np.int64)
        height = len(rows_B) if pad_to is None else pad_to
        if height < len(rows_B):
            raise ValueError(
                f"pad_to: expected at least {len(rows_B)}, the rows given, got {pad_to}"
            )
        values, lengths, id_weights = self._ids(rows_B, height)
        of_labels = (None, None, None)
        if self.labels is not None:
            arrays = (self.labels.labels_NT, self.labels.observed_NT, self.labels.weights_NT)
            of_labels = tuple(torch.from_numpy(_gather(array, rows_B, height)) for array in arrays)
        return Batch(
            dense_BF=torch.from_numpy(_gather(self.features.dense_NF, rows_B, height)),
            values=torch.from_numpy(values),
            lengths_CB=torch.from_numpy(lengths),
            labels_BT=of_labels[0],
            observed_BT=of_labels[1],
            weights_BT=of_labels[2],
            num_rows=len(rows_B),
            id_weights=None if id_weights is None else torch.from_numpy(id_weights),
        )

    def _ids(
        self, rows_B: np.ndarray, height: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Ids, lengths and, where a feature has them, weights of all features."""
        # Gather rows first (contiguous memory), then turn: the other way round misses the cache.
        single_BC = _gather(self.features.ids_NC, rows_B, height)
        single = single_BC.T.astype(np.int64, order="C").reshape(-1)
        ones = np.ones(single_BC.size, np.int32)
        if not self.features.lists:
            return single, ones, None
        places = [RaggedRows(offsets, rows_B, height) for _, offsets in self.features.lists]
        pairs = list(zip(places, self.features.lists, strict=True))
        values = np.concatenate([single, *(place.ids(values) for place, (values, _) in pairs)])
        lengths = np.concatenate([ones, *(place.lengths_B for place in places)])
        if not self.features.list_weights:
            return values, lengths, None
        pairs = zip(places, self.features.list_weights, strict=True)
        weights = [np.ones(single.size, np.float32), *(place.weights(w) for place, w in pairs)]
        return values, lengths, np.concatenate(weights)


def join(chunks: list[EncodedData]) -> EncodedData:
    """Joins rows in order; takes them away from the list meanwhile, to save memory."""
    if len(chunks) == 1:
        return chunks.pop()
    features = [chunk.features for chunk in chunks]
    labels = [chunk.labels for chunk in chunks if chunk.labels is not None]
    chunks.clear()
    return EncodedData(
        features=_join_features(features), labels=join_labels(labels) if labels else None
    )


def in_chunks(chunks: Iterable[EncodedData], size: int) -> Iterator[EncodedData]:
    """Yields the same rows in chunks of `size`, the last one with what is left."""
    held: list[EncodedData] = []
    rows = 0
    for chunk in chunks:
        held.append(chunk)
        rows += len(chunk)
        if rows < size:
            continue
        data = join(held)
        for start in range(0, rows - size + 1, size):
            yield data.rows(start, start + size)
        rest = rows % size
        held = [data.rows(rows - rest, rows)] if rest else []
        rows = rest
    if held:
        yield join(held)


def join_labels(chunks: Sequence[EncodedLabels]) -> EncodedLabels:
    """Joins labels in order; groups keep their codes."""
    groups = [chunk.groups_N for chunk in chunks if chunk.groups_N is not None]
    return EncodedLabels(
        labels_NT=np.concatenate([chunk.labels_NT for chunk in chunks]),
        observed_NT=np.concatenate([chunk.observed_NT for chunk in chunks]),
        weights_NT=np.concatenate([chunk.weights_NT for chunk in chunks]),
        groups_N=np.concatenate(groups) if groups else None,
    )


def _join_features(chunks: Sequence[EncodedFeatures]) -> EncodedFeatures:
    lists = []
    for pairs in zip(*(chunk.lists for chunk in chunks), strict=True):
        lengths = np.concatenate([np.diff(offsets) for _, offsets in pairs])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        lists.append((np.concatenate([values for values, _ in pairs]), offsets))
    weights = zip(*(chunk.list_weights for chunk in chunks), strict=True)
    return EncodedFeatures(
        dense_NF=np.concatenate([chunk.dense_NF for chunk in chunks]),
        ids_NC=np.concatenate([chunk.ids_NC for chunk in chunks]),
        lists=lists,
        list_weights=[_joined_weights(of_feature) for of_feature in weights],
    )


def _joined_weights(chunks: Sequence[np.ndarray | None]) -> np.ndarray | None:
    present = [chunk for chunk in chunks if chunk is not None]
    return np.concatenate(present) if present else None


def _gather(source_NX: np.ndarray, rows_B: np.ndarray, height: int) -> np.ndarray:
    """Rows of a matrix, zeros (missing, unobserved) below them.

    NumPy on one thread: as quick as torch's gather here, and it leaves the cores to the network.
    """
    if height == len(rows_B):
        return source_NX.take(rows_B, axis=0)
    out = np.zeros((height, source_NX.shape[1]), source_NX.dtype)
    out[: len(rows_B)] = source_NX.take(rows_B, axis=0)
    return out
