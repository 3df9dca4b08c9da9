"""Encoded rows in memory: features, labels, and batches cut out of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mmoe.datasets.features.id_map import MISSING
from mmoe.datasets.values.arrow import offsets_of
from mmoe.datasets.values.keys import first_rows, first_seen

if TYPE_CHECKING:  # torch takes two seconds to import, and `mmoe init` has no batches
    from mmoe.datasets.rows.batch import Batch

IdLists = tuple[np.ndarray, np.ndarray]  # ids [V], offsets [N + 1]


class RowLink(Protocol):
    """Interface of what makes values of predictions of N rows, by columns of these rows."""

    @property
    def keeps_labels(self) -> bool:
        """Whether labels are what is to be predicted, unchanged."""
        ...

    def rows(self, rows: slice | np.ndarray) -> "RowLink":
        """Returns that of some of the rows."""
        ...

    def joined(self, others: Sequence[Any]) -> "RowLink":
        """Returns that of these rows and the others' after them."""
        ...

    def of(self, predictions_N: np.ndarray) -> np.ndarray:
        """Computes the values, float32."""
        ...

    def targets_of(self, labels_N: np.ndarray) -> np.ndarray:
        """Computes what is to be predicted of labels; its inverse."""
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
        outside: For each feature that has some, bool [N]: rows that hold what training never did,
            and were encoded as what it had; of rows as they were encoded, not of parts of them.
        requests: What the rows share with others of their request, where features are of requests;
            the columns above are then those of rows alone (`flat` has all).
    """

    dense_NF: np.ndarray
    ids_NC: np.ndarray
    lists: Sequence[IdLists] = ()
    list_weights: Sequence[np.ndarray | None] = ()
    links: Mapping[int, RowLink] = field(default_factory=dict)
    domains_N: np.ndarray | None = None
    outside: Mapping[str, np.ndarray] = field(default_factory=dict)
    requests: "EncodedRequests | None" = None

    def __len__(self) -> int:
        return len(self.dense_NF)

    def take(self, rows: np.ndarray | slice) -> "EncodedFeatures":
        """Returns the given rows, copied, in that order; those of a slice are not copied."""
        kept = [_items_of(offsets, rows) for _, offsets in self.lists]
        return EncodedFeatures(
            dense_NF=self.dense_NF[rows],
            ids_NC=self.ids_NC[rows],
            lists=[(self.lists[n][0][items], offsets) for n, (items, offsets) in enumerate(kept)],
            list_weights=[
                None if weights is None else weights[items]
                for weights, (items, _) in zip(self.list_weights, kept, strict=False)
            ],
            links={t: link.rows(rows) for t, link in self.links.items()},
            domains_N=None if self.domains_N is None else self.domains_N[rows],
            requests=None if self.requests is None else self.requests.take(rows),
        )

    def flat(self) -> "EncodedFeatures":
        """Returns every column for every row, in the encoder's order.

        What a request's rows share is copied for each of them; without requests nothing is.
        """
        if self.requests is None:
            return self
        layout = self.requests.layout
        shared = self.requests.features.take(self.requests.request_N)
        weights = self.list_weights or shared.list_weights
        return EncodedFeatures(
            dense_NF=_merged_columns(layout.dense, shared.dense_NF, self.dense_NF),
            ids_NC=_merged_columns(layout.ids, shared.ids_NC, self.ids_NC),
            lists=merged(layout.lists, shared.lists, self.lists),
            list_weights=(
                merged(layout.lists, _weights_of(shared), _weights_of(self)) if weights else []
            ),
            links=self.links,
            domains_N=self.domains_N,
        )


@dataclass(frozen=True, kw_only=True)
class LevelLayout:
    """Levels of the encoder's columns, in its order."""

    dense: tuple[bool, ...]  # for each dense column whether it is
    ids: tuple[bool, ...]  # for each feature of one id
    lists: tuple[bool, ...]  # for each list feature


