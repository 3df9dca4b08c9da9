"""Yesterday's encoder and today's rows: known ids keep their rows, new ones come after them."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mmoe.config import CategoricalFeature, CrossFeature, IdFeature, RunConfig, TableSettings
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.features.fit_encoder import id_label
from mmoe.datasets.features.vocabulary import HashRule, IdMap, ManagedRule, Vocabulary
from mmoe.datasets.features.vocabulary_size import refuse_too_many
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.keys import ARROW_TYPES, KeyKind, to_keys, widest


@dataclass(frozen=True)
class _Use:
    """Who uses a table, for checks and errors."""

    settings: TableSettings
    label: str
    columns: tuple[str, ...]  # of a cross, each as it is called in an error


def extend_encoder(today: FeatureEncoder, earlier: FeatureEncoder, origin: str) -> FeatureEncoder:
    """An encoder that says of known rows what `earlier` said, and knows today's new ids as well.

    Scaling and buckets of features that `earlier` had are kept: other ones would give its weights
    another meaning. Its ids keep their rows; ids that `today` has on top get the next rows, in
    today's order. Features and tables that are new are taken from `today`.

    Args:
        today: Fitted on today's training rows, with today's config.
        earlier: Of the run that is continued; features of one name have the same settings.
        origin: What the user calls today's data; starts error messages.

    Raises:
        ValueError: Ids that are hashed, managed or crossed are of another kind now, a table has
            another encoding, or a vocabulary outgrows its max_rows.

    Example:
        >>> from mmoe.config import config_from_dict
        >>> config = config_from_dict({
        ...     "features": [{"kind": "categorical", "name": "item"}],
        ...     "tasks": [{"name": "click", "label": "click"}]})
        >>> monday, tuesday = (
        ...     FeatureEncoder.fit(config, pa.table({"item": items}), "log")
        ...     for items in (["a", "b", "b"], ["c", "c", "a", "d"]))
        >>> extend_encoder(tuesday, monday, "log").ids["item"].keys.to_pylist()
        ['b', 'a', 'c', 'd']
    """
    uses = _uses(today.config, origin)
    numeric = {name: earlier.numeric.get(name, rule) for name, rule in today.numeric.items()}
    ids = {
        table: _extended(id_map, earlier.ids[table], uses[table])
        if table in earlier.ids
        else id_map
        for table, id_map in today.ids.items()
    }
    crosses = {
        table: _same_kinds(kinds, earlier.crosses[table], today.ids[table], uses[table])
        if table in earlier.crosses
        else kinds
        for table, kinds in today.crosses.items()
    }
    return replace(today, numeric=numeric, ids=ids, crosses=crosses)


def _uses(config: RunConfig, origin: str) -> dict[str, _Use]:
    """For each table its settings, and the first feature that reads it."""
    shared = {table.name: table for table in config.tables}
    uses: dict[str, _Use] = {}
    for feature in config.features:
        if isinstance(feature, IdFeature):
            table = feature.table_name
            uses.setdefault(table, _use(feature, shared.get(table) or feature, origin))
    return uses


def _use(feature: IdFeature, settings: TableSettings, origin: str) -> _Use:
    columns: tuple[str, ...] = ()
    if isinstance(feature, CrossFeature):
        label = f"{origin}: cross of {' × '.join(feature.columns)} (feature {feature.name!r})"
        columns = tuple(
            f"{origin}: column {column!r} (of feature {feature.name!r})"
            for column in feature.columns
        )
    else:
        assert isinstance(feature, CategoricalFeature)
        label = id_label(feature, origin)
    return _Use(settings, label, columns)


def _same_kinds(
    today: tuple[KeyKind, ...], earlier: tuple[KeyKind, ...], ids: IdMap, use: _Use
) -> tuple[KeyKind, ...]:
    """What the ids of a cross's columns are, if they mix as they did.

    Rules that store no key read today's narrower ids as the earlier, wider ones; keys of a
    vocabulary are mixed already.
    """
    counted = isinstance(ids, Vocabulary) and len(ids.keys) > 0
    for now, before, label in zip(today, earlier, use.columns, strict=True):
        if (now if counted else widest([now, before])) != before:
            raise ValueError(
                f"{label} holds {now} ids, but {before} ids in the run that is continued, and a "
                f"cross mixes them differently; write the column as {before}, give the feature "
                "another name, or train without --warm-start"
            )
    return earlier


def _extended(today: IdMap, earlier: IdMap, use: _Use) -> IdMap:
    if type(today) is not type(earlier):
        raise ValueError(
            f"{use.label} has another encoding than in the run that is continued; keep that "
            "encoding, or give the feature another name"
        )
    kind = widest([today.kind, earlier.kind])
    if isinstance(today, Vocabulary) and isinstance(earlier, Vocabulary):
        return _extended_vocabulary(today, earlier, kind, use)
    if isinstance(earlier, HashRule | ManagedRule) and kind != earlier.kind:
        raise ValueError(
            f"{use.label} holds {today.kind} ids, but {earlier.kind} ids in the run that is "
            f"continued, and they hash differently; write the column as {earlier.kind}, or train "
            "without --warm-start"
        )
    return earlier


def _extended_vocabulary(
    today: Vocabulary, earlier: Vocabulary, kind: KeyKind, use: _Use
) -> Vocabulary:
    """Earlier keys, then those of today that are not among them; both as the wider kind."""
    old_keys, new_keys = (_as_kind(one, kind, use.label) for one in (earlier, today))
    place_N = pc.index_in(new_keys, old_keys)
    is_new_N = place_N.is_null().to_numpy(zero_copy_only=False)
    counts = earlier.counts.copy()
    known = place_N.drop_null().to_numpy()
    counts[known] += today.counts[~is_new_N]
    keys = pa.concat_arrays([old_keys, new_keys.filter(pa.array(is_new_N))])
    label = f"{use.label}, with the ids of earlier days,"
    otherwise = "a higher min_count for today's ids, or train without --warm-start"
    refuse_too_many(len(keys), use.settings, label, otherwise=otherwise)
    return Vocabulary(kind=kind, keys=keys, counts=np.concatenate([counts, today.counts[is_new_N]]))


def _as_kind(vocabulary: Vocabulary, kind: KeyKind, label: str) -> pa.Array:
    if vocabulary.kind == kind:
        return vocabulary.keys
    keys = to_keys(pa.chunked_array([vocabulary.keys]), kind, label)
    return keys.combine_chunks().cast(ARROW_TYPES[kind])
