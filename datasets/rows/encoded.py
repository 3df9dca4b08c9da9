"""Encoded rows in memory, and batches cut out of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from mmoe.datasets.rows.batch import Batch
from mmoe.datasets.rows.batch_ids import gather, ids_of_batch
from mmoe.datasets.rows.encoded_features import (
    EncodedFeatures,
    join_features,
    joined_arrays,
)
from mmoe.datasets.values.first_seen import first_seen


@dataclass(frozen=True, kw_only=True)
class EncodedLabels:
    """Labels of N rows and T tasks.

    Attributes:
        labels_NT: float32, 0 where unobserved.
        observed_NT: bool.
        weights_NT: float32, 1 without a weight column.
        groups_N: int64 code of each row's GAUC group, −1 where the key is missing; None without
            `data.group_column`.
        young_NT: bool, labels that exist and may still change, since their row is younger than the
            task's `matures_after`: unobserved, but where they train with `immature: weight`, when
            an event's label is 1 or more; None where no task has a window.
        targets_NT: float32, what tasks are trained on, where that is not their labels (kind d2q).
        compared_N: Likewise of the group whose rows a loss compares; None: none does.
        domains_N: As of the features.
    """

    labels_NT: np.ndarray
    observed_NT: np.ndarray
    weights_NT: np.ndarray
    groups_N: np.ndarray | None = None
    young_NT: np.ndarray | None = None
    targets_NT: np.ndarray | None = None
    compared_N: np.ndarray | None = None
    domains_N: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels_NT)

    def rows(self, start: int, stop: int) -> "EncodedLabels":
        """Returns rows [start, stop), not copied."""
        return self.taken(slice(start, stop))

    def taken(self, mine_N: np.ndarray | slice) -> "EncodedLabels":
        """Returns some rows.

        Args:
            mine_N: Bool, or row numbers; they are copied then.
        """
        arrays: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        taken: dict[str, Any] = {
            name: None if array is None else array[mine_N] for name, array in arrays.items()
        }
        return EncodedLabels(**taken)

    def mature(self) -> "EncodedLabels":
        """Returns the same labels without those that may still change."""
        if self.young_NT is None or not (self.young_NT & self.observed_NT).any():
            return self
        observed_NT = self.observed_NT & ~self.young_NT
        labels_NT = np.where(observed_NT, self.labels_NT, np.float32(0))
        return replace(self, labels_NT=labels_NT, observed_NT=observed_NT)


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
        labels = None if self.labels is None else self.labels.rows(start, stop)
        return EncodedData(features=self.features.rows(start, stop), labels=labels)

    def batch(
        self,
        rows: np.ndarray | slice,
        pad_to: int | None = None,
        *,
        groups_B: np.ndarray | None = None,
    ) -> Batch:
        """Makes a batch of the given rows, in that order.

        Args:
            rows: int [B] row numbers, or a slice.
            pad_to: Height of the batch; rows beyond those given have missing ids and no labels.
            groups_B: Number of each row's group in the batch, where a loss compares rows.

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
        places_Q, requests_B, dense_QF = self._requests(rows_B, height)
        values, lengths, id_weights = ids_of_batch(self.features, rows_B, height, places_Q)
        of_labels = (None, None, None)
        if self.labels is not None:
            targets_NT = self.labels.targets_NT
            trained_NT = self.labels.labels_NT if targets_NT is None else targets_NT
            arrays = (trained_NT, self.labels.observed_NT, self.labels.weights_NT)
            of_labels = tuple(torch.from_numpy(gather(array, rows_B, height)) for array in arrays)
        return Batch(
            dense_BF=torch.from_numpy(gather(self.features.dense_NF, rows_B, height)),
            values=torch.from_numpy(values),
            lengths_CB=torch.from_numpy(lengths),
            labels_BT=of_labels[0],
            observed_BT=of_labels[1],
            weights_BT=of_labels[2],
            num_rows=len(rows_B),
            id_weights=None if id_weights is None else torch.from_numpy(id_weights),
            groups_B=None if groups_B is None else torch.from_numpy(groups_B),
            requests_B=None if requests_B is None else torch.from_numpy(requests_B),
            request_dense_QF=None if dense_QF is None else torch.from_numpy(dense_QF),
            domains_B=self._domains(rows_B, height),
        )

    def _domains(self, rows_B: np.ndarray, height: int) -> torch.Tensor | None:
        """Of rows of padding 0: what is computed of them nobody reads."""
        domains_N = self.features.domains_N
        if domains_N is None:
            return None
        return torch.from_numpy(gather(domains_N[:, None], rows_B, height)[:, 0])

    def _requests(
        self, rows_B: np.ndarray, height: int
    ) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        """Which requests a batch's rows are of, each row's place among them, and their numbers."""
        requests = self.features.requests
        if requests is None:
            return None, None, None
        places_Q, own_B = first_seen(requests.request_N[rows_B])
        requests_B = np.full(height, max(len(places_Q) - 1, 0), np.int64)
        requests_B[: len(own_B)] = own_B
        return places_Q, requests_B, requests.features.dense_NF.take(places_Q, axis=0)


def join(chunks: list[EncodedData]) -> EncodedData:
    """Joins rows in order; takes them away from the list meanwhile, to save memory."""
    if len(chunks) == 1:
        return chunks.pop()
    features = [chunk.features for chunk in chunks]
    labels = [chunk.labels for chunk in chunks if chunk.labels is not None]
    chunks.clear()
    return EncodedData(
        features=join_features(features), labels=join_labels(labels) if labels else None
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
    arrays: dict[str, Any] = {
        field.name: joined_arrays([getattr(chunk, field.name) for chunk in chunks])
        for field in fields(EncodedLabels)
    }
    return EncodedLabels(**arrays)