@dataclass(frozen=True, kw_only=True)
class EncodedRequests:
    """Columns that rows share with other candidates of their request: M requests, N rows."""

    features: EncodedFeatures  # of the M requests: the columns of features with level request alone
    # int64, place of each row's request among them; they stand in the order in which rows first
    # name them
    request_N: np.ndarray
    keys_M: np.ndarray  # uint64, which requests they are; equal where two chunks have rows of one
    layout: LevelLayout  # whose columns are which

    def __len__(self) -> int:
        """M."""
        return len(self.keys_M)

    def take(self, rows: np.ndarray | slice) -> "EncodedRequests":
        """Returns those of the given rows, copied; of a slice what the requests are is not."""
        request_N, kept_M = self.request_N[rows], slice(0, 0)
        if not isinstance(rows, slice):
            kept_M, request_N = first_seen(request_N)
        elif len(request_N):
            kept_M = slice(int(request_N.min()), int(request_N.max()) + 1)
            request_N = request_N - kept_M.start
        features = self.features.take(kept_M)
        return replace(self, features=features, request_N=request_N, keys_M=self.keys_M[kept_M])


class RaggedRows:
    """Places of the items of given rows' lists; padding rows have one item each.

    Attributes:
        lengths_B: int32 [height].
    """

    def __init__(self, offsets: np.ndarray, rows_B: np.ndarray, height: int) -> None:
        starts_B = offsets[rows_B]
        lengths_B = offsets[rows_B + 1] - starts_B
        ends_B = np.cumsum(lengths_B)
        self.total = int(ends_B[-1]) if len(ends_B) else 0
        self.padding = height - len(rows_B)
        self.index = np.repeat(starts_B - (ends_B - lengths_B), lengths_B) + np.arange(self.total)
        self.lengths_B = np.ones(height, np.int32)
        self.lengths_B[: len(rows_B)] = lengths_B

    def ids(self, values_V: np.ndarray) -> np.ndarray:
        """Returns the rows' ids, int64; padding is missing."""
        return self._filled(values_V, MISSING, np.int64)

    def weights(self, weights_V: np.ndarray | None) -> np.ndarray:
        """Returns the rows' weights, float32; 1 where there are none, and in padding."""
        if weights_V is None:
            return np.ones(self.total + self.padding, np.float32)
        return self._filled(weights_V, 1, np.float32)

    def _filled(self, items_V: np.ndarray, item: int, dtype: type) -> np.ndarray:
        out = np.full(self.total + self.padding, item, dtype)
        out[: self.total] = items_V[self.index]
        return out


def _items_of(
    offsets: np.ndarray, rows: np.ndarray | slice
) -> tuple[np.ndarray | slice, np.ndarray]:
    """Where the items of some rows' lists are, and the offsets of these."""
    if isinstance(rows, slice):
        own = offsets[rows.start : rows.stop + 1]
        return slice(own[0], own[-1]), own - own[0]
    ragged = RaggedRows(offsets, rows, len(rows))
    return ragged.index, offsets_of(ragged.lengths_B)


def merged(of_request: Sequence[bool], shared: Iterable[Any], own: Iterable[Any]) -> list[Any]:
    """Brings columns of requests and of rows into the encoder's order."""
    of_requests, of_rows = iter(shared), iter(own)
    return [next(of_requests if flag else of_rows) for flag in of_request]


def _concatenated(chunks: Sequence[EncodedFeatures]) -> EncodedFeatures:
    lists = []
    for pairs in zip(*(chunk.lists for chunk in chunks), strict=True):
        lengths = np.concatenate([np.diff(offsets) for _, offsets in pairs])
        lists.append((np.concatenate([values for values, _ in pairs]), offsets_of(lengths)))
    weights = zip(*(chunk.list_weights for chunk in chunks), strict=True)
    return EncodedFeatures(
        dense_NF=np.concatenate([chunk.dense_NF for chunk in chunks]),
        ids_NC=np.concatenate([chunk.ids_NC for chunk in chunks]),
        lists=lists,
        list_weights=[joined_arrays(of_feature) for of_feature in weights],
        links={
            t: link.joined([chunk.links[t] for chunk in chunks[1:]])
            for t, link in chunks[0].links.items()
        },
        domains_N=joined_arrays([chunk.domains_N for chunk in chunks]),
    )


