"""Encoded rows in memory, and batches cut out of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch

from mmoe.datasets.features.ragged import RaggedRows
from mmoe.datasets.rows.batch import Batch


class RowLink(Protocol):
    """Interface of what makes values of predictions of N rows, by columns of these rows."""

    def rows(self, rows: slice | np.ndarray) -> "RowLink":
        """Returns that of some of the rows."""
        ...

    def joined(self, others: Sequence[Any]) -> "RowLink":
        """Returns that of these rows and the others' after them."""
        ...

    def of(self, predictions_N: np.ndarray) -> np.ndarray:
        """Computes the values, float32."""
        ...


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
        links: What makes values of what is predicted, by the places of tasks of kind d2q.
        domains_N: int32, number of each row's domain, that behind the last one where it has none
            that is known; None: the run has no domains.
    """

    dense_NF: np.ndarray
    ids_NC: np.ndarray
    lists: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    list_weights: Sequence[np.ndarray | None] = ()
    links: Mapping[int, RowLink] = field(default_factory=dict)
    domains_N: np.ndarray | None = None

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
        groups_N = None if self.groups_N is None else self.groups_N[start:stop]
        compared_N = None if self.compared_N is None else self.compared_N[start:stop]
        return EncodedLabels(
            labels_NT=self.labels_NT[start:stop],
            observed_NT=self.observed_NT[start:stop],
            weights_NT=self.weights_NT[start:stop],
            groups_N=groups_N,
            young_NT=None if self.young_NT is None else self.young_NT[start:stop],
            targets_NT=None if self.targets_NT is None else self.targets_NT[start:stop],
            compared_N=compared_N,
            domains_N=None if self.domains_N is None else self.domains_N[start:stop],
        )

    def taken(self, mine_N: np.ndarray) -> "EncodedLabels":
        """Returns some rows, copied.

        Args:
            mine_N: Bool, or row numbers.
        """
        arrays: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return EncodedLabels(
            **{name: None if array is None else array[mine_N] for name, array in arrays.items()}
        )

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
            links={t: link.rows(slice(start, stop)) for t, link in features.links.items()},
            domains_N=None if features.domains_N is None else features.domains_N[start:stop],
        )
        return EncodedData(
            features=cut, labels=None if labels is None else labels.rows(start, stop)
        )

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
        values, lengths, id_weights = self._ids(rows_B, height)
        of_labels = (None, None, None)
        if self.labels is not None:
            targets_NT = self.labels.targets_NT
            trained_NT = self.labels.labels_NT if targets_NT is None else targets_NT
            arrays = (trained_NT, self.labels.observed_NT, self.labels.weights_NT)
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
            groups_B=None if groups_B is None else torch.from_numpy(groups_B),
            domains_B=self._domains(rows_B, height),
        )

    def _domains(self, rows_B: np.ndarray, height: int) -> torch.Tensor | None:
        """Of rows of padding 0: what is computed of them nobody reads."""
        domains_N = self.features.domains_N
        if domains_N is None:
            return None
        return torch.from_numpy(_gather(domains_N[:, None], rows_B, height)[:, 0])

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
    young = [chunk.young_NT for chunk in chunks if chunk.young_NT is not None]
    targets = [chunk.targets_NT for chunk in chunks if chunk.targets_NT is not None]
    compared = [chunk.compared_N for chunk in chunks if chunk.compared_N is not None]
    return EncodedLabels(
        labels_NT=np.concatenate([chunk.labels_NT for chunk in chunks]),
        observed_NT=np.concatenate([chunk.observed_NT for chunk in chunks]),
        weights_NT=np.concatenate([chunk.weights_NT for chunk in chunks]),
        groups_N=np.concatenate(groups) if groups else None,
        young_NT=np.concatenate(young) if young else None,
        targets_NT=np.concatenate(targets) if targets else None,
        compared_N=np.concatenate(compared) if compared else None,
        domains_N=_joined_arrays([chunk.domains_N for chunk in chunks]),
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
        list_weights=[_joined_arrays(of_feature) for of_feature in weights],
        links={
            t: link.joined([chunk.links[t] for chunk in chunks[1:]])
            for t, link in chunks[0].links.items()
        },
        domains_N=_joined_arrays([chunk.domains_N for chunk in chunks]),
    )


def _joined_arrays(chunks: Sequence[np.ndarray | None]) -> np.ndarray | None:
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
