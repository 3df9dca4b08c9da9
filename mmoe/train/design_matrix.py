"""The columns that a wide part weighs, as sparse and dense matrices of some encoded rows."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from mmoe.config import FeatureSpec
from mmoe.datasets.features.ragged import RaggedRows
from mmoe.datasets.rows.encoded import EncodedFeatures
from mmoe.datasets.values.arrow import offsets_of
from mmoe.models.wide import WidePart

# A column whose deviation is a smaller part of its mean is a constant and what float32 rounds away
_ROUNDING = 1e-6


def id_columns(wide: WidePart, features: EncodedFeatures, rows_N: np.ndarray) -> sparse.csr_array:
    """Returns what multiplies each weight of `wide.ids_RT`, [N, R]: ids pooled as there.

    Args:
        wide: Knows the features and where the rows of their tables begin.
        features: Encoded rows.
        rows_N: Numbers of those that are wanted.
    """
    features, rows_N = all_columns(features, rows_N)
    singles = features.ids_NC.shape[1]
    first_C = np.array(wide.first_rows, np.int64)
    read_C = np.flatnonzero(wide.read_C[:singles])
    # Columns are counted in 32 bits where that is enough: products take half the memory
    index = np.int32 if len(wide.ids_RT) < 2**31 else np.int64
    ids_NC = (features.ids_NC[rows_N] + first_C[:singles]).astype(index)[:, read_C]
    shape = len(rows_N), len(wide.ids_RT)
    starts = np.arange(len(rows_N) + 1, dtype=np.int64) * len(read_C)
    found = sparse.csr_array((np.ones(ids_NC.size), ids_NC.ravel(), starts), shape=shape)
    for number, feature in enumerate(wide.features[singles:]):
        if not wide.read_C[singles + number]:
            continue
        values, offsets = features.lists[number]
        weights = features.list_weights[number] if features.list_weights else None
        place = RaggedRows(offsets, rows_N, len(rows_N))
        ids_V = (place.ids(values) + first_C[singles + number]).astype(index)
        block = (_pooling(feature, place, weights), ids_V, offsets_of(place.lengths_B))
        found = found + sparse.csr_array(block, shape=shape)
    return sparse.csr_array(found)


def _pooling(feature: FeatureSpec, place: RaggedRows, weights: np.ndarray | None) -> np.ndarray:
    """What multiplies each id's weight."""
    if feature.weighted:
        return place.weights(weights).astype(np.float64)
    if feature.pooling != "sum":  # of events as well
        return np.repeat(1 / np.maximum(place.lengths_B, 1), place.lengths_B)
    return np.ones(place.total)


def numbers_a_row(features: EncodedFeatures) -> float:
    """Returns how many numbers a row of both matrices has, on average."""
    of_lists = sum(len(values) for values, _ in features.lists) / max(len(features), 1)
    of_requests = 0 if features.requests is None else numbers_a_row(features.requests.features)
    return features.ids_NC.shape[1] + features.dense_NF.shape[1] + of_lists + of_requests


def all_columns(
    features: EncodedFeatures, rows_N: np.ndarray
) -> tuple[EncodedFeatures, np.ndarray]:
    """Returns features with the columns of requests beside those of rows, and where the rows are.

    Args:
        features: Encoded rows.
        rows_N: Numbers of those that are wanted: of rows with requests no others are copied.
    """
    if features.requests is None:
        return features, rows_N
    return features.take(rows_N).flat(), np.arange(len(rows_N))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of ids that occur in some rows, and how dense ones are scaled.

    Attributes:
        used_U: Rows of the tables that occur, rising.
        place_R: For each row of the tables its place among them; −1: it does not occur.
        mean_F: Of the dense columns.
        deviation_F: Likewise; 1 of a constant.
    """

    used_U: np.ndarray
    place_R: np.ndarray
    mean_F: np.ndarray
    deviation_F: np.ndarray

    @classmethod
    def of(cls, ids: sparse.csr_array, dense_NF: np.ndarray) -> "Columns":
        """Looks at all rows."""
        occurs_R = np.zeros(ids.shape[1], bool)  # type: ignore[index]  # untyped in SciPy
        occurs_R[ids.indices] = True
        mean_F, deviation_F = dense_NF.mean(axis=0, dtype=np.float64), np.ones(dense_NF.shape[1])
        for f in range(dense_NF.shape[1]):  # one at a time: in float64 all take twice the memory
            deviation = float(dense_NF[:, f].astype(np.float64).std())
            if deviation > _ROUNDING * abs(mean_F[f]):
                deviation_F[f] = deviation
        return cls(
            used_U=np.flatnonzero(occurs_R),
            place_R=np.where(occurs_R, np.cumsum(occurs_R) - 1, -1).astype(np.int32),
            mean_F=mean_F,
            deviation_F=deviation_F,
        )

    def matrix(self, ids: sparse.csr_array, dense_NF: np.ndarray) -> sparse.csr_array:
        """Returns both side by side, [N, U + F]; ids that did not occur count as nothing."""
        shape = len(ids.indptr) - 1, len(self.used_U)
        places = self.place_R[ids.indices]
        data = np.where(places < 0, 0.0, ids.data)
        # Indices of one width, and of 32 bits where that is enough
        starts = ids.indptr.astype(np.int32 if ids.nnz < 2**31 else np.int64)
        entries = (data, np.maximum(places, 0).astype(starts.dtype), starts)
        found = sparse.csr_array(entries, shape=shape)
        if not dense_NF.shape[1]:
            return found
        scaled_NF = (dense_NF - self.mean_F) / self.deviation_F
        return sparse.csr_array(sparse.hstack([found, sparse.csr_array(scaled_NF)], format="csr"))

    def groups(self, wide: WidePart) -> np.ndarray:
        """Returns a number for each column of `matrix`: ids' is their table's, dense ones' own."""
        starts = np.unique(wide.first_rows)
        of_ids_U = np.searchsorted(starts, self.used_U, side="right") - 1
        return np.concatenate([of_ids_U, len(starts) + np.arange(len(self.mean_F))])

    def unscaled(
        self, weights: np.ndarray, bias: float, rows: int
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Turns weights of `matrix` into those of all rows of the tables and of raw columns."""
        ids_R = np.zeros(rows)
        ids_R[self.used_U] = weights[: len(self.used_U)]
        dense_F = weights[len(self.used_U) :] / self.deviation_F
        return ids_R, dense_F, bias - float(dense_F @ self.mean_F)
