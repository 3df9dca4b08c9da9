"""Parts of a datetime, each looked up in a small table: hour, weekday, …; and days that passed."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import DatetimeFeature, FeatureSpec, NumericFeature, Part, RunConfig
from mmoe.datasets.features.codec import Codec, Coded, LookedUp, RuleCodec, Rules
from mmoe.datasets.features.id_map import FIRST_KNOWN, MISSING
from mmoe.datasets.features.numeric import NumberFit
from mmoe.datasets.features.seen import SEEN_IDS, SeenCodec, only_seen
from mmoe.datasets.values.arrow import pc
from mmoe.datasets.values.datetimes import local_datetimes

_WAVES = ("sin", "cos")
_MICROS_OF_DAY = 86_400e6
# Of training's length: a network's lines are followed no further. As far as a split by time
# validates and tests
_BEYOND = 0.25
# Part → how many values it has, and they, from 0
_PARTS: dict[Part, tuple[int, Callable[[pa.ChunkedArray], Any]]] = {
    "minute": (60, pc.minute),
    "hour": (24, pc.hour),
    "weekday": (7, pc.day_of_week),  # 0 = Monday
    "hour_of_week": (168, lambda at: pc.add(pc.multiply(pc.day_of_week(at), 24), pc.hour(at))),
    "day": (31, lambda at: pc.subtract(pc.day(at), 1)),
    "day_of_year": (366, lambda at: pc.subtract(pc.day_of_year(at), 1)),
    "week": (53, lambda at: pc.subtract(pc.iso_week(at), 1)),  # ISO 8601
    "month": (12, lambda at: pc.subtract(pc.month(at), 1)),
    "quarter": (4, lambda at: pc.subtract(pc.quarter(at), 1)),
}


def part_ids(local_N: pa.ChunkedArray, part: Part) -> np.ndarray:
    """Returns the ids of a part, int32 [N]: 0 where missing, else 2 + the part's value.

    Example:
        >>> noon = pa.chunked_array([pa.array([43_200_000_000, None], pa.timestamp("us"))])
        >>> part_ids(noon, "hour").tolist()
        [14, 0]
    """
    values = pc.add(_PARTS[part][1](local_N), FIRST_KNOWN)
    return pc.fill_null(values, MISSING).to_numpy().astype(np.int32)


class DatetimeCodec(SeenCodec[DatetimeFeature]):
    """Codec of a column of datetimes; a part's values are known, it learns which training had."""

    by_cell = True
    content = "parts of moments"
    knows_range = True
    # How files say it; new parts are new inputs, told by name
    free = Codec.free | {"unit", "format", "missing_values", "parts", "cyclic", "elapsed"}

    @classmethod
    def of(cls, feature: DatetimeFeature, config: RunConfig) -> list[Codec[Any]]:
        """Makes the codec of its parts, and that of the days that passed, where they are read."""
        elapsed = [ElapsedCodec(feature, config)] if feature.elapsed else []
        return [cls(feature, config), *elapsed]

    @property
    def dense_names(self) -> list[str]:
        """Names of sine and cosine of each part, if it is cyclic."""
        names = self.feature.derived_names if self.feature.cyclic else []
        return [f"{name}_{wave}" for name in names for wave in _WAVES]

    @property
    def buckets(self) -> dict[str, int]:
        """A table for each part: rows of missing and unseen (unused) ones, and one a value."""
        named = zip(self.feature.derived_names, self.feature.parts, strict=True)
        return {name: FIRST_KNOWN + _PARTS[part][0] for name, part in named}

    def check(self, fit: Any, table: pa.Table, origin: str) -> None:
        """Refuses what is no datetime."""
        local_datetimes(table, self.feature, origin)

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows: an id a part, and the point on its circle."""
        found = self.bucket_ids(table, origin)
        seen = [rules[SEEN_IDS][name] for name in self.buckets]
        ids = [only_seen(ids_N, some) for ids_N, some in zip(found, seen, strict=True)]
        # A value between those of training has its own place on the circle
        circle = [
            one if len(some) == 1 else every
            for one, every, some in zip(ids, found, seen, strict=True)
        ]
        parts = zip(circle, self.feature.parts if self.feature.cyclic else (), strict=False)
        waves = []
        for ids_N, part in parts:
            angle_N = (2 * np.pi / _PARTS[part][0]) * (ids_N - FIRST_KNOWN)
            for wave in (np.sin, np.cos):
                waves.append(np.where(ids_N == MISSING, 0.0, wave(angle_N)).astype(np.float32))
        return Coded(ids=ids, dense=waves)

    def looked_up(
        self, table: pa.Table, rules: Rules, origin: str, numbers: Collection[str]
    ) -> list[LookedUp]:
        """Returns its parts."""
        parts = zip(self.encode(table, rules, origin).ids, self.buckets.values(), strict=True)
        return [LookedUp.single(ids_N, num_rows) for ids_N, num_rows in parts]

    def bucket_ids(self, table: pa.Table, origin: str) -> list[np.ndarray]:
        """Returns the ids of each part, whether training had them or not."""
        local_N = local_datetimes(table, self.feature, origin)
        return [part_ids(local_N, part) for part in self.feature.parts]


class ElapsedCodec(RuleCodec[DatetimeFeature]):
    """Codec of a datetime as a number: the days since 1970, scaled as numeric features are.

    Later rows lie beyond what training saw, and go on along its lines, for a quarter of its length.
    """

    by_cell = True
    long_tailed = False
    section = "numeric"
    free = DatetimeCodec.free

    @property
    def rule_name(self) -> str:
        """Name of its number."""
        return self.feature.elapsed_name

    @property
    def dense_names(self) -> list[str]:
        """Its number."""
        return [self.rule_name]

    @property
    def lookups(self) -> list[FeatureSpec]:
        """None: parts are of the other codec."""
        return []

    def table_meanings(self) -> dict[str, dict[str, object]]:
        """None."""
        return {}

    def numbers(self, table: pa.Table, origin: str) -> list[np.ndarray]:
        """Reads the days since 1970, float64 [N], NaN where missing."""
        local_N = local_datetimes(table, self.feature, origin)
        # Rounded, where they are more than float64 has whole numbers of: beyond the year 2255
        micros_N = local_N.cast(pa.int64()).cast(pa.float64(), safe=False)
        return [pc.divide(micros_N, _MICROS_OF_DAY).to_numpy()]

    def start(self, origin: str, codecs: Sequence[Codec[Any]]) -> NumberFit:
        """Returns what fits its rule."""
        return NumberFit(NumericFeature(name=self.rule_name))

    def encode(self, table: pa.Table, rules: Rules, origin: str) -> Coded:
        """Encodes rows; none is outside, as later ones are to be expected."""
        [days_N] = self.numbers(table, origin)
        rule = self.rule(rules)
        low, high = rule.seen or (0.0, 0.0)
        room = _BEYOND * (high - low)
        return Coded(dense=[rule.scale(days_N.clip(low - room, high + room))])
