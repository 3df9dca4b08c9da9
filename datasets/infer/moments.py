"""Hour, weekday and month of a datetime, where they predict something or nothing else is left."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import DatetimeFeature, FeatureConfig, Part
from mmoe.datasets.features.datetime import part_ids
from mmoe.datasets.infer.guess_time import TimeLike, time_like, unit_of
from mmoe.datasets.infer.measured.coded import Coded, Sample
from mmoe.datasets.infer.measured.decide import SURE
from mmoe.datasets.infer.measured.evidence import weigh
from mmoe.datasets.infer.measured.relations import one_to_one
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.values.datetimes import local_datetimes
from mmoe.datasets.values.written_datetimes import has_hours

_PARTS: tuple[Part, ...] = ("hour", "weekday", "month")


def guess_moment(
    table: pa.Table,
    profile: ColumnProfile,
    sample: Sample,
    known: Collection[Coded],
    measured: bool,
    origin: str,
) -> tuple[DatetimeFeature, str] | None:
    """Makes a feature of a datetime's parts, and the reason.

    Args:
        table: All rows.
        profile: The column.
        sample: The rows that are looked at.
        known: Columns that are inputs; a part that one of them holds is none.
        measured: Whether a part must predict a label; if not, it has but to differ.
        origin: Starts error messages.

    Returns:
        None where the column is no datetime that can be read, or no part is worth it.
    """
    if time_like(profile) not in (TimeLike.DATES, TimeLike.SINCE_1970):
        return None
    keys = _keys(profile)
    some = table.select([profile.name]).take(pa.array(sample.rows_S))
    found: dict[Part, str] = {}
    for part in _PARTS:
        coded = _coded(some, profile.name, part, keys, origin)
        if coded is None or any(one_to_one(coded, other) for other in known):
            continue
        evidence = weigh(coded, sample, sample.folds_S)
        if evidence is None or (measured and evidence.z_ids <= SURE):
            continue
        unit_of_it = "AUC" if evidence.is_event else "of the variance"
        found[part] = f"{part}: {evidence.ids:.2f} {unit_of_it}"
    if not found:
        return None
    feature = DatetimeFeature(name="moment", column=profile.name, parts=list(found), **keys)
    return feature, "; ".join(filter(None, (profile.said, ", ".join(found.values()))))


def _coded(
    table: pa.Table, column: str, part: Part, keys: dict[str, Any], origin: str
) -> Coded | None:
    feature = DatetimeFeature(name="moment", column=column, parts=[part], **keys)
    try:
        ids_S = part_ids(local_datetimes(table, feature, origin), part)
    except ValueError:  # a date has no hour, and not all text is what it looks like
        return None
    values, codes_S = np.unique(ids_S, return_inverse=True)
    return Coded(codes_S, None, len(values)) if len(values) > 1 else None


def offered(profile: ColumnProfile, name: str) -> list[FeatureConfig]:
    """Lists features that a person may make of a column of datetimes, one for each reading of it.

    Only where text has a format that one would have to find out.
    """
    column = None if name == profile.name else profile.name
    known = [profile.keys] if profile.nature == "datetime" and "format" in profile.keys else []
    features = []
    for keys in profile.offered or known:
        hours = has_hours(keys["format"])
        parts: list[Part] = ["hour", "weekday"] if hours else ["weekday", "month"]
        features.append(DatetimeFeature(name=name, column=column, parts=parts, **keys))
    return features


def _keys(profile: ColumnProfile) -> dict[str, Any]:
    """How the feature reads the column: a format, or a unit."""
    if profile.nature == "datetime":
        return dict(profile.keys)
    # Of numbers they are numbers, of datetimes words
    fillers = [str(value) for value in profile.keys.get("missing_values", [])]
    return {"unit": unit_of(profile)} | ({"missing_values": fillers} if fillers else {})
