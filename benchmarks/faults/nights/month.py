"""An invented log of a shop, day by day: weekdays differ, users and items come and go."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.faults.small_log import small_config

TRAINING_DAYS, NIGHTS = 14, 20
ROWS_A_DAY = 4_000
SECONDS_A_DAY = 86_400
START = 1_704_067_200  # seconds since 1970; a Monday
# Volume and rate of labels, from Monday to Sunday: a fifth less or more
_VOLUME = np.array([0.85, 0.8, 0.9, 0.95, 1.1, 1.2, 1.15])
_RATE = np.array([1.1, 1.2, 1.05, 1.0, 0.9, 0.8, 0.85])
_USERS, _ITEMS = 1_500, 300
_NEW_USERS, _NEW_ITEMS = 8, 2  # a day, in the place of as many old ones
CATEGORIES = ("Books", "Garden", "Kitchen", "Music", "Shoes", "Sport", "Toys", "Travel")


@dataclass(frozen=True)
class Shop:
    """What is sold, and to whom; the same over all days.

    Attributes:
        seed: Of everything.
    """

    seed: int

    def day(self, number: int, rows: float = 1.0, market: str = "") -> pa.Table:
        """The rows of a day, from 0 on.

        Args:
            number: Of the day.
            rows: Part of the usual number of rows.
            market: Begins the ids of users and items; another one has others.
        """
        draw = np.random.default_rng([self.seed, number, len(market)])
        weekday = number % 7
        count = int(rows * ROWS_A_DAY * _VOLUME[weekday] * draw.lognormal(0, 0.04))
        user = self._users(draw, number, count)
        item = self._items(draw, number, count)
        traits = np.random.default_rng([self.seed, 1 << 20])
        base = traits.lognormal(3.0, 0.8, 4096)  # the price of each item, were it not for sales
        category = traits.integers(0, len(CATEGORIES), 4096)
        price = np.round(base[item] * draw.choice([1.0, 1.0, 1.0, 0.9, 0.75], count), 2)
        age = np.clip(18 + (user * 7919) % 60 + draw.integers(0, 2, count), 18, 78).astype(float)
        rating = np.clip(1 + 4 * traits.random(4096)[item] + draw.normal(0, 0.2, count), 1, 5)
        lengths = np.minimum(draw.poisson(2.5, count), 8)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        viewed = self._items(draw, number, int(offsets[-1]))
        hours = draw.normal(17, 4.5, count) % 24
        rate = 0.10 + 0.25 * (category[item] < 3) + 0.05 * (price < 15)
        trend = 1 + 0.05 * np.sin(number / 9)
        click = draw.random(count) < _RATE[weekday] * trend * rate
        buy = draw.random(count) < np.where(age > 40, 0.35, 0.2)
        return pa.table(
            {
                "user": pa.array([f"{market}u{n * 2654435761 % 2**32:08x}" for n in user]),
                "item": pa.array([f"{market}i{n}" for n in item]),
                "category": pa.array([CATEGORIES[n] for n in category[item]]),
                "price": pa.array(price),
                "age": pa.array(age, mask=(user * 31) % 100 < 15),  # 15 % have never told it
                "rating": pa.array(np.round(rating, 2), mask=draw.random(count) < 0.2),
                "viewed": pa.ListArray.from_arrays(
                    pa.array(offsets), pa.array([f"{market}i{n}" for n in viewed], pa.string())
                ),
                "time": pa.array(np.sort(START + number * SECONDS_A_DAY + (hours * 3600)).astype(
                    np.int64)),
                "click": pa.array(click.astype(np.int64)),
                "buy": pa.array(buy.astype(np.int64), mask=~click),
            }
        )  # fmt: skip

    def _users(self, draw: np.random.Generator, number: int, count: int) -> np.ndarray:
        first = number * _NEW_USERS
        return first + draw.choice(_USERS, count, p=self._liked(1, first, _USERS))

    def _items(self, draw: np.random.Generator, number: int, count: int) -> np.ndarray:
        first = number * _NEW_ITEMS
        return first + draw.choice(_ITEMS, count, p=self._liked(2, first, _ITEMS))

    def _liked(self, of: int, first: int, count: int) -> np.ndarray:
        """How often each of some ids is met, which it keeps: a few are met often."""
        liked = np.random.default_rng([self.seed, 1 << 21, of]).lognormal(0, 1.0, 8192)
        liked = liked[first : first + count]
        return liked / liked.sum()


def night_config(path: str) -> dict[str, Any]:
    """Every kind of feature; trained on the first days, tested on the last of them."""
    small = small_config(path, epochs=2, batch_size=256, eval_batch_size=1024)
    return {
        **small,
        "name": "nights",
        "data": {"path": path, "split": {"by": "time", "column": "time"}},
        "features": [
            {"kind": "categorical", "name": "user", "min_count": 2},
            {"kind": "categorical", "name": "item", "min_count": 2},
            {"kind": "categorical", "name": "category"},
            {"kind": "numeric", "name": "price", "log": True, "buckets": 16},
            {"kind": "numeric", "name": "age"},
            {"kind": "numeric", "name": "rating"},
            {"kind": "list", "name": "viewed", "max_length": 8},
            {"kind": "datetime", "name": "time", "unit": "s", "parts": ["hour", "weekday"]},
        ],
        "model": {**small["model"], "expert": {"hidden": [16]}, "tower": {"hidden": [8]}},
    }