def joined_arrays(chunks: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Joins arrays of some rows each; None where there are none."""
    present = [chunk for chunk in chunks if chunk is not None]
    return np.concatenate(present) if present else None


def _join_requests(chunks: Sequence[EncodedRequests]) -> EncodedRequests:
    features = _concatenated([chunk.features for chunk in chunks])
    starts = np.cumsum([0, *(len(chunk) for chunk in chunks)])
    request_N = np.concatenate(
        [chunk.request_N + start for chunk, start in zip(chunks, starts, strict=False)]
    )
    keys_M = np.concatenate([chunk.keys_M for chunk in chunks])
    joined = replace(chunks[0], features=features, request_N=request_N, keys_M=keys_M)
    distinct, index_M = first_seen(keys_M)
    if len(distinct) == len(keys_M):
        return joined
    kept_M = first_rows(index_M, len(distinct))
    return replace(
        joined, features=features.take(kept_M), request_N=index_M[request_N], keys_M=keys_M[kept_M]
    )


def _merged_columns(
    of_request: tuple[bool, ...], shared_NF: np.ndarray, own_NF: np.ndarray
) -> np.ndarray:
    flags = np.array(of_request, bool)
    out = np.empty((len(own_NF), len(flags)), np.result_type(shared_NF, own_NF))
    out[:, flags], out[:, ~flags] = shared_NF, own_NF
    return out


def _weights_of(features: EncodedFeatures) -> Iterator[np.ndarray | None]:
    """Weights of every list feature, also where none has any."""
    yield from features.list_weights or [None] * len(features.lists)


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
    """Features of N rows and, unless only scores are wanted, their labels.

    Attributes:
        features: Encoded.
        labels: Of the same rows; None: scores alone are wanted.

    Raises:
        ValueError: Labels of another number of rows.
    """

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
        """Returns rows [start, stop), not copied.

        Args:
            start: The first row.
            stop: The one after the last.
        """
        rows = slice(start, stop)
        labels = None if self.labels is None else self.labels.taken(rows)
        return EncodedData(features=self.features.take(rows), labels=labels)

    def batch(
        self,
        rows: np.ndarray | slice,
        pad_to: int | None = None,
        *,
        groups_B: np.ndarray | None = None,
    ) -> "Batch":
        """Makes a batch of the given rows, in that order.

        Args:
            rows: int [B] row numbers, or a slice.
            pad_to: Height of the batch; rows beyond those given have missing ids and no labels.
            groups_B: Number of each row's group in the batch, where a loss compares rows.

        Raises:
            ValueError: More rows than `pad_to`.
        """
        from mmoe.datasets.rows.batch import Batch

        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows_B = np.asarray(rows, np.int64)
        height = len(rows_B) if pad_to is None else pad_to
        if height < len(rows_B):
            raise ValueError(
                f"pad_to: expected at least {len(rows_B)}, the rows given, got {pad_to}"
            )
        index_Q, requests_B, dense_QF = self._requests(rows_B, height)
        values, lengths, id_weights = ids_of_batch(self.features, rows_B, height, index_Q)

        def rows_of(array_NX: np.ndarray | None) -> np.ndarray | None:
            return None if array_NX is None else gather(array_NX, rows_B, height)

        trained_NT = observed_NT = weights_NT = None
        if (labels := self.labels) is not None:
            trained_NT = labels.labels_NT if labels.targets_NT is None else labels.targets_NT
            observed_NT, weights_NT = labels.observed_NT, labels.weights_NT
        return Batch.of_arrays(
            num_rows=len(rows_B),
            dense_BF=rows_of(self.features.dense_NF),
            values=values,
            lengths_CB=lengths,
            labels_BT=rows_of(trained_NT),
            observed_BT=rows_of(observed_NT),
            weights_BT=rows_of(weights_NT),
            id_weights=id_weights,
            groups_B=groups_B,
            requests_B=requests_B,
            request_dense_QF=dense_QF,
            domains_B=rows_of(self.features.domains_N),  # of padding 0, which nobody reads
        )

    def _requests(
        self, rows_B: np.ndarray, height: int
    ) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
        """Finds the requests of a batch's rows, each row's index among them, and their numbers."""
        requests = self.features.requests
        if requests is None:
            return None, None, None
        index_Q, own_B = first_seen(requests.request_N[rows_B])
        requests_B = np.full(height, max(len(index_Q) - 1, 0), np.int64)
        requests_B[: len(own_B)] = own_B
        return index_Q, requests_B, requests.features.dense_NF.take(index_Q, axis=0)


def join(chunks: list[EncodedData]) -> EncodedData:
    """Joins rows in order; takes them away from the list meanwhile, to save memory."""
    if len(chunks) == 1:
        return chunks.pop()
    features = [chunk.features for chunk in chunks]
    # Requests of which two chunks have rows become one
    requests = [of_chunk.requests for of_chunk in features if of_chunk.requests is not None]
    labels = [chunk.labels for chunk in chunks if chunk.labels is not None]
    chunks.clear()
    joined = _concatenated(features)
    joined = replace(joined, requests=_join_requests(requests)) if requests else joined
    return EncodedData(features=joined, labels=join_labels(labels) if labels else None)


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


Ids = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Of some lookups: ids int64 [V], lengths int32 [C · B] and, where ids have them, weights [V]."""


def ids_of_batch(
    features: EncodedFeatures, rows_B: np.ndarray, height: int, index_Q: np.ndarray | None = None
) -> Ids:
    """Returns ids, lengths and, where a feature has them, weights of a batch's lookups.

    Args:
        features: Encoded rows.
        rows_B: Numbers of the batch's rows.
        height: B; rows beyond those given have missing ids.
        index_Q: Of its requests among `features.requests`; None where there are none. Their
            lookups have ids in the first Q of B places, and none in the others.
    """
    # Gather rows first (contiguous memory), then turn: the other way round misses the cache.
    single_CB = np.ascontiguousarray(gather(features.ids_NC, rows_B, height).T, np.int64)
    lists = _lists(features, rows_B, height)
    if features.requests is None or index_Q is None:
        return _joined(single_CB.reshape(-1), np.ones(single_CB.size, np.int32), lists)
    shared, layout = features.requests.features, features.requests.layout
    single_CQ = np.ascontiguousarray(shared.ids_NC.take(index_Q, axis=0).T, np.int64)
    singles = merged(layout.ids, [*single_CQ], [*single_CB])
    lengths_CB = np.ones((len(singles), height), np.int32)
    lengths_CB[np.array(layout.ids, bool), len(index_Q) :] = 0
    found = _lists(shared, index_Q, len(index_Q))
    nothing = np.zeros(height - len(index_Q), np.int32)
    of_requests = [(v, np.concatenate([lengths, nothing]), w) for v, lengths, w in found]
    values = np.concatenate([np.zeros(0, np.int64), *singles])
    return _joined(values, lengths_CB.reshape(-1), merged(layout.lists, of_requests, lists))


def _lists(features: EncodedFeatures, rows_B: np.ndarray, height: int) -> list[Ids]:
    """Encodes the lists of each list feature."""
    weights = features.list_weights or [None] * len(features.lists)
    found: list[Ids] = []
    for (values, offsets), own in zip(features.lists, weights, strict=True):
        ragged = RaggedRows(offsets, rows_B, height)
        weighted = ragged.weights(own) if features.list_weights else None
        found.append((ragged.ids(values), ragged.lengths_B, weighted))
    return found


def _joined(values: np.ndarray, lengths: np.ndarray, lists: list[Ids]) -> Ids:
    """Single ids, then those of lists; ids have weights where those of any list have."""
    if not lists:
        return values, lengths, None
    all_values = np.concatenate([values, *(ids for ids, _, _ in lists)])
    all_lengths = np.concatenate([lengths, *(of_list for _, of_list, _ in lists)])
    if all(weights is None for _, _, weights in lists):
        return all_values, all_lengths, None
    ones = np.ones(values.size, np.float32)
    weights = (np.ones(len(ids), np.float32) if w is None else w for ids, _, w in lists)
    return all_values, all_lengths, np.concatenate([ones, *weights])


def gather(source_NX: np.ndarray, rows_B: np.ndarray, height: int) -> np.ndarray:
    """Returns rows of an array, zeros (missing, unobserved) below them.

    NumPy on one thread: as quick as torch's gather here, and it leaves the cores to the network.
    """
    if height == len(rows_B):
        return source_NX.take(rows_B, axis=0)
    out = np.zeros((height, *source_NX.shape[1:]), source_NX.dtype)
    out[: len(rows_B)] = source_NX.take(rows_B, axis=0)
    return out
