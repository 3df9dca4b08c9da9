"""Ids of a batch: those of all lookups, feature-major."""

import numpy as np

from mmoe.datasets.features.ragged import RaggedRows
from mmoe.datasets.rows.encoded_features import EncodedFeatures, merged

Ids = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Of some lookups: ids int64 [V], lengths int32 [C · B] and, where ids have them, weights [V]."""


def ids_of_batch(
    features: EncodedFeatures, rows_B: np.ndarray, height: int, places_Q: np.ndarray | None = None
) -> Ids:
    """Returns ids, lengths and, where a feature has them, weights of a batch's lookups.

    Args:
        features: Encoded rows.
        rows_B: Numbers of the batch's rows.
        height: B; rows beyond those given have missing ids.
        places_Q: Of its requests among `features.requests`; None where there are none. Their
            lookups have ids in the first Q of B places, and none in the others.
    """
    # Gather rows first (contiguous memory), then turn: the other way round misses the cache.
    single_CB = np.ascontiguousarray(gather(features.ids_NC, rows_B, height).T, np.int64)
    lists = _lists(features, rows_B, height)
    if features.requests is None or places_Q is None:
        return _joined(single_CB.reshape(-1), np.ones(single_CB.size, np.int32), lists)
    shared, layout = features.requests.features, features.requests.layout
    single_CQ = np.ascontiguousarray(shared.ids_NC.take(places_Q, axis=0).T, np.int64)
    singles = merged(layout.ids, [*single_CQ], [*single_CB])
    lengths_CB = np.ones((len(singles), height), np.int32)
    lengths_CB[np.array(layout.ids, bool), len(places_Q) :] = 0
    found = _lists(shared, places_Q, len(places_Q))
    nothing = np.zeros(height - len(places_Q), np.int32)
    of_requests = [(v, np.concatenate([lengths, nothing]), w) for v, lengths, w in found]
    values = np.concatenate([np.zeros(0, np.int64), *singles])
    return _joined(values, lengths_CB.reshape(-1), merged(layout.lists, of_requests, lists))


def _lists(features: EncodedFeatures, rows_B: np.ndarray, height: int) -> list[Ids]:
    """Of each list feature."""
    weights = features.list_weights or [None] * len(features.lists)
    found: list[Ids] = []
    for (values, offsets), own in zip(features.lists, weights, strict=True):
        place = RaggedRows(offsets, rows_B, height)
        weighted = place.weights(own) if features.list_weights else None
        found.append((place.ids(values), place.lengths_B, weighted))
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
    """Rows of a matrix, zeros (missing, unobserved) below them.

    NumPy on one thread: as quick as torch's gather here, and it leaves the cores to the network.
    """
    if height == len(rows_B):
        return source_NX.take(rows_B, axis=0)
    out = np.zeros((height, source_NX.shape[1]), source_NX.dtype)
    out[: len(rows_B)] = source_NX.take(rows_B, axis=0)
    return out
