"""Encoded features of rows, and of the requests that they are candidates of."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from mmoe.datasets.features.ragged import RaggedRows
from mmoe.datasets.values.first_seen import first_rows, first_seen
from mmoe.datasets.values.plain import offsets_of

IdLists = tuple[np.ndarray, np.ndarray]  # ids [V], offsets [N + 1]


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

    def rows(self, start: int, stop: int) -> "EncodedFeatures":
        """Returns rows [start, stop), not copied."""
        lists = [
            (values[offsets[start] : offsets[stop]], offsets[start : stop + 1] - offsets[start])
            for values, offsets in self.lists
        ]
        weights = [
            None if weights is None else weights[offsets[start] : offsets[stop]]
            for weights, (_, offsets) in zip(self.list_weights, self.lists, strict=False)
        ]
        return EncodedFeatures(
            dense_NF=self.dense_NF[start:stop],
            ids_NC=self.ids_NC[start:stop],
            lists=lists,
            list_weights=weights,
            links={t: link.rows(slice(start, stop)) for t, link in self.links.items()},
            domains_N=None if self.domains_N is None else self.domains_N[start:stop],
            requests=None if self.requests is None else self.requests.rows(start, stop),
        )

    def take(self, rows: np.ndarray) -> "EncodedFeatures":
        """Returns the given rows, copied, in that order."""
        places = [RaggedRows(offsets, rows, len(rows)) for _, offsets in self.lists]
        return EncodedFeatures(
            dense_NF=self.dense_NF[rows],
            ids_NC=self.ids_NC[rows],
            lists=[
                (values[place.index], offsets_of(place.lengths_B))
                for place, (values, _) in zip(places, self.lists, strict=True)
            ],
            list_weights=[
                None if weights is None else weights[place.index]
                for place, weights in zip(places, self.list_weights, strict=False)
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
    """Which of the encoder's columns are of requests, in its order.

    Attributes:
        dense: For each dense column whether it is.
        ids: For each feature of one id.
        lists: For each list feature.
    """

    dense: tuple[bool, ...]
    ids: tuple[bool, ...]
    lists: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class EncodedRequests:
    """What rows share with the other candidates of their request: M requests, N rows.

    Attributes:
        features: Of the M requests: the columns of features with level request alone.
        request_N: int64, place of each row's request among them; they stand in the order in which
            rows first name them.
        keys_M: uint64, which requests they are; equal where two chunks have rows of one.
        layout: Whose columns are which.
    """

    features: EncodedFeatures
    request_N: np.ndarray
    keys_M: np.ndarray
    layout: LevelLayout

    def __len__(self) -> int:
        """M."""
        return len(self.keys_M)

    def rows(self, start: int, stop: int) -> "EncodedRequests":
        """Returns those of rows [start, stop); what the requests are is not copied."""
        request_N = self.request_N[start:stop]
        first, last = (int(request_N.min()), int(request_N.max()) + 1) if len(request_N) else (0, 0)
        return replace(
            self,
            features=self.features.rows(first, last),
            request_N=request_N - first,
            keys_M=self.keys_M[first:last],
        )

    def take(self, rows: np.ndarray) -> "EncodedRequests":
        """Returns those of the given rows, copied."""
        kept_M, request_N = first_seen(self.request_N[rows])
        return replace(
            self,
            features=self.features.take(kept_M),
            request_N=request_N,
            keys_M=self.keys_M[kept_M],
        )


def merged(of_request: Sequence[bool], shared: Iterable[Any], own: Iterable[Any]) -> list[Any]:
    """Brings columns of requests and of rows into the encoder's order."""
    of_requests, of_rows = iter(shared), iter(own)
    return [next(of_requests if flag else of_rows) for flag in of_request]


def join_features(chunks: Sequence[EncodedFeatures]) -> EncodedFeatures:
    """Joins features in order; requests of which two chunks have rows become one."""
    joined = _concatenated(chunks)
    of_chunks = [chunk.requests for chunk in chunks if chunk.requests is not None]
    return replace(joined, requests=_join_requests(of_chunks)) if of_chunks else joined


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
    distinct, place_M = first_seen(keys_M)
    if len(distinct) == len(keys_M):
        return joined
    kept_M = first_rows(place_M, len(distinct))
    return replace(
        joined,
        features=features.take(kept_M),
        request_N=place_M[request_N],
        keys_M=keys_M[kept_M],
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
