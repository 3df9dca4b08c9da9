"""Lists padded to one length, in a first config: by which value and at which end."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mmoe.config import ListFeature
from mmoe.datasets.features.ragged import ListRows, blank_items, unpad
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.infer.reading import sampled
from mmoe.datasets.values.arrow import pc

_FILLERS = {"0", "0.0", "-1", "-1.0", "<pad>", "[pad]", "pad", "padding", "<unk>", "none", "null"}
_MOST = 0.5  # share of rows that end in it, of a value that is no usual filler
_SOME = 0.02  # the same of one that is
_FEWEST = 5  # rows with it
_RUNS = 0.1  # of them, those that end in two of it or more
_INSIDE = 0.2  # as an item it is rarer than at the end, by this factor
_SORTED = 0.98  # share of rows
_KINDS = 3  # different items beside it: fewer are flags, of which a run says something
_QUESTION, _ALL_ITEMS = "padded?", "unclear what is padding, so all are items"
_SIDES = {"right": "behind", "left": "before"}


class _Lists(NamedTuple):
    """A column of lists of one length, some rows of it; a row without items has none."""

    rows: ListRows[ListFeature]
    values: pa.ChunkedArray
    lengths_N: np.ndarray
    longest: int

    def with_keys(self, keys: dict[str, Any]) -> ListRows[ListFeature]:
        """Returns the rows as a feature with these keys reads them."""
        feature = self.rows.feature.model_copy(update=keys)
        return replace(self.rows, feature=feature)


def with_padding(
    table: pa.Table, profiles: Sequence[ColumnProfile]
) -> tuple[list[ColumnProfile], list[str]]:
    """Finds the padding of columns of lists, and the masks and lengths that say it.

    A length or a mask becomes a key where it says more than the value: that some of its values at
    the end are items.

    Args:
        table: All rows.
        profiles: Of its columns.

    Returns:
        The profiles, those of padded lists with keys of a list feature; and a line for each column
        of which it is unclear what is padding.

    Example:
        >>> rows = [[n % 7 + 1, n % 5 + 1][: n % 3] + [0] * (3 - min(n % 3, 2)) for n in range(60)]
        >>> table = pa.table({"seen": rows})
        >>> profile = ColumnProfile(name="seen", nature="list", rows=60, missing=0, distinct=0)
        >>> with_padding(table, [profile])[0][0].keys
        {'padding': 0, 'padding_side': 'right'}
    """
    found, masks = {}, {}
    known: list[_Lists] = []  # that are padded with a value
    others: list[tuple[ColumnProfile, _Lists]] = []
    some = sampled(table)
    for profile in profiles:
        lists = _lists(some, profile)
        if lists is None:
            continue
        ends = list(_paddings(lists))
        keys: dict[str, Any] = {}
        if len(ends) == 1:
            ((value, side),) = ends
            keys = {"padding": value, "padding_side": side}
        said, mask = _said(lists, profiles, keys)
        if said:
            keys = said
        if mask is not None:
            masks[mask] = f"the mask of {profile.name!r}"
        if keys:
            found[profile.name] = _described(profile, keys)
            if "padding" in keys:
                known.append(lists._replace(rows=lists.with_keys(keys)))
            continue
        others.append((profile, lists))
        if ends:
            found[profile.name] = replace(profile, said=_unclear(profile.name, ends))
    for profile, lists in others:
        said = next(filter(None, (_beside(lists, other) for other in known)), None)
        if isinstance(said, dict):
            found[profile.name] = _described(profile, said)
        elif said is not None and profile.name not in masks:
            found.setdefault(profile.name, replace(profile, said=said))
    notes = [one.said for one in found.values() if one.said.startswith(_QUESTION)]
    changed = [found.get(profile.name, profile) for profile in profiles]
    return [replace(p, no_input=masks[p.name]) if p.name in masks else p for p in changed], notes


def _lists(table: pa.Table, profile: ColumnProfile) -> _Lists | None:
    if not (profile.nature == "list" or profile.separator) or profile.no_input:
        return None
    feature = ListFeature(name="x", column=profile.name, **profile.keys)
    rows = ListRows(table, feature, "log")
    values, lengths_N = rows.items(profile.name)
    longest = int(lengths_N.max(initial=0))
    if longest < 2 or not np.isin(lengths_N, (0, longest)).all():
        return None
    return _Lists(rows, blank_items(values), lengths_N, longest)


def _paddings(lists: _Lists) -> Iterator[tuple[int | float | str, str]]:
    """Values that look like padding, each with the end where they do."""
    rows = int((lists.lengths_N > 0).sum())
    encoded = pc.dictionary_encode(lists.values, null_encoding="encode").combine_chunks()
    codes_NL = encoded.indices.to_numpy().reshape(rows, lists.longest)
    kinds = encoded.dictionary.to_pylist()
    if len(kinds) <= _KINDS or _are_sorted(codes_NL, kinds):
        return
    for side in _SIDES:
        facing_NL = codes_NL if side == "left" else codes_NL[:, ::-1]
        counts = np.bincount(facing_NL[:, 0], minlength=len(kinds))
        for code in np.flatnonzero(counts >= max(_FEWEST, _SOME * rows)).tolist():
            value = kinds[code]
            usual = str(value).strip().lower() in _FILLERS
            if not isinstance(value, int | float | str) or isinstance(value, bool):
                continue
            if counts[code] >= (_SOME if usual else _MOST) * rows and _is_padding(facing_NL, code):
                yield (int(value) if isinstance(value, float) else value), side


def _are_sorted(codes_NL: np.ndarray, kinds: list[Any]) -> bool:
    """Whether items are numbers in order: the smallest one is in front by that."""
    if not all(isinstance(kind, int | float) for kind in kinds):
        return False
    steps_NL = np.diff(np.array(kinds, np.float64)[codes_NL])
    return max((steps_NL >= 0).all(axis=1).mean(), (steps_NL <= 0).all(axis=1).mean()) > _SORTED


def _is_padding(codes_NL: np.ndarray, code: int) -> bool:
    """Whether rows begin with runs of one value, which is rare elsewhere."""
    same_NL = codes_NL == code
    same_NL = same_NL[~same_NL.all(axis=1)]  # those of it alone say nothing of an end
    begins_N = same_NL[:, 0]
    if begins_N.sum() < max(_FEWEST, _SOME * len(codes_NL)):
        return False
    run_NL = np.logical_and.accumulate(same_NL, axis=1)
    behind_NL = np.logical_and.accumulate(same_NL[:, ::-1], axis=1)[:, ::-1]
    others = same_NL.size - run_NL.sum() - behind_NL.sum()
    inside = (same_NL & ~run_NL & ~behind_NL).sum()
    runs = (run_NL[:, 1] & begins_N).sum()
    return runs >= _RUNS * begins_N.sum() and inside <= _INSIDE * begins_N.mean() * others


def _beside(lists: _Lists, other: _Lists) -> dict[str, Any] | str | None:
    """The key of one value that lies just where another column is padded, or that it is unclear.

    So the kinds of items, too few to tell by themselves, and their times follow the items.
    """
    if not np.array_equal(lists.lengths_N, other.lengths_N):
        return None
    unpadded = unpad(other.rows, other.values, other.lengths_N)
    assert unpadded.keep_V is not None, "the key was found by what it removes"
    cut = pc.unique(lists.values.filter(pa.array(~unpadded.keep_V)))
    value = cut[0].as_py() if len(cut) == 1 else None
    if not isinstance(value, int | float | str) or isinstance(value, bool) or value != value:
        return None
    value = int(value) if isinstance(value, float) and value == int(value) else value
    keys = {"padding": value, "padding_side": other.rows.feature.padding_side}
    kept_N = _kept(lists, keys)
    if kept_N is not None and np.array_equal(kept_N, unpadded.lengths_N):
        return keys
    where = (
        f"{value!r} where {other.rows.feature.source_column!r} is padded, and at that end elsewhere"
    )
    return f"{_QUESTION} {lists.rows.feature.source_column!r} has {where}; {_ALL_ITEMS}"


def _said(
    lists: _Lists, profiles: Sequence[ColumnProfile], found: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """The key of a column that says more than `found`, if there is one; and which is a mask."""
    expected_N = _kept(lists, found) if found else None
    for keys in _candidates(lists, profiles):
        try:
            kept_N = _kept(lists, keys)
        except ValueError:
            continue
        if kept_N is None:
            continue
        mask = keys.get("mask")
        same = expected_N is not None and np.array_equal(kept_N, expected_N)
        if not same or mask is not None:
            return ({} if same else keys), mask
    return {}, None


def _candidates(lists: _Lists, profiles: Sequence[ColumnProfile]) -> Iterator[dict[str, Any]]:
    for one in profiles:
        if one.name == lists.rows.feature.source_column:
            continue
        if one.nature == "list" or (
            one.separator and one.separator == lists.rows.feature.separator
        ):
            yield {"mask": one.name}
        elif one.nature == "integer" and one.numbers_N is not None and one.distinct > 1:
            low, high = np.nanmin(one.numbers_N), np.nanmax(one.numbers_N)
            if low >= 0 and high <= lists.longest:
                yield {"length": one.name}
                yield {"length": one.name, "padding_side": "left"}


def _kept(lists: _Lists, keys: dict[str, Any]) -> np.ndarray | None:
    """Counts each row's items that are no padding; None: it is not one value, or hardly any."""
    unpadded = unpad(lists.with_keys(keys), lists.values, lists.lengths_N)
    if unpadded.keep_V is None or (unpadded.lengths_N < lists.lengths_N).sum() < _FEWEST:
        return None
    cut = lists.values.filter(pa.array(~unpadded.keep_V))
    return unpadded.lengths_N if pc.count_distinct(cut, mode="all").as_py() == 1 else None


def _described(profile: ColumnProfile, keys: dict[str, Any]) -> ColumnProfile:
    if "padding" in keys:
        how = f"padded {_SIDES[keys['padding_side']]} with {keys['padding']!r}"
    else:
        how = f"padded, as {keys.get('length') or keys.get('mask')!r} says"
    said = "; ".join((profile.said or "a list column", how))
    return replace(profile, keys={**profile.keys, **keys}, said=said)


def _unclear(name: str, ends: Sequence[tuple[int | float | str, str]]) -> str:
    values = list(dict.fromkeys(repr(value) for value, _ in ends))
    listed, several = " and ".join(values), len(values) > 1
    where = "at both ends" if len({side for _, side in ends}) > 1 else "at one end"
    return (
        f"{_QUESTION} {name!r} has {'runs' if several else 'a run'} of {listed} {where} of many "
        f"rows; {_ALL_ITEMS}: say padding{'' if several else '_side'}"
    )
