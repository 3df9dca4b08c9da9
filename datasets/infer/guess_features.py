"""Features from columns: what each becomes, or why it is left out."""

import re
from dataclasses import dataclass

import numpy as np

from mmoe.config import CategoricalFeature, FeatureConfig, ListFeature, NumericFeature
from mmoe.datasets.infer.guess_datetimes import datetime_feature
from mmoe.datasets.infer.profile import ColumnProfile
from mmoe.datasets.infer.reading.lists import shown

_FEW = 20  # integers of so few values are treated as names
_MANY = 1_000_000  # more ids than this are hashed, so that the table does not grow with the data
# An embedding row learned from a handful of labels repeats them. On an invented log with 1.5 rows
# an id, a minimum of 20 raised the test AUC from 0.772 to 0.786 (click) and from 0.848 to 0.857
# (purchase), one run each.
_ROWS_PER_ID = 20
_ENOUGH_ROWS = 10_000  # below, an id seen 20 times is no rare one
_LARGE_ID = 2**31
_LONG_TAIL = 5.0  # 99th percentile over the median of what is not zero
_ID_NAME = re.compile(
    r"(^|_|\b)(id|ids|uid|uuid|guid|gid|key|hash|code|user|item|ad|ads|video|product|sku|query|"
    r"cat|category|categorical|brand|shop|store|seller|campaign|creative|author|channel|device|"
    r"city|country|region|state|zip|postcode|zipcode|os|tag|topic|slot|position|site|domain|app)"
    r"(_?\d*)($|_|\b)|[a-z](Id|ID)$",
)
_USER_NAME = re.compile(
    r"(^|_)(user|member|customer|visitor|viewer|buyer|client|account|uid|profile)(_?(id|no|key))?$"
)
_GROUP_NAME = re.compile(r"(^|_)(session|search|query|request|impression)(_?(id|no|key))?$")
_PRONE_TO_COUNT = re.compile(r"(^|_)(num|count|cnt|n|times|total|age|days|hours|minutes)($|_)")


@dataclass(frozen=True)
class GuessedFeature:
    """A feature and the reason for its kind."""

    feature: FeatureConfig
    reason: str


def guess_feature(profile: ColumnProfile, name: str) -> GuessedFeature:
    """Guesses the feature that a column becomes; columns to leave out are sorted out before."""
    column = None if name == profile.name else profile.name
    if (datetime := datetime_feature(profile, name)) is not None:
        return GuessedFeature(*datetime)
    if profile.nature == "list" or profile.separator:
        feature = ListFeature(name=name, column=column, **profile.keys)
        kind = profile.said or "a list column"
        if profile.separator:
            kind = f"text with {shown(profile.separator)} between items"
        return GuessedFeature(feature, kind + _missing(profile))
    if _is_categorical(profile):
        return _categorical(profile, name, column)
    return _numeric(profile, name, column)


def group_column(profiles: list[ColumnProfile]) -> ColumnProfile | None:
    """Guesses the key of GAUC: a user's id that comes back, else a session's or query's."""
    for pattern in (_USER_NAME, _GROUP_NAME):
        for profile in profiles:
            is_id = profile.nature in ("integer", "text") and profile.distinct > 1
            if (
                is_id
                and pattern.search(profile.name.lower())
                and profile.distinct <= profile.rows / 2
            ):
                return profile
    return None


def _is_categorical(profile: ColumnProfile) -> bool:
    if profile.nature in ("boolean", "text"):
        return True
    if profile.nature != "integer":
        return False
    assert profile.numbers_N is not None
    if np.nanmax(np.abs(profile.numbers_N)) >= _LARGE_ID:
        return True
    name = profile.name.lower()
    if _PRONE_TO_COUNT.search(name):
        return profile.distinct <= 2
    return profile.distinct <= _FEW or bool(_ID_NAME.search(profile.name) or _ID_NAME.search(name))


def _categorical(profile: ColumnProfile, name: str, column: str | None) -> GuessedFeature:
    kinds = {"boolean": "true or false", "text": "texts", "integer": "whole numbers"}
    reason = f"{profile.distinct} different {kinds[profile.nature]}"
    if profile.nature == "boolean":
        reason = kinds["boolean"]
    reason += _missing(profile)
    if profile.distinct > _MANY:
        size = 1 << int(np.ceil(np.log2(profile.distinct)))
        feature = CategoricalFeature(name=name, column=column, encoding="hash", hash_size=size)
        return GuessedFeature(feature, f"{reason}; hashed, as there are so many")
    rare = profile.rows >= _ENOUGH_ROWS and profile.distinct > profile.rows / _ROWS_PER_ID
    feature = CategoricalFeature(name=name, column=column, min_count=_ROWS_PER_ID if rare else 1)
    shared = f"; those seen fewer than {_ROWS_PER_ID} times share a row" if rare else ""
    return GuessedFeature(feature, reason + shared)


def _numeric(profile: ColumnProfile, name: str, column: str | None) -> GuessedFeature:
    numbers_N = profile.numbers_N
    assert numbers_N is not None
    present = np.abs(numbers_N[np.isfinite(numbers_N)])
    nonzero = present[present > 0]
    log = bool(
        len(nonzero)
        and profile.distinct > _FEW
        and np.quantile(nonzero, 0.99) > _LONG_TAIL * np.median(nonzero)
    )
    buckets = 20 if profile.rows >= 1000 else 5
    buckets = buckets if profile.distinct > 2 else 0
    kind = "whole numbers" if profile.nature == "integer" else "numbers"
    span = f"{np.nanmin(numbers_N):g} to {np.nanmax(numbers_N):g}"
    reason = f"{profile.distinct} different {kind}, {span}"
    reason += "; long tail: its logarithm" if log else ""
    reason += f"; {profile.said}" if profile.said else ""
    feature = NumericFeature(name=name, column=column, log=log, buckets=buckets, **profile.keys)
    return GuessedFeature(feature, reason + _missing(profile))


def _missing(profile: ColumnProfile) -> str:
    if not profile.missing:
        return ""
    return f", {100 * profile.missing / profile.rows:.2g} % missing"
