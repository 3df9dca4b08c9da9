"""Columns of strangers' logs: what their text is taken for, and by which keys it is read."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmoe.config import NumericFeature, load_config
from mmoe.datasets.infer.config import commented_yaml, infer_config
from mmoe.datasets.infer.reading import read_column, sentinels
from mmoe.datasets.values.columns import feature_numbers

ROWS = 400
RNG = np.random.default_rng(0)
PRICES = RNG.lognormal(6, 1.5, ROWS)
COUNTS = RNG.integers(0, 50_000, ROWS)
TIMES = [dt.datetime(2023, 1, 1) + dt.timedelta(minutes=int(m))
         for m in RNG.integers(0, 400 * 1440, ROWS)]  # fmt: skip


def read(values):
    return read_column("x", pa.chunked_array([pa.array(values, pa.large_string())]))


def swapped(text):
    return text.translate(str.maketrans(",.", ".,"))


def some(values, word, every=11):
    return [word if n % every == 0 else str(value) for n, value in enumerate(values)]


@pytest.mark.parametrize(("values", "keys"), [
    ([f"${v:,.2f}" for v in PRICES], {"thousands": ",", "unit": "$"}),
    ([f"(${v:,.2f})" for v in PRICES], {"thousands": ",", "unit": "$"}),
    ([f"US$ {v:.0f}" for v in PRICES], {"unit": "US$"}),
    ([swapped(f"{v:,.2f} €") for v in PRICES], {"decimal": ",", "thousands": ".", "unit": "€"}),
    ([swapped(f"€ {v:,}") for v in COUNTS], {"decimal": ",", "thousands": ".", "unit": "€"}),
    ([swapped(f"{v:,.2f}").replace(".", "\u202f") for v in PRICES], {"decimal": ",",
                                                                     "thousands": " "}),
    ([f"{v:,.2f}".replace(",", "\u2019") for v in PRICES], {"thousands": "'"}),
    ([f"{v:,}" for v in COUNTS], {"thousands": ","}),
    ([swapped(f"{v / 1e4:.2f}") for v in COUNTS], {"decimal": ","}),
    ([f"{v % 100}.5 %" for v in COUNTS], {"unit": "%"}),
    ([f"{v} km" for v in COUNTS], {"unit": "km"}),
    (some(COUNTS, "?"), {"missing_values": ["?"]}),
    (some(COUNTS, "unknown", 2), {"missing_values": ["unknown"]}),
    (some([f"{v:,}" for v in COUNTS], "n.a."), {"thousands": ",", "missing_values": ["n.a."]}),
    (some(COUNTS, "-999"), {"missing_values": [-999]}),
    (some(COUNTS, "error", 200), {"missing_values": ["error"]}),
])  # fmt: skip
def test_numbers(values, keys):
    profile = read(values)
    assert profile.nature in ("integer", "real")
    assert profile.keys == keys
    assert profile.numbers_N is not None and not profile.no_input
    missing = sum(value in ("?", "unknown", "n.a.", "-999", "error") for value in values)
    assert profile.missing == missing == np.isnan(profile.numbers_N).sum()


@pytest.mark.parametrize("values", [
    [f"C{v % 300}" for v in COUNTS],
    [f"m{v % 300}" for v in COUNTS],  # no metres: a measure stands behind its number
    [f"t {v % 300}" for v in COUNTS],
    [f"{v % 99999:05d}" for v in COUNTS],  # 00501
    [f"{v % 95}" if v % 50 else "2A" for v in COUNTS],
    ["$5", "€5"] * 200,
    ["New York", "Los Angeles", "Paris", "San Francisco"] * 100,
    ["A category of many words, and long", "Another such name of goods & more"] * 200,
    some(["yes", "no"] * 200, "?"),
])  # fmt: skip
def test_ids_stay_ids(values):
    profile = read(values)
    assert (profile.nature, profile.separator, profile.no_input) == ("text", None, "")
    assert not profile.keys


@pytest.mark.parametrize(("form", "found"), [
    ("%d/%m/%Y", "%d/%m/%Y"),
    ("%m/%d/%Y", "%m/%d/%Y"),
    ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M"),
    ("%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M %p"),
    ("%d %b %Y", "%d %b %Y"),
    ("%b %d, %Y", "%b %d, %Y"),
    ("%d-%B-%Y", "%d-%B-%Y"),
    ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M:%S"),
    ("%d/%m/%y", "%d/%m/%y"),
    ("%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S UTC"),
    ("%a, %d %b %Y %H:%M:%S GMT", "%a, %d %b %Y %H:%M:%S GMT"),
    ("%a %b %d %H:%M:%S +0000 %Y", "%a %b %d %H:%M:%S %z %Y"),
    ("%d/%b/%Y:%H:%M:%S +0100", "%d/%b/%Y:%H:%M:%S %z"),
    ("%Y-%m-%dT%H:%M:%SZ", None),
    ("%Y-%m-%d", None),
])  # fmt: skip
def test_datetimes(form, found):
    profile = read([time.strftime(form) for time in TIMES] + ["NULL", ""])
    assert profile.nature == "datetime"
    assert profile.keys == ({} if found is None else {"format": found})
    assert profile.missing == 2 and not profile.no_input


@pytest.mark.parametrize(("name", "form", "kind"), [
    ("jour", "%Y%m%d", pa.int64()),
    ("jour", "%Y%m%d", pa.float64()),
    ("jour", "%Y%m%d%H%M%S", pa.large_string()),
    ("hour", "%y%m%d%H", pa.int64()),
    ("hour", "%y%m%d", pa.large_string()),
    ("hour", "%Y%m%d%H", pa.large_string()),
    ("hour", "%Y%m%d%H%M", pa.int64()),
])  # fmt: skip
def test_days_of_digits(name, form, kind):
    texts = pa.array([time.strftime(form) for time in TIMES] + [None])
    column = pa.chunked_array([texts.cast(pa.int64()).cast(kind)])
    profile = read_column(name, column)
    assert (profile.nature, profile.keys, profile.missing) == ("datetime", {"format": form}, 1)
    if form.startswith("%y"):
        assert read_column("amount", column).nature != "datetime", "digits alone are numbers"
    ids = pa.chunked_array([pa.array([20230000 + n for n in range(200)])])
    assert read_column("sku", ids).nature == "integer"


def test_day_or_month_first_is_asked():
    profile = read([time.strftime("%d/%m/%Y") for time in TIMES if time.day <= 12])
    assert profile.no_input.startswith("day or month first?")
    assert [keys["format"] for keys in profile.offered] == ["%d/%m/%Y", "%m/%d/%Y"]
    # The same day either way
    assert read(["01/01/2023", "02/02/2023", "03/03/2023"]).keys == {"format": "%d/%m/%Y"}


def test_dates_in_several_forms_are_left_out():
    forms = ["%d.%m.%Y %H:%M", "%d.%m.%Y"]
    profile = read([time.strftime(forms[n % 2]) for n, time in enumerate(TIMES)])
    assert profile.no_input.startswith("dates, but no one format reads every row (such as '")
    one_wrong = [time.strftime("%d/%m/%Y") for time in TIMES] + ["99/99/2023"]
    assert "' and '99/99/2023'); write them in one way" in read(one_wrong).no_input


def items(kind, least=1):
    return [[kind.format(n) for n in RNG.integers(0, 30, RNG.integers(least, 6))]
            for _ in range(ROWS)]  # fmt: skip


def test_separators():
    for separator in ("|", ",", ";", " ", "^", "\t", ", ", "\x01", "\x02"):
        profile = read([separator.join(one) for one in items("n{}")])
        assert profile.separator == (separator.strip() or separator)
        expected = {} if separator == "|" else {"separator": separator.strip() or separator}
        assert profile.keys == expected


@pytest.mark.parametrize(("between", "mark"), [("|", ":"), ("\x01", "\x03"), (",", "=")])
def test_weights_behind_items(between, mark):
    def cells(weight):
        return [between.join(f"5\x02{one}{mark}{weight()}" for one in row) for row in items("n{}")]

    profile = read(cells(lambda: round(RNG.random(), 5)))
    keys = {} if between == "|" else {"separator": between}
    assert profile.keys == keys | {"weight_separator": mark}
    assert not profile.unique_per_row and profile.distinct == ROWS
    assert read(cells(lambda: RNG.integers(1, 9))).keys == keys  # may be ids: field:id


def test_lists_in_brackets():
    for write in (str, lambda one: str(one).replace("'", '"')):
        for kind in ("t {}", "{}"):
            profile = read([write(one) for one in items(kind, least=0)])
            assert (profile.nature, profile.keys) == ("list", {"format": "json"})


@pytest.mark.parametrize(("values", "why"), [
    (["[0.5, 1.5]", "[2.5]"] * 20, "numbers with fractions, which are no ids"),
    ([f'{{"a": {v}}}' for v in COUNTS], "objects, or lists of lists, in text"),
    ([f"it was number {v} that I liked, not {n}" for n, v in enumerate(COUNTS[:-1])] * 2,
     "free text: 9 words a row, 50 % of the rows different"),
    (["the same"] * 9 + [f"a title of {v}" for v in range(ROWS)],
     "almost every row has a text of its own (98 % are different)"),
])  # fmt: skip
def test_what_is_no_input(values, why):
    assert read(values).no_input.startswith(why)


@pytest.mark.parametrize("form", ["[{:.3f}, {:.3f}]", "{:.3f} {:.3f}", "{:.3f},{:.3f}"])
def test_vectors_in_text(form):
    profile = read([form.format(v, v / 7) for v in PRICES])
    assert profile.nature == "vector" and not profile.no_input
    assert profile.vector is not None and profile.vector.length == 2


@pytest.mark.parametrize("ids", [[101, 202, 303], [101, 202], [999, 101, 345, 876]])
def test_lists_of_ids_of_three_digits_are_no_thousands(ids):
    rows = [",".join(str(100 + (v * n) % 800) for n in ids) for v in COUNTS]
    assert not {"thousands", "decimal"} & set(read(rows).keys)


@pytest.mark.parametrize(("numbers", "found"), [
    ([*range(18, 90)] * 3 + [-999] * 9, [-999]),
    ([*range(18, 90)] * 3 + [9999] * 9 + [-9999] * 9, [-9999, 9999]),
    ([*range(1, 90)] * 3 + [-1] * 40, [-1]),
    ([*range(1, 90)] * 3 + [-1] * 5, []),  # not frequent
    ([0] * 40 + [*range(90)] * 3 + [-1] * 40, []),  # not alone there
    ([*range(-90, 90)] * 3 + [-1] * 40, []),  # inside
    ([*range(18, 90)] * 30 + [-999] * 2, []),  # rare
    ([*range(18, 90)] * 3 + [99] * 20, []),  # near
    ([0] * 5000 + [*range(0, 41_000, 10)] + [99_999] * 30, []),  # a top code, rare
    ([1, 2, 3, -999] * 30, []),  # few values: names
    ([np.nan] * 100, []),
])  # fmt: skip
def test_sentinels(numbers, found):
    assert sentinels(np.array(numbers, float)) == found


def test_a_config_says_how_it_reads():
    luck = RNG.random(ROWS) < 0.1
    days = [time.strftime("%d/%m/%Y") for time in TIMES]
    visited = RNG.permutation(ROWS)
    table = pa.table(
        {
            "preis": [swapped(f"{v:,.2f} €") for v in PRICES],
            "time": days,
            "geboren": [day if int(day[:2]) <= 12 else "01/02/1990" for day in days],
            "tags": [str(one) for one in items("t{}")],
            "besucht": [days[n] for n in visited],
            "click": [int((TIMES[n].weekday() > 3) ^ luck[n]) for n in visited],
        }
    )
    config, reasons = infer_config(table, ["click"], rows=10_000)
    kinds = {feature.name: feature for feature in config.features}
    assert kinds["preis"].unit == "€" and kinds["preis"].decimal == ","
    assert kinds["tags"].format == "json"
    split = config.data.split
    assert (split.by, split.column, split.format) == ("time", "time", "%d/%m/%Y")
    assert kinds["besucht"].format == "%d/%m/%Y" and kinds["besucht"].parts == ["weekday"]
    text = commented_yaml(config, reasons)
    for form in ("%d/%m/%Y", "%m/%d/%Y"):
        line = "  #   - {kind: datetime, name: geboren, parts: [weekday, month], format: '"
        assert f"{line}{form}'}}" in text
    assert "# sizes for about 10000 rows" in text


@pytest.mark.parametrize(
    "values",
    [["20", "\u202f", "7", " "], ["1e400", "$5"], ["\tinf", "2"], ["121e400", "\u00a0-999"], ["$"]],
)
def test_what_is_found_is_read(values):
    """Blanks are an empty cell, and numbers beyond float64 are none."""
    profile = read(values * 5)
    if profile.nature in ("integer", "real"):
        feature = NumericFeature(name="x", **profile.keys)
        numbers_N = feature_numbers(pa.table({"x": values * 5}), feature, "log")
        np.testing.assert_array_equal(numbers_N, profile.numbers_N)
        assert np.isnan(numbers_N).sum() == profile.missing
    else:
        assert not profile.keys


PADDED_ROWS, LONGEST = 400, 6


def _rows(seed=0, least=0, kinds=30):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(1, kinds, n).tolist() for n in rng.integers(least, LONGEST + 1, PADDED_ROWS)
    ]


def _padded(rows, side="right", filler=0):
    fill = [[filler] * (LONGEST - len(row)) for row in rows]
    pairs = zip(rows, fill, strict=True)
    return [row + pad if side == "right" else pad + row for row, pad in pairs]


def _inferred(columns):
    log = pa.table(
        {"age": np.arange(PADDED_ROWS) % 17, "click": np.arange(PADDED_ROWS) % 2} | columns
    )
    config, reasons = infer_config(log, ["click"])
    keys = ("padding", "padding_side", "length", "mask")
    found = {
        one.name: {key: getattr(one, key) for key in keys if getattr(one, key) is not None}
        for one in config.features if one.kind == "list"
    }  # fmt: skip
    return found, reasons


@pytest.mark.parametrize(("form", "filler", "side"), [
    ("lists", 0, "left"),
    ("text", -1, "right"),
    ("json", 999, "left"),
    ("lists", 0.0, "right"),
    ("text", "0", "left"),
    ("json", "<pad>", "right"),
    ("lists", "PAD", "left"),
])  # fmt: skip
def test_one_value_at_one_end(form, filler, side):
    # The value may be an item too, at the other end
    rows = [
        [0, *row[:5]] if n % 5 == 0 and side == "left" else row for n, row in enumerate(_rows())
    ]
    if isinstance(filler, str):
        rows = [list(map(str, row)) for row in rows]
    rows = _padded(rows, side, filler)
    write = {
        "lists": lambda row: row,
        "text": lambda row: "|".join(map(str, row)),
        "json": json.dumps,
    }[form]
    found, reasons = _inferred({"seen": [write(row) for row in rows]})
    assert found["seen"].pop("padding_side") == side
    assert float(found["seen"]["padding"]) == float(filler) if str(filler)[0].isdigit() else True
    assert str(found["seen"]["padding"]).removesuffix(".0") == str(filler).removesuffix(".0")
    assert f"padded {'behind' if side == 'right' else 'before'} with" in reasons.features["seen"]
    assert not reasons.unclear


@pytest.mark.parametrize("rows", [
    _rows(least=1),  # ragged
    _rows(least=LONGEST),  # full
    _padded(_rows(kinds=3)),  # flags
    np.random.default_rng(0).poisson(0.3, (PADDED_ROWS, LONGEST)).tolist(),  # counts of days
    np.sort(np.random.default_rng(0).integers(0, 9, (PADDED_ROWS, 4))).tolist(),
    [[7, 8, n % 9] for n in range(PADDED_ROWS)],
], ids=["ragged", "full", "flags", "counts", "sorted", "constant"])  # fmt: skip
def test_no_padding(rows):
    found, reasons = _inferred({"seen": rows})
    assert found == {"seen": {}} and not reasons.unclear


@pytest.mark.parametrize(("rows", "said"), [
    ([[0] * (n % 3) + [n % 7 + 1, n % 5 + 1] + [0] * (4 - n % 3) for n in range(PADDED_ROWS)],
     "'seen' has a run of 0 at both ends of many rows"),
    ([row + [0 if n % 2 else -1] * (LONGEST - len(row)) for n, row in enumerate(_rows())],
     "'seen' has runs of -1 and 0 at one end of many rows"),
], ids=["both ends", "several values"])  # fmt: skip
def test_what_is_unclear_is_said_and_not_guessed(rows, said, tmp_path, mmoe):
    log = pa.table(
        {"age": np.arange(PADDED_ROWS) % 17, "click": np.arange(PADDED_ROWS) % 2, "seen": rows}
    )
    pq.write_table(log, tmp_path / "log.parquet")
    out = tmp_path / "config.yaml"
    code, printed, errors = mmoe("init", tmp_path / "log.parquet", "--label", "click", "--out", out)
    assert code == 0 and said in printed + errors and "so all are items" in printed + errors
    assert "padded? 'seen'" in out.read_text()
    (feature,) = [one for one in load_config(out).features if one.name == "seen"]
    assert feature.padding is None


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_belongs_to_items_is_padded_where_they_are(side):
    """Two kinds are too few to tell, and times in order begin with the least anyway."""
    rows = _rows()
    more = {
        "kind": ([[1 + one % 2 for one in row] for row in rows], 0),
        "word": ([["ab"[one % 2] for one in row] for row in rows], "none"),
        "at": ([[10**9 + n for n, _ in enumerate(row)] for row in rows], 0),
    }
    lists = {name: _padded(cells, side, filler) for name, (cells, filler) in more.items()}
    found, reasons = _inferred(
        {**lists, "seen": _padded(rows, side), "flag": [[0, 1]] * PADDED_ROWS}
    )
    assert found.pop("flag", {}) == {} and not reasons.unclear
    fillers = {"seen": 0} | {name: filler for name, (_, filler) in more.items()}
    assert found == {
        name: {"padding": filler, "padding_side": side} for name, filler in fillers.items()
    }
    flags = _padded([[one % 2 for one in row] for row in rows], side)
    found, reasons = _inferred({"flag": flags, "seen": _padded(rows, side)})
    assert found["flag"] == {} and "'flag' has 0 where 'seen' is padded" in str(reasons)


def test_lengths_and_masks_say_it_where_the_value_does_not():
    """Where zeros at the end are items, a length or a mask knows; else the value is enough."""
    rows = _rows(least=1)
    ends = [[*row[:-1], 0] if n % 4 == 0 else row for n, row in enumerate(rows)]
    counts = list(map(len, rows))
    mask = _padded([[1] * len(row) for row in rows])
    value = {"padding": 0, "padding_side": "right"}
    found, _ = _inferred({"seen": _padded(rows), "n": counts})
    assert found == {"seen": value}
    found, _ = _inferred({"seen": _padded(ends), "n": counts})
    assert found == {"seen": {"length": "n"}}
    found, reasons = _inferred({"seen": _padded(rows), "mask": mask})
    assert found == {"seen": value} and dict(reasons.left_out)["mask"] == "the mask of 'seen'"
    found, reasons = _inferred({"seen": _padded(ends), "mask": mask})
    assert found == {"seen": {"mask": "mask"}} and "mask" in dict(reasons.left_out)
    starts = [[0, *row[1:]] if n % 4 == 0 else row for n, row in enumerate(rows)]
    found, _ = _inferred({"seen": _padded(starts, "left"), "n": counts})
    assert found == {"seen": {"length": "n", "padding_side": "left"}}
