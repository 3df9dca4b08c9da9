"""Hour, weekday and month of a datetime, where they foretell something or nothing else is left."""

from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import DatetimeFeature, FeatureConfig, Part
from mmoe.datasets.features.datetime import part_ids
from mmoe.datasets.infer.coded import Coded, Sample
from mmoe.datasets.infer.decide import SURE
from mmoe.datasets.infer.evidence import weigh
from mmoe.datasets.infer.guess_time import TimeLike, time_like, unit_of
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.values.datetimes import local_datetimes
from mmoe.datasets.values.written_datetimes import has_hours

_PARTS: tuple[Part, ...] = ("hour", "weekday", "month")


def guess_moment(
    table: pa.Table, profile: ColumnProfile, name: str, sample: Sample | None, origin: str
) -> tuple[DatetimeFeature, str] | None:
    """Makes a feature of a datetime's parts, and the reason.

    Args:
        table: All rows.
        profile: The column.
        name: Of the feature.
        sample: The rows in which a part must foretell a label; None: any part that differs.
        origin: Starts error messages.

    Returns:
        None where the column is no datetime that can be read, or no part is worth it.
    """
    if time_like(profile) not in (TimeLike.DATES, TimeLike.SINCE_1970):
        return None
    keys = _keys(profile)
    column = None if name == profile.name else profile.name
    rows = None if sample is None else pa.array(sample.rows_S)
    some = table.select([profile.name])
    some = some if rows is None else some.take(rows)
    parts, reasons = [], []
    for part in _PARTS:
        feature = DatetimeFeature(name=name, column=column, parts=[part], **keys)
        try:
            ids_S = part_ids(local_datetimes(some, feature, origin), part).astype(np.int64)
        except ValueError:  # a date has no hour, and not all text is what it looks like
            continue
        if ids_S.min() == ids_S.max():
            continue
        if sample is not None:
            size = int(ids_S.max()) + 1
            found = weigh(Coded(ids_S, None, size), sample, sample.folds_S)
            if found is None or found.z_ids <= SURE:
                continue
            measure = "AUC" if found.is_event else "of the variance"
            reasons.append(f"{part}: {found.ids:.2f} {measure}")
        parts.append(part)
    if not parts:
        return None
    why = ", ".join(reasons) or "its parts; the moment itself does not come again"
    why = f"{profile.said}; {why}" if profile.said else why
    return DatetimeFeature(name=name, column=column, parts=parts, **keys), why


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
