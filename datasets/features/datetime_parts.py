"""The parts of a moment that a datetime feature looks up: hour, weekday, …"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from mmoe.config import Part
from mmoe.datasets.features.vocabulary import FIRST_KNOWN, MISSING
from mmoe.datasets.values.arrow import pc

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


def part_rows(part: Part) -> int:
    """Rows of a part's embedding table: missing, unseen (unused), and one a value."""
    return FIRST_KNOWN + _PARTS[part][0]


def part_ids(local_N: pa.ChunkedArray, part: Part) -> np.ndarray:
    """int32 [N]: 0 where missing, else 2 + the part's value.

    Example:
        >>> noon = pa.chunked_array([pa.array([43_200_000_000, None], pa.timestamp("us"))])
        >>> part_ids(noon, "hour").tolist()
        [14, 0]
    """
    values = pc.add(_PARTS[part][1](local_N), FIRST_KNOWN)
    return pc.fill_null(values, MISSING).to_numpy().astype(np.int32)


def part_circle(ids_N: np.ndarray, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Sine and cosine of 2π · value / number of values, float32 [N] each; both 0 where missing."""
    angle_N = (2 * np.pi / _PARTS[part][0]) * (ids_N - FIRST_KNOWN)
    missing_N = ids_N == MISSING
    sin_N, cos_N = (np.where(missing_N, 0.0, wave(angle_N)) for wave in (np.sin, np.cos))
    return sin_N.astype(np.float32), cos_N.astype(np.float32)
