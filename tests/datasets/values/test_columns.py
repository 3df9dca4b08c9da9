import ctypes
import datetime
import decimal
import mmap
import random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmoe.config import config_from_dict
from mmoe.datasets.features.encoder import FeatureEncoder
from mmoe.datasets.files import parquet_files
from mmoe.datasets.infer.config import infer_config
from mmoe.datasets.rows.requests import same_neighbours, same_values
from mmoe.datasets.values import arrow
from mmoe.datasets.values.arrow import plain, plain_type
from mmoe.datasets.values.columns import to_numbers, to_times
from mmoe.datasets.values.text import settle, to_integers, to_reals
from mmoe.train.prepare import prepare
from tests.arrow_types import ARROW_TYPES, ODD, ROLES, TypeCase, column_of
from tests.chaos.small_log import small_config, small_log
from tests.small_configs import click_config


def numbers(values, kind=None):
    return to_numbers(pa.table({"x": pa.array(values, kind)}), "x", "log.csv", "feature 'x'")


@pytest.mark.parametrize(("values", "kind", "expected"), [
    ([1, None], pa.int8(), [1, np.nan]),
    ([2**63], pa.uint64(), [2.0**63]),
    ([1.5, float("nan"), None], pa.float32(), [1.5, np.nan, np.nan]),
    ([True, False, None], pa.bool_(), [1, 0, np.nan]),
    ([decimal.Decimal("1.25"), None], pa.decimal128(5, 2), [1.25, np.nan]),
    # The floats that text gives; Arrow's cast makes 0.35000000000000003 of the first
    ([decimal.Decimal(x) for x in ("0.35", "0.41", "0.47")], pa.decimal128(20, 2), [0.35, 0.41,
                                                                                    0.47]),
    ([None, None], pa.null(), [np.nan, np.nan]),
    (["1", " 2.5 ", "NA", "", None, "1e3", ".5", "+7", "true"], None, [1, 2.5, np.nan, np.nan,
                                                                       np.nan, 1000, 0.5, 7, 1]),
    ([datetime.datetime(1970, 1, 2)], pa.timestamp("ms"), [86400]),
    ([datetime.date(1970, 1, 2)], pa.date32(), [86400]),
    ([datetime.timedelta(minutes=1)], pa.duration("s"), [60]),
])  # fmt: skip
def test_what_counts_as_a_number(values, kind, expected):
    np.testing.assert_array_equal(numbers(values, kind), np.array(expected, float))


def test_words_infinity_and_lists_are_named_with_their_row():
    with pytest.raises(ValueError, match="expected a number") as caught:
        numbers(["1", "", "NA", "cheap", "x"])
    assert str(caught.value) == (
        "log.csv: row 4: column 'x' (of feature 'x') is 'cheap', expected a number; mend the cell, "
        "leave it empty, or make the feature categorical"
    )
    for values in ([1.0, float("inf")], [1.0, float("-inf")], ["1", "inf"], ["1", "-Infinity"]):
        with pytest.raises(ValueError, match=r"log.csv: row 2: .* expected a finite number; clip"):
            numbers(values)
    with pytest.raises(ValueError, match=r"column 'x' .* holds list<.*>, expected numbers"):
        numbers([[1], [2]])


def column(values):
    return pa.chunked_array([values], pa.large_string())


NUMBERS_IN_TEXT = st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(("kind", "read"), [(0, to_integers), (1, to_reals)])
@given(data=st.data())
def test_numbers_survive_text(kind, read, data):
    values = data.draw(st.lists(NUMBERS_IN_TEXT[kind], min_size=1))
    texts = [repr(value) for value in values]
    assert read(column(texts)).to_pylist() == values
    # One word among them sends every value down the careful road
    assert read(column([*texts, "word"])).to_pylist() == [*values, None]
    assert settle(column(texts)).to_pylist() == values


@pytest.mark.parametrize(("values", "kind"), [
    (["1", "2"], pa.int64()),
    (["1", "NA", ""], pa.int64()),
    (["1", "2.5"], pa.float64()),
    (["nan", "2"], pa.float64()),
    (["true", "FALSE", ""], pa.bool_()),
    (["true", "1"], pa.large_string()),
    (["007", "8"], pa.large_string()),
    (["0x1F"], pa.large_string()),
    (["-0"], pa.large_string()),
    (["0", "-1"], pa.int64()),
    (["NA", "b"], pa.large_string()),
    (["99999999999999999999"], pa.large_string()),
    (["1"] * 300 + ["x"], pa.large_string()),
])  # fmt: skip
def test_settle_keeps_what_it_cannot_give_back(values, kind):
    settled = settle(column(values))
    assert settled.type == kind
    if kind == pa.large_string():
        assert settled.to_pylist() == values


