"""Nights of scoring: healthy ones that must pass, and faults upstream that must not.

A shop's invented log, day by day: weekdays differ, users and items come and go. A run is trained on
two weeks, then every night of a month is scored, with a fault before some.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.chaos.draft import succeed, write_yaml
from tests.chaos.processes import Ended, Say, run_in_process
from tests.chaos.score_kills import contents, first_difference
from tests.chaos.small_log import small_config

TRAINING_DAYS, NIGHTS = 14, 20
ROWS_A_DAY, SECONDS_A_DAY = 4_000, 86_400
START = 1_704_067_200  # seconds since 1970; a Monday
# Volume and rate of labels, from Monday to Sunday: a fifth less or more
_VOLUME = np.array([0.85, 0.8, 0.9, 0.95, 1.1, 1.2, 1.15])
_RATE = np.array([1.1, 1.2, 1.05, 1.0, 0.9, 0.8, 0.85])
_USERS, _ITEMS = 1_500, 300
_NEW_USERS, _NEW_ITEMS = 8, 2  # a day, in the place of as many old ones
CATEGORIES = ("Books", "Garden", "Kitchen", "Music", "Shoes", "Sport", "Toys", "Travel")


@dataclass(frozen=True)
class Shop:
    """What is sold, and to whom; the same over all days of a seed."""

    seed: int

    def day(self, number: int, market: str = "") -> pa.Table:
        """The rows of a day, from 0 on; another market has other ids of users and items."""
        draw = np.random.default_rng([self.seed, number, len(market)])
        weekday = number % 7
        count = int(ROWS_A_DAY * _VOLUME[weekday] * draw.lognormal(0, 0.04))
        user = self._ids(draw, 1, number * _NEW_USERS, _USERS, count)
        item = self._ids(draw, 2, number * _NEW_ITEMS, _ITEMS, count)
        traits = np.random.default_rng([self.seed, 1 << 20])
        base = traits.lognormal(3.0, 0.8, 4096)  # the price of each item, were it not for sales
        category = traits.integers(0, len(CATEGORIES), 4096)
        price = np.round(base[item] * draw.choice([1.0, 1.0, 1.0, 0.9, 0.75], count), 2)
        age = np.clip(18 + (user * 7919) % 60 + draw.integers(0, 2, count), 18, 78).astype(float)
        rating = np.clip(1 + 4 * traits.random(4096)[item] + draw.normal(0, 0.2, count), 1, 5)
        lengths = np.minimum(draw.poisson(2.5, count), 8)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        viewed = self._ids(draw, 2, number * _NEW_ITEMS, _ITEMS, int(offsets[-1]))
        seconds = 3600 * (draw.normal(17, 4.5, count) % 24)
        rate = 0.10 + 0.25 * (category[item] < 3) + 0.05 * (price < 15)
        trend = 1 + 0.05 * np.sin(number / 9)
        click = draw.random(count) < _RATE[weekday] * trend * rate
        buy = draw.random(count) < np.where(age > 40, 0.35, 0.2)
        items = pa.array([f"{market}i{n}" for n in viewed], pa.string())
        return pa.table({
            "user": pa.array([f"{market}u{n * 2654435761 % 2**32:08x}" for n in user]),
            "item": pa.array([f"{market}i{n}" for n in item]),
            "category": pa.array([CATEGORIES[n] for n in category[item]]),
            "price": pa.array(price),
            "age": pa.array(age, mask=(user * 31) % 100 < 15),  # 15 % have never told it
            "rating": pa.array(np.round(rating, 2), mask=draw.random(count) < 0.2),
            "viewed": pa.ListArray.from_arrays(pa.array(offsets), items),
            "time": pa.array(np.sort(START + number * SECONDS_A_DAY + seconds).astype(np.int64)),
            "click": pa.array(click.astype(np.int64)),
            "buy": pa.array(buy.astype(np.int64), mask=~click),
        })  # fmt: skip

    def _ids(
        self, draw: np.random.Generator, of: int, first: int, known: int, count: int
    ) -> np.ndarray:
        """Ids from `first` on; each keeps how often it is met: a few are met often."""
        liked = np.random.default_rng([self.seed, 1 << 21, of]).lognormal(0, 1.0, 8192)
        liked = liked[first : first + known]
        return first + draw.choice(known, count, p=liked / liked.sum())


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


@dataclass(frozen=True)
class Upstream:
    """What a fault may use: the shop, the day, and what is drawn about it."""

    shop: Shop
    number: int
    draw: random.Random

    @property
    def rows(self) -> pa.Table:
        return self.shop.day(self.number)


Fault = Callable[[Upstream], tuple[str, pa.Table]]  # what, in words, and the rows then


def column_all_null(night: Upstream) -> tuple[str, pa.Table]:
    """A join that finds nothing any more."""
    name, rows = night.draw.choice(["price", "age", "rating"]), night.rows
    return name, _with(rows, name, pa.nulls(rows.num_rows, rows[name].type))


def ids_hashed_anew(night: Upstream) -> tuple[str, pa.Table]:
    """Another salt, or another library."""
    name, rows = night.draw.choice(["user", "item"]), night.rows
    values = sorted(set(rows[name].to_pylist()))
    codes = np.random.default_rng(5).permutation(len(values)) + (1 << 40)
    anew = dict(zip(values, (f"{code:x}" for code in codes), strict=True))
    return name, _with(rows, name, pa.array([anew[x] for x in rows[name].to_pylist()]))


def units_times_1000(night: Upstream) -> tuple[str, pa.Table]:
    """Cents, grams, metres."""
    name, rows = night.draw.choice(["price", "rating", "age"]), night.rows
    return name, _with(rows, name, pc.multiply(rows[name], 1000.0))


def yesterdays_file(night: Upstream) -> tuple[str, pa.Table]:
    """The export has not run; what lies there is a day old."""
    return "all", night.shop.day(night.number - 1)


def half_of_the_rows(night: Upstream) -> tuple[str, pa.Table]:
    """Of two shards one has come."""
    rows = night.rows
    return "all", rows.filter(pa.array(np.arange(rows.num_rows) % 2 == 0))


def one_default_value(night: Upstream) -> tuple[str, pa.Table]:
    """A lookup that fails, and hides it."""
    rows, value = night.rows, night.draw.choice(["unknown", "Books"])
    return f"category is {value}", _with(rows, "category", pa.array([value] * rows.num_rows))


def two_columns_swapped(night: Upstream) -> tuple[str, pa.Table]:
    """Columns by position, of which the order has changed."""
    one, other = night.draw.choice([("user", "item"), ("price", "age"), ("age", "rating")])
    rows = night.rows
    return f"{one} and {other}", _with(_with(rows, one, rows[other]), other, rows[one])


def nulls_as_numbers(night: Upstream) -> tuple[str, pa.Table]:
    """Somebody has filled the gaps."""
    name, value = night.draw.choice(["age", "rating"]), night.draw.choice([0.0, -1.0])
    return f"{name} is {value:g}", _with(night.rows, name, pc.fill_null(night.rows[name], value))


def list_is_empty(night: Upstream) -> tuple[str, pa.Table]:
    """What users have viewed is not joined."""
    rows, empty = night.rows, list[list[str]]()
    return "viewed", _with(rows, "viewed", pa.array([empty] * len(rows), rows["viewed"].type))


def other_writing(night: Upstream) -> tuple[str, pa.Table]:
    """Another case, or blanks of a column of fixed width."""
    rows = night.rows
    how: Callable[[str], str] = night.draw.choice([str.upper, str.lower, lambda x: f"{x:<12}"])
    words = [how(x) for x in rows["category"].to_pylist()]
    return f"category such as {words[0]!r}", _with(rows, "category", pa.array(words))


def another_market(night: Upstream) -> tuple[str, pa.Table]:
    """A path that names another country."""
    return "all", night.shop.day(night.number, market="xx-")


def times_of_nobody(night: Upstream) -> tuple[str, pa.Table]:
    """Milliseconds where there were seconds, or a default that means 1970."""
    rows = night.rows
    if night.draw.random() < 0.5:
        return "milliseconds", _with(rows, "time", pc.multiply(rows["time"], 1000))
    return "1970", _with(rows, "time", pa.array(np.zeros(rows.num_rows, np.int64)))


FAULTS: tuple[Fault, ...] = (
    column_all_null, ids_hashed_anew, units_times_1000, yesterdays_file, half_of_the_rows,
    one_default_value, two_columns_swapped, nulls_as_numbers, list_is_empty, other_writing,
    another_market, times_of_nobody,
)  # fmt: skip


def _with(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


@dataclass(frozen=True)
class Night:
    """One night that was scored."""

    number: int
    fault: str | None  # What was broken; None: nothing
    code: int
    said: str
    changed: str | None = None  # What of the folder is other than it was and may not be, or None

    @property
    def stopped(self) -> bool:
        """Whether nothing was published: rejected, or refused as no rows at all (code 2)."""
        return self.code in (2, 3) and self.changed is None


def watch_nights(folder: Path, seed: int, say: Say) -> list[Night]:
    """Scores twenty healthy nights; before twelve of them, drawn, a broken one is tried."""
    folder.mkdir()
    shop, draw, out = Shop(seed), random.Random(f"nights {seed}"), folder / "scored"
    expectations = _train(folder, shop)
    days = range(TRAINING_DAYS, TRAINING_DAYS + NIGHTS)
    # Not on the first, before which there is no night to repeat, or to leave as it was
    chosen = sorted(draw.sample(days[1:], len(FAULTS)))
    broken = dict(zip(chosen, draw.sample(FAULTS, len(FAULTS)), strict=True))
    nights: list[Night] = []

    def tell(night: Night) -> None:
        nights.append(night)
        name = f"night {night.number - TRAINING_DAYS + 1}, {night.fault or 'healthy'}"
        wrong = "" if night.changed is None else f", but {night.changed}"
        say(f"{name}: {night.code}{wrong} {night.said}".rstrip())

    for number in days:
        if number in broken:
            before, fault = _published(out), broken[number]
            what, rows = fault(Upstream(shop, number, draw))
            ended = _score(folder, rows, expectations)
            changed = first_difference(before, _published(out))
            name = f"{fault.__name__} ({what})"
            tell(Night(number, name, ended.code, ended.stderr.strip(), changed))
        ended = _score(folder, shop.day(number), expectations)
        tell(Night(number, None, ended.code, ended.stderr.strip()))
    return nights


def _train(folder: Path, shop: Shop) -> tuple[str, ...]:
    days = [shop.day(number) for number in range(TRAINING_DAYS)]
    pq.write_table(pa.concat_tables(days), folder / "train.parquet")
    config = write_yaml(folder / "config.yaml", night_config(str(folder / "train.parquet")))
    succeed(["train", config, "--out", str(folder / "run"), "--quiet"])
    rows = [day.num_rows for day in days]
    # Rows beyond those of any training day: what a user who looked at two weeks would allow
    low, high = int(min(rows) * 0.8), int(max(rows) * 1.25)
    # The last one because every night is a whole day: hours are then as they were in training
    by_hand = (f"rows in [{low}, {high}]", "repeated < 0.5", "psi(time__hour) < 0.25")
    return ("usual", *by_hand)


def _score(folder: Path, rows: pa.Table, expectations: tuple[str, ...]) -> Ended:
    """Scores a night in the place of the one before."""
    log = folder / "night.parquet"
    pq.write_table(rows.drop_columns(["click", "buy"]), log, row_group_size=2_000)
    arguments = [
        "score", str(folder / "run"), "--input", str(log), "--output", str(folder / "scored"),
        "--keep", "user", "item", "--mode", "overwrite", "--quiet", "--expect", *expectations,
    ]  # fmt: skip
    return run_in_process(arguments, 300.0)


def _published(out: Path) -> dict[str, bytes]:
    """Without what no reader takes for scores: what waits, and what was put aside."""
    aside = ("_staging/", "_rejected/")
    return {name: data for name, data in contents(out).items() if not name.startswith(aside)}
