"""Faults of numbers and times."""

import datetime
import decimal

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.faults.inputs.draft import Draft, Expect, either, error, right


def infinite_number(draft: Draft) -> Expect:
    """One price is infinite."""
    return _one_price(draft, draft.draw.choice([float("inf"), float("-inf")]), error("price"))


def nan_number(draft: Draft) -> Expect:
    """One price is NaN, which is missing."""
    if draft.is_csv:
        return _one_price(draft, None, right())
    return _one_price(draft, float("nan"), right())


def huge_number(draft: Draft) -> Expect:
    """One price is near the end of what float64 or float32 holds."""
    value = draft.draw.choice([1e300, -1e308, 3.5e38, 1e-320])
    return _one_price(draft, value, right())


def _one_price(draft: Draft, value: float | None, expect: Expect) -> Expect:
    part = draft.part()
    prices = draft.tables[part]["price"].to_pylist()
    prices[draft.draw.randrange(len(prices))] = value
    draft.replace(part, "price", pa.array(prices, pa.float64()))
    return either("price") if draft.command == "init" else expect


def word_among_numbers(draft: Draft) -> Expect:
    """One price is a word; the column is text in that file."""
    part = draft.part()
    prices = [None if p is None else str(p) for p in draft.tables[part]["price"].to_pylist()]
    prices[draft.draw.randrange(len(prices))] = draft.draw.choice(["cheap", "12,50", "1.2.3", "€5"])
    draft.replace(part, "price", pa.array(prices, pa.string()))
    return either("price") if draft.command == "init" else error("price")


def numbers_as_text(draft: Draft) -> Expect:
    """The price of all files is text."""
    for part, table in enumerate(draft.tables):
        prices = [None if p is None else repr(p) for p in table["price"].to_pylist()]
        draft.replace(part, "price", pa.array(prices, pa.string()))
    return either("price") if draft.command == "init" else right("clean")


def moments_as_numbers(draft: Draft) -> Expect:
    """A numeric column that holds dates, times of day, durations or intervals."""
    if draft.is_csv:
        return numbers_as_text(draft)
    kinds = [pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.date32(), pa.time64("us"),
             pa.duration("ms"), pa.float16()]  # fmt: skip
    kind = draft.draw.choice(kinds)
    for part, table in enumerate(draft.tables):
        whole = pc.fill_null(table["price"], 0.0).cast(pa.int64(), safe=False)
        if kind == pa.float16():
            draft.replace(part, "price", whole.cast(pa.float32()).cast(kind))
        else:
            whole = whole.cast(pa.int32()) if kind == pa.date32() else whole
            draft.replace(part, "price", whole.cast(kind))
    return either("price")


def two_time_units(draft: Draft) -> Expect:
    """Times in seconds, in one file in milliseconds."""
    if len(draft.tables) == 1:
        return null_time(draft)
    part = draft.part()
    draft.replace(part, "time", pc.multiply(draft.tables[part]["time"], 1000))
    if draft.command == "init":
        return either("time")
    return error("time", "part-") if draft.reads("time") else right("clean")


def two_timestamp_types(draft: Draft) -> Expect:
    """Timestamps of two units, or with and without a time zone."""
    if len(draft.tables) == 1 or draft.is_csv:
        return two_time_units(draft)
    odd, other = draft.part(), draft.draw.choice([pa.timestamp("ms"), pa.timestamp("us", "UTC")])
    for part, table in enumerate(draft.tables):
        moments = table["time"].cast(pa.timestamp("s")).cast(pa.timestamp("us"))
        draft.replace(part, "time", moments.cast(other) if part == odd else moments)
    if draft.command == "init":
        return either("time")
    return error("time", "part-") if draft.reads("time") else right("clean")


def null_time(draft: Draft) -> Expect:
    """One time is missing."""
    part = draft.part()
    times = draft.tables[part]["time"].to_pylist()
    times[draft.draw.randrange(len(times))] = None
    draft.replace(part, "time", pa.array(times, pa.int64()))
    by_time = draft.reads("time") and draft.split is not None and draft.split[0] == "time"
    if draft.command == "init":
        return either("time")
    return error("time") if by_time else right()


def words_as_time(draft: Draft) -> Expect:
    """Times that nobody can put in order."""
    part = draft.part()
    rows = draft.tables[part].num_rows
    draft.replace(part, "time", pa.array(["yesterday"] * rows))
    if draft.command == "init":
        return either("time")
    if not draft.reads("time"):
        return right("clean")
    by_time = draft.split is not None and draft.split[0] == "time"
    return error("time") if by_time else either("time")


def dates_as_time(draft: Draft) -> Expect:
    """Times as dates or ISO text: the order is the same."""
    for part, table in enumerate(draft.tables):
        moments = [datetime.datetime.fromtimestamp(t, datetime.UTC).replace(tzinfo=None)
                   for t in table["time"].to_pylist()]  # fmt: skip
        if draft.is_csv or draft.draw.random() < 0.5:
            draft.replace(part, "time", pa.array([m.isoformat() for m in moments]))
        else:
            draft.replace(part, "time", pa.array(moments, pa.timestamp("us")))
    return either("time", reference="clean")


def decimals(draft: Draft) -> Expect:
    """Prices as decimals; their last bit may be another than that of the same text."""
    for part, table in enumerate(draft.tables):
        prices = [None if p is None else decimal.Decimal(str(p)) for p in
                  table["price"].to_pylist()]  # fmt: skip
        draft.replace(part, "price", pa.array(prices, pa.decimal128(30, 2)))
    return either("price") if draft.command == "init" else right()


NUMBER_FAULTS = (
    infinite_number,
    nan_number,
    huge_number,
    word_among_numbers,
    numbers_as_text,
    moments_as_numbers,
    two_time_units,
    two_timestamp_types,
    null_time,
    words_as_time,
    dates_as_time,
    decimals,
)