@pytest.mark.parametrize(("times", "row", "word"), [
    (["17", "18", "time", "19"], 3, "time"),
    (["never", "2024-01-31"], 1, "never"),
    ([*["2024-01-31"] * 9, "31.1.2024"], 10, "31.1.2024"),
    (["2024-01-31", "17"], 2, "17"),
])  # fmt: skip
def test_a_word_among_times_is_named_with_its_row(times, row, word):
    says = rf"^log.csv: row {row}: column 'at' .* cannot be ordered in time \(such as '{word}'\)"
    with pytest.raises(ValueError, match=says):
        to_times(pa.table({"at": times}), "at", "log.csv")


@pytest.fixture(name="limited")
def _limited(monkeypatch):
    """As under `ulimit -v`; what glibc is told is collected."""
    told = []
    glibc = SimpleNamespace(mallopt=lambda *what: told.append(what))
    monkeypatch.setattr(arrow, "may_use_threads", lambda: False)
    monkeypatch.setattr(arrow, "is_tuned", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: glibc)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    return told


def test_threads_share_one_heap_where_memory_is_limited(limited, monkeypatch):
    arrow.check_room()
    assert limited == [(-8, 1)]
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")  # the user's own choice stands
    arrow.check_room()
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    monkeypatch.setattr(arrow, "is_tuned", lambda: False)  # a library leaves the process alone
    arrow.check_room()
    assert limited == [(-8, 1)]

    def no_room(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", no_room)
    with pytest.raises(MemoryError, match=r"\(ulimit -v\) leaves less than 64 MiB"):
        arrow.check_room()


def test_missing_values_and_nan_agree_with_themselves():
    numbers = pa.chunked_array([[1.0, None, float("nan"), float("nan"), None]])
    others = pa.chunked_array([[1.0, None, float("nan"), 2.0, float("nan")]])
    assert same_values(numbers, others).tolist() == [True, True, True, False, False]
    lists = pa.chunked_array([[["a"], None, [], ["a", None], ["a"]]])
    other = pa.chunked_array([[["a"], None, None, ["a", None], ["b"]]])
    assert same_values(lists, other).tolist() == [True, True, False, True, False]


ROWS = {
    "numbers": pa.array([1.0, 1.0, None, None, float("nan"), float("nan"), 2.0]),
    "texts": pa.array(["a", "a", None, "", "", "b"]),
    "lists": pa.array([[1, 2], [1, 2], [1, 3], [], [], None, None, [4], [4, 4], [4, 4]]),
    "lists-with-gaps": pa.array([[1, None], [1, None], [1, 2], [None], [None]]),
    "lists-of-texts": pa.array([["a"], ["a"], ["b", "c"], ["b", "c"], ["b", "d"]]),
    "large": pa.array([[0.5], [0.5], [0.25]], pa.large_list(pa.float64())),
    "fixed": pa.array([[1, 2], [1, 2], None, None, [1, 3]], pa.list_(pa.int64(), 2)),
    "nothing": pa.nulls(4),
}


def test_neighbours_are_compared_as_any_two_values():
    for kind, column in ROWS.items():
        for rows in (column, column.slice(1)):
            pair = (pa.chunked_array([rows.slice(n, len(rows) - 1)]) for n in (1, 0))
            assert np.array_equal(same_neighbours(rows), same_values(*pair)), kind
    assert len(same_neighbours(pa.array([1]))) == len(same_neighbours(pa.array([[1]]))) == 0


NUMBERS = [1, 2, None, 0, 5] * 4
# Python shows what these store in other words
OTHER_WORDS = {"uuid", "bool8", "list_of_uuids"}


def test_plain_columns_hold_the_same_values():
    for name in ARROW_TYPES:
        array = column_of(name, NUMBERS)
        column = pa.chunked_array([array.slice(3, 5), array.slice(8, 0), array.slice(8, 7)])
        found = plain(column)
        found.validate(full=True)
        assert found.type == plain_type(array.type) == plain_type(found.type), name
        assert plain(pa.chunked_array([], array.type)).type == found.type
        if name not in OTHER_WORDS:
            assert repr(found.to_pylist()) == repr(column.to_pylist()), name


def test_decimals_of_negative_scale_are_whole_numbers():
    for kind, wanted in (
        (pa.decimal32(5, -2), pa.decimal128(7, 0)),
        (pa.decimal128(5, -50), pa.decimal256(55, 0)),
        (pa.decimal256(50, -40), pa.float64()),
    ):
        numbers = [3 * 10**-kind.scale, None, 0]
        found = plain(pa.chunked_array([pa.array(numbers, pa.decimal256(76, 0)).cast(kind)]))
        assert found.type == wanted == plain_type(wanted)
        assert found.cast(pa.float64()).to_pylist() == pytest.approx(numbers, rel=1e-15)


def _read_everything(prepared):
    return [
        chunk for part in (prepared.train, prepared.validation, prepared.test)
        for chunk in part.chunks()
    ]  # fmt: skip


def _refusal(config):
    """What is said of the data, if anything."""
    try:
        _read_everything(prepare(config))
    except ValueError as error:
        return str(error) if type(error) is ValueError else f"raw: {error!r}"
    return None


# tests.chaos draws from all types times all roles; here each type has one of them
@pytest.mark.parametrize("n", range(len(ARROW_TYPES)), ids=list(ARROW_TYPES))
def test_any_type_anywhere_is_used_or_refused(n, tmp_path):
    role = list(ROLES)[n % len(ROLES)]
    case = TypeCase(random.Random(n), list(ARROW_TYPES)[n], role, tmp_path, n % 2 == 1)
    said = _refusal(config_from_dict(case.config(case.write_log())))
    assert said is None or ODD in said, said


@pytest.mark.parametrize(("odd", "usual", "kind"), [
    ("string_view", "string", "categorical"),
    ("binary_view", "binary", "categorical"),
    ("runs_text", "string", "categorical"),
    ("list_of_views", "list_text", "list"),
    ("list_view_text", "list_text", "list"),
    ("list_of_binary_views", "list_of_binary", "list"),
    ("halffloat", "float", "numeric"),
    ("decimal32", "decimal128", "numeric"),
])  # fmt: skip
def test_the_same_values_in_another_type_are_the_same_input(odd, usual, kind):
    config = click_config({"name": ODD, "kind": kind})
    numbers = [None if n % 7 == 0 else n % 5 for n in range(90)]
    mine, theirs = (pa.table({ODD: column_of(name, numbers)}) for name in (odd, usual))
    encoder = FeatureEncoder.fit(config, theirs, "log")
    again = FeatureEncoder.fit(config, mine, "log")
    wanted = encoder.encode(theirs, "log")
    for found in (encoder.encode(mine, "log"), again.encode(mine, "log")):
        assert np.array_equal(found.dense_NF, wanted.dense_NF)
        assert np.array_equal(found.ids_NC, wanted.ids_NC)
        for one, other in zip(found.lists, wanted.lists, strict=True):
            assert all(map(np.array_equal, one, other))


def _log(folder, column):
    table = small_log(90, seed=1).append_column(ODD, column)
    path = folder / "log.arrow"
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=25)
    return small_config(str(path))


