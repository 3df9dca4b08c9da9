"""Extends yesterday's ids by today's: known ones keep their rows, new ones follow."""

import numpy as np
import pyarrow as pa

from mmoe.config import TableSettings
from mmoe.datasets.features.vocabulary import HashRule, IdMap, ManagedRule, Vocabulary
from mmoe.datasets.features.vocabulary_size import refuse_too_many
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.keys import ARROW_TYPES, KeyKind, to_keys, widest


def extended_ids(today: IdMap, earlier: IdMap, settings: TableSettings, label: str) -> IdMap:
    """Returns ids with known ones as in `earlier`, and today's new ones as well.

    Args:
        today: Of today's training rows.
        earlier: Of the run that is continued.
        settings: Today's.
        label: What the ids are called in an error.

    Raises:
        ValueError: Ids that are hashed or managed are of another kind now, the table has another
            encoding, or a vocabulary outgrows its max_rows.

    Example:
        >>> monday, tuesday = (
        ...     Vocabulary.fit([pa.chunked_array([ids])], ["item"], min_count=1)
        ...     for ids in (["a", "b", "b"], ["c", "c", "a", "d"]))
        >>> extended_ids(tuesday, monday, TableSettings(), "item").keys.to_pylist()
        ['b', 'a', 'c', 'd']
    """
    if type(today) is not type(earlier):
        raise ValueError(
            f"{label} has another encoding than in the run that is continued; keep that "
            "encoding, or give the feature another name"
        )
    kind = widest([today.kind, earlier.kind])
    if isinstance(today, Vocabulary) and isinstance(earlier, Vocabulary):
        return _extended_vocabulary(today, earlier, kind, settings, label)
    if isinstance(earlier, HashRule | ManagedRule) and kind != earlier.kind:
        raise ValueError(
            f"{label} holds {today.kind} ids, but {earlier.kind} ids in the run that is "
            f"continued, and they hash differently; write the column as {earlier.kind}, or train "
            "without --warm-start"
        )
    # Neither keeps ids, so what was said of known ones stays as it is
    return earlier


def _extended_vocabulary(
    today: Vocabulary, earlier: Vocabulary, kind: KeyKind, settings: TableSettings, label: str
) -> Vocabulary:
    """Earlier keys, then those of today that are not among them; both as the wider kind."""
    old_keys, new_keys = (_as_kind(one, kind, label) for one in (earlier, today))
    place_N = pc.index_in(new_keys, old_keys)
    is_new_N = place_N.is_null().to_numpy(zero_copy_only=False)
    counts = earlier.counts.copy()
    known = place_N.drop_null().to_numpy()
    counts[known] += today.counts[~is_new_N]
    keys = pa.concat_arrays([old_keys, new_keys.filter(pa.array(is_new_N))])
    longer = f"{label}, with the ids of earlier days,"
    otherwise = "a higher min_count for today's ids, or train without --warm-start"
    refuse_too_many(len(keys), settings, longer, otherwise=otherwise)
    return Vocabulary(kind=kind, keys=keys, counts=np.concatenate([counts, today.counts[is_new_N]]))


def _as_kind(vocabulary: Vocabulary, kind: KeyKind, label: str) -> pa.Array:
    if vocabulary.kind == kind:
        return vocabulary.keys
    keys = to_keys(pa.chunked_array([vocabulary.keys]), kind, label)
    return keys.combine_chunks().cast(ARROW_TYPES[kind])
