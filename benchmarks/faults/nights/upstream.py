"""What goes wrong upstream: a night's rows, and what a broken job makes of them."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.faults.nights.month import Shop


@dataclass(frozen=True)
class Upstream:
    """What a fault may use.

    Attributes:
        shop: Whose log it is.
        number: Of the day.
        draw: Which column, which way.
    """

    shop: Shop
    number: int
    draw: random.Random

    @property
    def rows(self) -> pa.Table:
        """Of the day, as they should be."""
        return self.shop.day(self.number)


def column_all_null(night: Upstream) -> tuple[str, pa.Table]:
    """A join that finds nothing any more."""
    name = night.draw.choice(["price", "age", "rating"])
    rows = night.rows
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
    rows = night.rows
    value = night.draw.choice(["unknown", "Books"])
    return f"category is {value}", _with(rows, "category", pa.array([value] * rows.num_rows))


def two_columns_swapped(night: Upstream) -> tuple[str, pa.Table]:
    """Columns by position, of which the order has changed."""
    one, other = night.draw.choice([("user", "item"), ("price", "age"), ("age", "rating")])
    rows = night.rows
    swapped = _with(_with(rows, one, rows[other]), other, rows[one])
    return f"{one} and {other}", swapped


def nulls_as_numbers(night: Upstream) -> tuple[str, pa.Table]:
    """Somebody has filled the gaps."""
    name, value = night.draw.choice(["age", "rating"]), night.draw.choice([0.0, -1.0])
    rows = night.rows
    return f"{name} is {value:g}", _with(rows, name, pc.fill_null(rows[name], value))


def list_is_empty(night: Upstream) -> tuple[str, pa.Table]:
    """What users have viewed is not joined."""
    rows = night.rows
    empty: list[list[str]] = [[]] * rows.num_rows
    return "viewed", _with(rows, "viewed", pa.array(empty, rows["viewed"].type))


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


FAULTS: tuple[Callable[[Upstream], tuple[str, pa.Table]], ...] = (
    column_all_null, ids_hashed_anew, units_times_1000, yesterdays_file, half_of_the_rows,
    one_default_value, two_columns_swapped, nulls_as_numbers, list_is_empty, other_writing,
    another_market, times_of_nobody,
)  # fmt: skip


def _with(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)