def test_a_group_column_holds_ids(tmp_path):
    for n, name in enumerate(("list", "struct", "map", "interval")):
        raw = _log(tmp_path, column_of(name, list(range(90))))
        raw["data"] |= {"input": ("stream", "memory")[n % 2], "group_column": ODD}
        with pytest.raises(ValueError, match=r"'odd' \(of data.group_column\) holds .*, expected"):
            prepare(config_from_dict(raw))


def test_a_label_to_look_at_is_no_list_and_columns_of_none_are_left_out():
    for name in ("list", "struct", "map", "interval", "sparse_union", "tensor"):
        table = pa.table({"age": [n % 7 for n in range(20)], ODD: column_of(name, NUMBERS)})
        with pytest.raises(ValueError, match=r"label column 'odd' holds .*, expected 0 and 1"):
            infer_config(table, [ODD])
    odd = pa.array([100 * (n % 7) for n in range(60)], pa.decimal128(5, -2))
    log = pa.table({"odd": odd, "none": pa.nulls(60), "click": [n % 2 for n in range(60)]})
    config, reasons = infer_config(log, ["click"])
    assert [feature.name for feature in config.features] == ["odd"]
    assert ("none", "empty in every row") in reasons.left_out


def test_what_arrow_cannot_read_is_not_called_truncated(tmp_path, monkeypatch):
    def read(*_, **__):
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked …")

    path = tmp_path / "log.parquet"
    table = small_log(90, seed=1)
    table = table.append_column(ODD, column_of("list_of_dictionaries", [1] * 90))
    pq.write_table(table, path, row_group_size=40)
    raw = small_config(str(path))
    raw["features"].append({"kind": "list", "name": ODD})
    prepare(config_from_dict(raw))  # row group by row group
    monkeypatch.setattr(parquet_files, "_plain_group", read)
    with pytest.raises(ValueError, match=r"cannot read a column as it is stored.*leave out.*odd"):
        prepare(config_from_dict(raw))


def test_a_column_of_unions_is_no_time_whatever_it_lacks():
    types = pa.array([0, 0, 1], pa.int8())
    union = pa.UnionArray.from_sparse(types, [pa.array([1, None, 3]), pa.array(["a", "b", None])])
    with pytest.raises(ValueError, match=r"column 'at' \(of data.split.column\) cannot be ordered"):
        to_times(pa.table({"at": union}), "at", "log", None)


def test_what_arrow_says_where_memory_is_short():
    found = arrow.out_of_memory(OSError("Failed to launch worker thread"), "log.parquet")
    assert str(found) == "log.parquet: Failed to launch worker thread"
    assert arrow.out_of_memory(OSError("no such file"), "log.parquet") is None
